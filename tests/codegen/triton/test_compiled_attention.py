"""Attention kernels that plans choose, compiled ahead of time: what they take of a chip."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import pytest
from tests.codegen.triton.compiling import compile_all
from tests.recorded_gpus import gpu

from ftuner.codegen.triton.targets import TARGETS, Compiled
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT32, INT32
from ftuner.core.gpu.attention import AttentionForm, AttentionKernel, AttentionMask
from ftuner.schedules.attention.gpu_cost_tile import (
    instruction_of,
    registers_per_thread,
    resident_tiles,
    shared_bytes,
)
from ftuner.schedules.attention.gpu_kernel import attention_source
from ftuner.schedules.attention.gpu_plan import attention_planner

SAVED_BYTES = 32
"""Of a thread: what ptxas puts aside outside of loops for the sake of a round number of registers.
A tile that does not fit spills hundreds."""


@dataclass(frozen=True)
class Case:
    """A kernel that a plan for a chip may choose, and instructions that it must have."""

    chip: str
    kernel: AttentionKernel
    patterns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.chip}-{self.kernel.symbol[10:]}"


def case_of(
    chip: str, form: AttentionForm, height: int, patterns: tuple[str, ...], packed: bool = False,
    split: bool = False,
) -> Case:  # fmt: skip
    """The kernel of one height."""
    for kernel in attention_planner(gpu(chip), form, packed).kernels:
        if (kernel.tile.bq, kernel.packed, kernel.split) == (height, packed, split):
            return Case(chip, kernel, patterns)
    raise AssertionError(f"no plan for {chip} has {height} rows")


COPY, WGMMA, MMA = r"cp\.async\.bulk\.tensor\.4d", r"wgmma\.mma_async", r"mma\.sync\S*m16n8k16"
ASYNC, POWER, FMA = r"cp\.async\.cg", r"ex2\.approx", r"fma\.rn\.f32"
LONG = AttentionForm.over(BFLOAT16, "bfloat16", 128, 128, causal="first", loads="descriptors")
MASKED = AttentionForm.over(
    BFLOAT16, "bfloat16", 64, 64, mask=AttentionMask(BOOL, layout="aligned"), loads="descriptors"
)
RAGGED = AttentionForm.over(
    BFLOAT16, "bfloat16", 128, 128, causal="last", ragged=INT32, loads="descriptors"
)
OF_KEYS = AttentionForm.over(
    BFLOAT16, "bfloat16", 64, 64, mask=AttentionMask(BFLOAT16, "keys", "contiguous"), ragged=INT32,
    loads="descriptors",
)  # fmt: skip
POINTERS = AttentionForm.over(BFLOAT16, "bfloat16", 64, 64, causal="first")
EXACT = AttentionForm.over(FLOAT32, "float32", 64, 64)
CAPPED = AttentionForm.over(
    BFLOAT16, "bfloat16", 128, 128, causal="first", loads="descriptors", capped=True
)
SINKS = AttentionForm.over(
    BFLOAT16, "bfloat16", 64, 64, causal="first", loads="descriptors", sinks=FLOAT32
)
CASES = [
    case_of("h200", LONG, 16, (COPY, MMA, POWER), split=True),
    case_of("h200", LONG, 64, (COPY, WGMMA, POWER)),
    case_of("h200", LONG, 128, (COPY, WGMMA, POWER)),
    case_of("h200", MASKED, 128, (COPY, WGMMA)),
    case_of("h200", RAGGED, 16, (COPY, MMA), packed=True),
    case_of("h200", OF_KEYS, 128, (COPY, WGMMA)),
    case_of("a100-sxm-80gb", POINTERS, 128, (ASYNC, MMA, POWER)),
    case_of("h200", EXACT, 32, (FMA, POWER)),
    case_of("h200", CAPPED, 64, (COPY, WGMMA, POWER)),
    case_of("h200", SINKS, 16, (COPY, MMA, POWER), packed=True, split=True),
]


def unaligned(depth: int, columns: int, mask: AttentionMask | None = None) -> AttentionForm:
    return AttentionForm.over(BFLOAT16, "bfloat16", depth, columns, mask=mask, aligned=False)


SCORES = AttentionMask(BFLOAT16, layout="aligned")
UNALIGNED = [
    case_of("h200", unaligned(37, 37, SCORES), 128, ()),
    case_of("h200", unaligned(64, 16), 64, ()),
    case_of("h200", unaligned(90, 37), 128, ()),
]
"""Keys and values that pass through registers, of different widths or of two blocks."""
DESCRIPTOR = re.compile(r"(?:or\.b64|add\.s64)\s+%rd\d+, (%rd\d+), (-?\d+);")
"""The descriptor of a matrix in shared memory: an address and a literal. PTX ISA, "Matrix
descriptor": bits 32 to 45 are the stride of eight rows in units of 16 bytes; bits 62 and 63 the
swizzle: 128, 64 or 32 bytes."""
STRIDES = {1: 64, 2: 32, 3: 16}
"""Of eight rows, by swizzle."""


@cache
def results() -> dict[Case, Compiled]:
    every = [*CASES, *UNALIGNED]
    pairs = [
        (attention_source(case.kernel), TARGETS[gpu(case.chip).architecture]) for case in every
    ]
    return dict(zip(every, compile_all(pairs), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_takes_what_its_model_says(case: Case) -> None:
    compiled, hardware, kernel = results()[case], gpu(case.chip), case.kernel
    assert compiled.error == ""
    found = compiled.resources
    assert found is not None
    assert found.spilled_bytes <= SAVED_BYTES
    instruction = instruction_of(hardware, kernel.form, kernel.tile)
    assert instruction is not None
    modelled = registers_per_thread(hardware, kernel.form, kernel.tile, instruction)
    # Parts are added up when keys and values are done with; products without matrix units vary.
    factor = 0.5 if kernel.split or kernel.form.multiply == "float32" else 0.7
    assert factor * modelled <= found.registers <= modelled / factor
    shared = shared_bytes(hardware, kernel.form, kernel.tile, instruction)
    assert found.shared_bytes <= shared <= 1.15 * found.shared_bytes + 1024
    # So it is resident as often as estimates have it, or more often.
    threads = kernel.tile.warps * hardware.warp_threads
    kept_back = hardware.shared_bytes_per_multiprocessor - hardware.shared_bytes_per_block
    blocks = min(
        hardware.registers_per_multiprocessor // (-(-found.registers // 8) * 8 * threads),
        hardware.shared_bytes_per_multiprocessor // (found.shared_bytes + kept_back),
    )
    tolerated = kernel.form.multiply == "float32"
    assert blocks >= resident_tiles(hardware, kernel.form, kernel.tile) - tolerated


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_has_the_instructions_of_its_chip(case: Case) -> None:
    assembly = results()[case].assembly
    for pattern in case.patterns:
        assert re.search(pattern, assembly), pattern


@pytest.mark.parametrize("case", UNALIGNED, ids=str)
def test_operands_of_an_address_in_shared_memory_have_one_swizzle(case: Case) -> None:
    """Otherwise ptxas 12.8, which Triton 3.6 brings, computes descriptors from a register that no
    instruction sets, and products read other shared memory than their operands'."""
    found: dict[str, set[int]] = {}
    for address, literal in DESCRIPTOR.findall(results()[case].assembly):
        bits = int(literal) % 2**64
        swizzle = bits >> 62
        if STRIDES.get(swizzle) == bits >> 32 & 0x3FFF:
            found.setdefault(address, set()).add(swizzle)
    assert len(set.union(*found.values())) > 1
    assert all(len(swizzles) == 1 for swizzles in found.values())
