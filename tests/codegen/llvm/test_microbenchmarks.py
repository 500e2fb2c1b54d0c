"""The micro-benchmarks contain what they claim to measure, on every ISA, without its hardware."""

import re

import pytest

from ftuner.codegen.llvm.kernels.microbenchmarks import (
    CHAIN_STEPS,
    ISSUE_STEPS,
    SINK_BYTES,
    SYMBOLS,
    emit,
)
from ftuner.codegen.llvm.objects.jit import Target, compile_assembly
from ftuner.hardware.isa import INSTRUCTION_SETS

TARGETS = {
    "sse2": ("x86_64-unknown-linux-gnu", "x86-64"),
    "avx2": ("x86_64-unknown-linux-gnu", "haswell"),
    "avx512": ("x86_64-unknown-linux-gnu", "icelake-server"),
    "neon": ("aarch64-unknown-linux-gnu", "neoverse-n1"),
}
MULTIPLY_ADD = {
    "sse2": r"\bmulps\b",
    "avx2": r"\bvfmadd",
    "avx512": r"\bvfmadd",
    "neon": r"\bfmla\b",
}


def function_texts(name: str) -> dict[str, str]:
    row, (triple, cpu) = INSTRUCTION_SETS[name], TARGETS[name]
    assembly = compile_assembly(emit(row), Target(triple, cpu, row.features))
    parts = re.split(rf"^({'|'.join(SYMBOLS)}):", assembly, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", sorted(INSTRUCTION_SETS))
def test_instructions(name: str) -> None:
    texts = function_texts(name)
    assert set(texts) == set(SYMBOLS)
    chains = INSTRUCTION_SETS[name].vector_registers * 3 // 4
    assert len(re.findall(MULTIPLY_ADD[name], texts["issue"])) == chains * ISSUE_STEPS
    chain = MULTIPLY_ADD[name] if INSTRUCTION_SETS[name].fused else r"\baddps\b"
    assert len(re.findall(chain, texts["latency"])) == CHAIN_STEPS
    xors = r"\bxorq\b" if name != "neon" else r"\beor\tx"
    assert len(re.findall(xors, texts["clock"])) == CHAIN_STEPS // 2


@pytest.mark.parametrize("name", [n for n in sorted(INSTRUCTION_SETS) if n != "neon"])
def test_no_spills(name: str) -> None:
    assert not any("rsp" in text for text in function_texts(name).values())


@pytest.mark.parametrize("name", sorted(INSTRUCTION_SETS))
def test_sink_holds_the_accumulators(name: str) -> None:
    isa = INSTRUCTION_SETS[name]
    assert isa.vector_registers * isa.vector_bytes <= SINK_BYTES
