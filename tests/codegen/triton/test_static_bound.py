"""Estimates beside the machine code: no estimate is better than what the code allows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.codegen.triton.compiling import compile_all
from tests.codegen.triton.machine_code import (
    PRODUCTS,
    VECTOR_PRODUCTS,
    Instruction,
    Loop,
    instructions,
)
from tests.codegen.triton.static_bound import bound, least, residency, share_of_peak
from tests.conftest import share
from tests.recorded_gpus import gpu

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import TARGETS, Compiled
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32
from ftuner.core.gpu.attention import AttentionForm, AttentionKernel
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, Multiply, ProductKernel
from ftuner.cost.gpu.tile import ProductForm, loads_of, tile_cost
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.schedules.attention.gpu_cost_tile import attention_tile_cost
from ftuner.schedules.attention.gpu_kernel import attention_source
from ftuner.schedules.attention.gpu_plan import attention_planner
from ftuner.ukernels.gpu.library import build_gpu_library

BETTER, ALONE_BETTER = 1.10, 1.25
"""Most that an estimate may be better than the machine code: with as many blocks as a
multiprocessor holds, and with one, whose waits nothing hides."""
DTYPES = {"bfloat16": BFLOAT16, "float16": FLOAT16}


class Case(NamedTuple):
    """A kernel, what its model says of it, and what it is made of."""

    name: str
    source: Source
    warps: int
    macs: int
    """Multiply-adds of a turn of its main loop."""
    blocks: int
    seconds: tuple[float, float]
    """Of a turn of one block: alone, and with all resident ones."""
    products: tuple[str, ...] = PRODUCTS
    whole: bool = True
    """Whether it loads four bytes or more at a time."""


def product_case(hardware: GpuHardware, kernel: ProductKernel) -> Case:
    tile = kernel.main
    cost = tile_cost(hardware, tile, ProductForm(kernel.dtype, kernel.multiply, kernel.alignment))
    assert cost is not None
    seconds = cost.seconds_of_step(1), cost.seconds_of_step(cost.blocks)
    macs = tile.bm * tile.bn * tile.bk * (3 if kernel.multiply == "tf32x3" else 1)
    products = VECTOR_PRODUCTS if kernel.multiply == "float32" else PRODUCTS
    whole = max(kernel.alignment, kernel.dtype.itemsize) >= 4
    return Case(kernel.symbol, gemm_source(kernel), tile.warps, macs, cost.blocks, seconds,
                products, whole)  # fmt: skip


def attention_case(hardware: GpuHardware, kernel: AttentionKernel) -> Case:
    tile, form = kernel.tile, kernel.form
    cost = attention_tile_cost(hardware, form, tile)
    assert cost is not None
    macs = tile.bq * tile.bk * (form.depth + form.columns)
    seconds = cost.step_s[1], cost.step_s[-1]
    return Case(kernel.symbol, attention_source(kernel), tile.warps, macs, cost.blocks, seconds)


def library_cases(
    chip: str, multiply: Multiply, alignment: int = ALIGNMENT_BYTES, tallest: int = 0
) -> list[Case]:
    """All tiles of a library for such operands; `tallest`: of these only so many, the tallest."""
    hardware = gpu(chip)
    library = build_gpu_library(hardware, DTYPES.get(multiply, FLOAT32), multiply)
    aligned = alignment == ALIGNMENT_BYTES
    tiles = library.fitting(alignment)[-tallest:]
    return [
        product_case(hardware, library.kernel((t,), "k", "k", alignment, c_aligned=aligned))
        for t in tiles
    ]


def attention_cases(chip: str, depth: int, heights: int = 0) -> list[Case]:
    hardware = gpu(chip)
    loads = loads_of(hardware, "bfloat16", True)
    form = AttentionForm.over(BFLOAT16, "bfloat16", depth, depth, loads=loads)
    kernels = attention_planner(hardware, form, False).kernels
    return [attention_case(hardware, k) for k in kernels][: heights or None]


def faults(hardware: GpuHardware, case: Case, compiled: Compiled, folder: Path) -> list[str]:
    """What the machine code contradicts."""
    found = compiled.resources
    if found is None:
        return [f"{case.name}: {compiled.error}"]
    code = instructions(compiled.binary, folder)
    wrong = []
    blocks = residency(hardware, found)
    if blocks < case.blocks:
        wrong.append(f"{blocks} blocks are resident, modelled {case.blocks}")
    for resident, seconds, better in zip(
        (1, case.blocks), case.seconds, (ALONE_BETTER, BETTER), strict=True
    ):
        loop, least_ = least(hardware, code, case.warps, resident, case.macs, case.products)
        cycles = seconds * hardware.clock_hz
        if least_.cycles > better * cycles:
            wrong.append(f"{cycles:.0f} cycles by {resident} blocks: {least_}")
    if loop.spills:
        wrong.append(f"{loop.spills} spills")
    if case.whole and loop.narrow:
        wrong.append(f"{loop.narrow} loads and stores of two bytes")
    return [f"{case.name}: {text}" for text in wrong]


def assert_bounded(chip: str, cases: Sequence[Case], folder: Path) -> None:
    hardware = gpu(chip)
    target = TARGETS[hardware.architecture]
    results = compile_all([(case.source, target) for case in cases])
    wrong = [
        text
        for case, compiled in zip(cases, results, strict=True)
        for text in faults(hardware, case, compiled, folder)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_main_kernels_of_a_chip(tmp_path: Path) -> None:
    """Products of each alignment, and attention."""
    cases = [*attention_cases("h200", 128, 2), *attention_cases("h200", 64, 1)]
    for alignment in (ALIGNMENT_BYTES, 4, 2):
        cases += library_cases("h200", "bfloat16", alignment, 1)
    assert_bounded("h200", cases, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("chip", ["a100-sxm-80gb", "h200", "b200"])
def test_attention(chip: str, depth: int, tmp_path: Path) -> None:
    assert_bounded(chip, share(attention_cases(chip, depth), 3, depth // 64 - 1), tmp_path)


@pytest.mark.full
@pytest.mark.each_value
@pytest.mark.parametrize("alignment", [16, 8, 4, 2])
@pytest.mark.parametrize("multiply", ["bfloat16", "float16", "tf32", "float32"])
@pytest.mark.parametrize("chip", ["a100-sxm-80gb", "h200", "b200"])
def test_libraries(chip: str, multiply: Multiply, alignment: int, tmp_path: Path) -> None:
    if alignment < DTYPES.get(multiply, FLOAT32).itemsize:
        pytest.skip("elements are larger")
    cases = library_cases(chip, multiply, alignment)
    assert_bounded(chip, share(cases, 2, alignment.bit_length()), tmp_path)


def _instruction(name: str, rest: str = "", stall: int = 1, **options: Any) -> Instruction:
    return Instruction(name, rest, "", -1, stall, (7, 7), options.get("waits", ()))


FMA, MAXIMUM = _instruction("FFMA", " R0, R1, R2, R3"), _instruction("FMNMX", " R0, R1, R2, !PT")
POWER, BARRIER = _instruction("MUFU", ".EX2 R0, R1"), _instruction("BAR", ".SYNC 0x0")
WGMMA = _instruction("HGMMA", ".64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0")
WAIT = _instruction("WARPGROUP", ".DEPBAR.LE gsb0, 0x0")


@pytest.mark.parametrize(
    ("body", "warps", "blocks", "cycles"),
    [
        ([FMA] * 40, 4, 1, 40),
        ([FMA] * 40, 8, 1, 80),
        ([FMA] * 40, 4, 2, 40),
        ([_instruction("FFMA", stall=5)] * 8, 4, 1, 40),
        # Two warps, or two blocks, fill each other's stalls.
        ([_instruction("FFMA", stall=5)] * 8, 8, 1, 40),
        ([_instruction("FFMA", stall=5)] * 8, 4, 2, 20),
        ([MAXIMUM] * 10, 4, 1, 20),
        ([POWER] * 10, 4, 1, 80),
        # Powers follow the product that they wait for, and products of two blocks overlap them.
        ([WGMMA, WAIT, *[POWER] * 8], 4, 1, 128),
        ([WGMMA, WAIT, *[POWER] * 8], 4, 2, 64),
        # Between barriers, the warps of a block do the same.
        ([BARRIER, WGMMA, WAIT, BARRIER, *[POWER] * 8], 8, 1, 256),
    ],
)
def test_schedules_that_are_known(
    body: list[Instruction], warps: int, blocks: int, cycles: float
) -> None:
    found = bound(gpu("h200"), Loop(tuple(body)), warps, blocks, 0)
    assert found.cycles == pytest.approx(cycles, rel=0.1)
    assert found.cycles >= 0.99 * max(found.tensor, found.issue, found.special, found.memory)


def test_shares_of_peak() -> None:
    """Products without anything else reach it."""
    hardware = gpu("h200")
    found = bound(hardware, Loop((*[WGMMA] * 20, WAIT)), 8, 1, 0)
    assert share_of_peak(hardware, found, 2 * 20 * 64 * 128 * 16, "bfloat16") == pytest.approx(
        1.0, rel=0.01
    )
