"""Products with specialised warps: their text run on tensors of the CPU, and their machine code."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.codegen.triton.compiling import compile_all
from tests.codegen.triton.machine_code import Instruction, instructions, main_loops, tile_loops
from tests.codegen.triton.product_running import run
from tests.codegen.triton.static_bound import bound, share_of_peak
from tests.codegen.triton.test_product import assert_product, matrices
from tests.gpu_kernels import product_kernel
from tests.recorded_gpus import gpu

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.targets import TARGETS, Compiled
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from ftuner.core.expr import (
    ACCUMULATOR,
    ACTIVATIONS,
    BEFORE,
    Apply,
    Expr,
    Operand,
    applied,
    flatten,
    relu,
)
from ftuner.core.gpu.tile import SPECIALISED_REGISTERS, Order, ProductKernel
from ftuner.cost.gpu.tile import SPECIALISED, SPECIALISED_FUNCTIONS, ProductForm, tile_cost
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.runtime.gpu.session import GpuSession
from ftuner.ukernels.gpu.library import GpuLibrary, build_gpu_library

GROUPS = 2
"""Warpgroups that multiply, which the bound takes for blocks."""
BIAS, SCALE = Operand("bias", "column"), Operand("scale", "row")
EPILOGUES = [activation((ACCUMULATOR + BIAS) * SCALE) for activation in ACTIVATIONS.values()]
ORDERS: list[tuple[Order, Order]] = list(itertools.product(("k", "spatial"), repeat=2))


def kernel_of(
    orders: tuple[Order, Order] = ("k", "k"), dtype: DType = BFLOAT16, warpgroups: int = GROUPS,
    stages: int = SPECIALISED.stages, epilogue: Expr = ACCUMULATOR,
) -> ProductKernel:  # fmt: skip
    return product_kernel(
        (replace(SPECIALISED, stages=stages),), dtype, dtype.name, *orders, loads="descriptors",
        warpgroups=warpgroups, epilogue=epilogue,
    )  # fmt: skip


# Its arithmetic.


def check(
    extents: tuple[int, int, int, int], orders: tuple[Order, Order], shared: bool = False,
    stages: int = SPECIALISED.stages, programs: int = 3,
) -> None:  # fmt: skip
    """`shared`: whether the batch shares one B."""
    batch, *mnk = extents
    kernel = kernel_of(orders, FLOAT16, stages=stages)
    a, b, c = matrices(kernel, 0, *mnk, batch)
    b = b[:1] if shared else b
    run(kernel, a, b, c, programs=programs)
    assert_product(c, a, b)


@pytest.mark.parametrize("orders", ORDERS, ids="-".join)
@pytest.mark.parametrize(
    "extents",
    [
        # Batch, m, n, k.
        (1, 1, 1, 1), (1, 64, 256, 64), (2, 67, 61, 53), (1, 300, 530, 259), (1, 257, 7, 1031),
        (3, 129, 257, 64), (1, 1531, 300, 128),
    ],
)  # fmt: skip
def test_results(extents: tuple[int, int, int, int], orders: tuple[Order, Order]) -> None:
    check(extents, orders)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("programs", [1, 2, 20])
def test_results_by_any_number_of_programs(programs: int, stages: int) -> None:
    check((2, 300, 300, 200), ("k", "k"), True, stages, programs)


@pytest.mark.parametrize("extents", [(1, 67, 61, 53), (2, 300, 530, 100)])
def test_epilogues(extents: tuple[int, int, int, int]) -> None:
    rng = np.random.default_rng(0)
    batch, m, n, k = extents
    bias, scale = (torch.from_numpy(rng.uniform(-1.0, 1.0, x)).half() for x in (n, m))
    kernel = kernel_of(("k", "k"), FLOAT16, epilogue=relu((ACCUMULATOR + BIAS) * SCALE))
    a, b, c = matrices(kernel, 1, m, n, k, batch)
    run(kernel, a, b, c, {"bias": bias, "scale": scale})
    assert_product(c, a, b, lambda x: ((x + bias.double()) * scale.double()[:, None]).relu())


def test_text(golden: Callable[[str, str], None]) -> None:
    golden("block-specialised.py.txt", gemm_source(kernel_of(("k", "spatial"))).text)


# Its machine code.

HARDWARE = gpu("h200")
WARPS = 4
"""Of a warpgroup."""
MACS = SPECIALISED.bm * SPECIALISED.bn * SPECIALISED.bk
LAYER = relu(ACCUMULATOR + BIAS)
MEASURED = [kernel_of(warpgroups=n, epilogue=x) for x in (ACCUMULATOR, LAYER) for n in (GROUPS, 1)]


@cache
def results() -> dict[ProductKernel, Compiled]:
    kernels = [*map(kernel_of, ORDERS), *MEASURED, *(kernel_of(epilogue=x) for x in EPILOGUES)]
    pairs = [(gemm_source(kernel), TARGETS["sm_90"]) for kernel in kernels]
    return dict(zip(kernels, compile_all(pairs), strict=True))


def code_of(kernel: ProductKernel, folder: Path) -> list[Instruction]:
    compiled = results()[kernel]
    assert not compiled.error
    return instructions(compiled.binary, folder)


@pytest.mark.parametrize(
    "kernel",
    [*map(kernel_of, ORDERS), *(kernel_of(epilogue=x) for x in EPILOGUES)],
    ids=lambda kernel: kernel.symbol,
)
def test_registers_move_to_the_warps_that_multiply(kernel: ProductKernel, tmp_path: Path) -> None:
    compiled = results()[kernel]
    assert not compiled.error
    found = compiled.resources
    assert found is not None
    assert (found.registers, found.threads) == (SPECIALISED_REGISTERS, 32 * (2 * WARPS + 4))
    assert found.spilled_bytes == 0
    assert found.shared_bytes <= HARDWARE.shared_bytes_per_block
    for change in ("inc", "dec"):
        assert re.search(rf"setmaxnreg\.{change}\.sync", compiled.assembly)
    loops = main_loops(code_of(kernel, tmp_path), ("HGMMA",))
    assert len(loops) == GROUPS
    for loop in loops:
        assert loop.count("HGMMA") == SPECIALISED.bk // 16
        assert loop.count("BAR") <= 1
        assert not loop.spills


def share_of(kernel: ProductKernel, steps: int, folder: Path) -> float:
    """The share of the peak of whole tiles, by the static bound."""
    groups = kernel.warpgroups
    macs = MACS * steps // groups
    warps = kernel.main.warps // groups
    loops = tile_loops(code_of(kernel, folder), ("HGMMA",), steps)
    assert len(loops) == groups
    # The buffer before the one in use is free when the other warpgroup, too, has begun the next.
    ahead = kernel.main.stages - 1 if groups > 1 else math.inf
    bounds = [bound(HARDWARE, loop, warps, groups, macs, ahead) for loop in loops]
    least = min(bounds, key=lambda found: found.cycles)
    return share_of_peak(HARDWARE, least, macs, "bfloat16")


@pytest.mark.parametrize(
    ("epilogue", "k", "least", "gain"),
    [
        (ACCUMULATOR, 768, 0.99, 1.10), (ACCUMULATOR, 4096, 0.99, 1.01),
        (LAYER, 768, 0.91, 1.15), (LAYER, 4096, 0.98, 1.03),
    ],
)  # fmt: skip
def test_what_is_gained(epilogue: Expr, k: int, least: float, gain: float, tmp_path: Path) -> None:
    """By the static bound of tiles with their stores, rounded down."""
    kernels = [kernel for kernel in MEASURED if kernel.epilogue == epilogue]
    found, other = (share_of(kernel, k // SPECIALISED.bk, tmp_path) for kernel in kernels)
    assert found >= least
    assert found >= gain * other


@pytest.mark.parametrize("k", [768, 4096])
def test_the_estimate_is_no_better_than_the_code(k: int, tmp_path: Path) -> None:
    steps = k // SPECIALISED.bk
    cost = tile_cost(HARDWARE, SPECIALISED, ProductForm(BFLOAT16, "bfloat16"), GROUPS)
    assert cost is not None
    cycles = (steps * cost.seconds_of_step(1) + cost.store_s) * HARDWARE.clock_hz
    peak = HARDWARE.matrix_flops_per_s["bfloat16"] / HARDWARE.multiprocessors / HARDWARE.clock_hz
    assert 2 * MACS * steps / peak / cycles <= share_of(kernel_of(), steps, tmp_path)


# Where it is chosen.


def library_of(chip: str, warpgroups: int, dtype: DType = BFLOAT16) -> GpuLibrary:
    hardware = gpu(chip)
    tuning = replace(hardware.tuning, specialised_warpgroups=warpgroups)
    return build_gpu_library(replace(hardware, tuning=tuning), dtype)


def test_functions_of_its_epilogues_are_those_that_were_compiled() -> None:
    nodes = [step.node for epilogue in EPILOGUES for step in flatten(epilogue)]
    assert {x.function for x in nodes if isinstance(x, Apply)} == set(SPECIALISED_FUNCTIONS)


def test_it_is_off_until_a_device_has_run_it() -> None:
    assert HARDWARE.tuning.specialised_warpgroups == 1
    kernels = build_gpu_library(HARDWARE, BFLOAT16).kernels("k", "k")
    assert {kernel.warpgroups for kernel in kernels} == {1}


def test_back_ends_of_the_interpreter_have_kernels_in_triton() -> None:
    session = GpuSession(torch.device("cpu"), library_of("h200", GROUPS).hardware, None)
    kernels = session.block_library(BFLOAT16, "bfloat16").kernels("k", "k")
    assert {kernel.warpgroups for kernel in kernels} == {1}


def test_other_kernels_and_chips_are_in_triton() -> None:
    for chip in ("a100-sxm-80gb", "b200"):
        kernels = library_of(chip, GROUPS).kernels("k", "k")
        assert {kernel.warpgroups for kernel in kernels} == {1}
    library = library_of("h200", GROUPS)
    found = [k for k in library.kernels("k", "spatial") if k.warpgroups > 1]
    assert [(k.tiles, k.split) for k in found] == [((SPECIALISED,), False)]
    for options in ({"c_aligned": False}, {"epilogue": ACCUMULATOR + BEFORE}, {"alignment": 8},
                    {"epilogue": applied("exp", ACCUMULATOR)}):  # fmt: skip
        assert {k.warpgroups for k in library.kernels("k", "k", **options)} == {1}
    assert {k.warpgroups for k in library_of("h200", GROUPS, FLOAT32).kernels("k", "k")} == {1}


@pytest.mark.parametrize(
    ("problem", "chosen"),
    [
        (ProductProblem(8192, 4096, 768), True),
        (ProductProblem(8192, 28672, 4096), True),
        (ProductProblem(77, 768, 768), False),
        (ProductProblem(1, 4096, 4096), False),
        (ProductProblem(8192, 4096, 768, c_aligned=False), False),
    ],
)
def test_where_it_is_chosen(problem: ProductProblem, chosen: bool) -> None:
    plan = product_planner_for(library_of("h200", GROUPS)).plan(problem)
    assert (plan.kernel.warpgroups > 1) == chosen


def test_no_estimate_is_worse() -> None:
    without, planner = (product_planner_for(library_of("h200", n)) for n in (1, GROUPS))
    for n, k in ((768, 768), (4096, 4096), (28672, 4096), (3072, 768)):
        for m in (1, 77, 333, 1024, 1531, 4096, 8192):
            problem = ProductProblem(m, n, k)
            seconds = planner.estimate(planner.plan(problem)).seconds
            assert seconds <= without.estimate(without.plan(problem)).seconds
