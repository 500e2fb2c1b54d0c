"""The micro-benchmarks contain what they claim to measure, on every ISA, without its hardware."""

import re

import pytest
from tests.codegen.llvm.objects import target_of

from ftuner.codegen.llvm.kernels.microbenchmarks import (
    CHAIN_STEPS,
    ISSUE_STEPS,
    SINK_BYTES,
    SYMBOLS,
    emit,
)
from ftuner.codegen.llvm.objects.jit import compile_assembly
from ftuner.hardware.isa import INSTRUCTION_SETS

CODE = {
    "sse2": ("x86-64", r"\bmulps\b"),
    "avx2": ("haswell", r"\bvfmadd"),
    "avx512": ("icelake-server", r"\bvfmadd"),
    "neon": ("neoverse-n1", r"\bfmla\b"),
}
"""A CPU of each ISA, and its multiply-adds."""


def function_texts(name: str) -> dict[str, str]:
    target = target_of(name, cpu=CODE[name][0])
    assembly = compile_assembly(emit(INSTRUCTION_SETS[name]), target)
    parts = re.split(rf"^({'|'.join(SYMBOLS)}):", assembly, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("name", sorted(INSTRUCTION_SETS))
def test_instructions(name: str) -> None:
    texts = function_texts(name)
    assert set(texts) == set(SYMBOLS)
    chains, (_, multiply_add) = INSTRUCTION_SETS[name].vector_registers * 3 // 4, CODE[name]
    assert len(re.findall(multiply_add, texts["issue"])) == chains * ISSUE_STEPS
    chain = multiply_add if INSTRUCTION_SETS[name].fused else r"\baddps\b"
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
