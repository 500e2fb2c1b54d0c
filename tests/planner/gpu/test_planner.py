"""Plans for GPUs: exact covers, sane estimates, and choices on recorded chips as tables."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.dtype import FLOAT16
from ftuner.core.gpu.tile import ALIGNMENTS, common_alignment
from ftuner.core.product import ReadWindow
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.planner.gpu.plan import ProductPlan, ProductProblem
from ftuner.planner.gpu.planner import ProductPlanner, product_planner_for
from ftuner.ukernels.gpu.library import build_gpu_library

SHAPES = (
    (1, 4096, 4096, 1), (5, 4096, 4096, 1), (16, 6144, 4096, 1), (33, 28672, 4096, 1),
    (77, 768, 768, 1), (128, 3072, 768, 1), (200, 4096, 14336, 1), (992, 768, 3072, 1),
    (1000, 4096, 4096, 1), (2047, 4096, 4096, 1), (8192, 28672, 4096, 1), (35, 700, 2048, 1),
    (5, 5, 64, 192), (128, 128, 64, 192), (197, 197, 64, 12), (512, 64, 512, 12),
)  # fmt: skip


def planner_of(name: str) -> ProductPlanner:
    hardware = gpu(name)
    return product_planner_for(build_gpu_library(hardware, FLOAT16))


def covered(plan: ProductPlan) -> int:
    """Elements of one matrix that tiles store, each tile cut where the matrix ends."""
    n, width, total = plan.problem.n, plan.kernel.main.bn, 0
    for tile, first, last in plan.bands:
        for row in range(first, last, tile.bm):
            for column in range(0, n, width):
                total += min(tile.bm, last - row) * min(width, n - column)
    return total


@settings(max_examples=100)
@given(
    m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 20000),
    batch=st.integers(1, 200), name=st.sampled_from(GPUS), alignment=st.sampled_from(ALIGNMENTS),
    elements=st.integers(0, 49), reuse=st.floats(1.0, 9.0),
)  # fmt: skip
@example(m=20, n=3073, k=1, batch=96, name="b200", alignment=2, elements=0, reuse=1.0)
def test_any_shape(
    m: int, n: int, k: int, batch: int, name: str, alignment: int, elements: int, reuse: float
) -> None:
    planner = planner_of(name)
    window, steps = None, [k]
    if elements:
        window, steps = ReadWindow(2, k, reuse), [k] * elements
        k *= elements
    problem = ProductProblem(m, n, k, batch, alignment=alignment, window=window)
    plan = planner.plan(problem)
    assert covered(plan) == m * n
    tiles = plan.kernel.tiles
    assert plan.rows == m if len(tiles) == 1 else 0 < plan.rows < m
    assert len(tiles) == 1 or plan.rows % tiles[0].bm == 0
    assert (plan.split_k > 1) == plan.kernel.split
    assert 1 <= plan.split_k <= sum(-(-run // plan.kernel.main.bk) for run in steps)
    assert 1 <= plan.programs <= plan.tiles * plan.split_k
    assert plan.swizzle >= 1
    # What is compiled beforehand is all that a plan may launch.
    axes = 0 if window is None else window.axes
    assert plan.kernel in planner.library.kernels("k", "k", alignment, window=axes)
    terms = planner.estimate(plan)
    assert all(seconds >= 0 for seconds in terms.terms().values())
    assert terms.seconds > 0
    # The candidate that the plan came from says the same in its shorter form.
    (candidate,) = (c for c in planner.candidates(plan.problem) if c.tiles == tiles)
    lows = -(-(m - (0 if len(tiles) == 1 else plan.rows)) // tiles[-1].bm)
    heights = (lows, 0) if len(tiles) == 1 else (plan.rows // tiles[0].bm, lows)
    estimate = candidate.estimate(*heights, plan.split_k)
    assert (estimate.swizzle, estimate.programs) == (plan.swizzle, plan.programs)
    exponent = planner.library.hardware.tuning.overlap_exponent
    assert estimate.seconds(m, exponent) == pytest.approx(terms.seconds, rel=1e-9)


def test_windows_that_share_elements_take_less_from_memory() -> None:
    planner = planner_of("h200")
    apart = ProductProblem(1 << 20, 64, 9 * 64, window=ReadWindow(2, 64, 1.0))
    shared = apart._replace(window=ReadWindow(2, 64, 9.0))
    few = apart._replace(k=9 * 63, window=ReadWindow(2, 63, 1.0))
    dram_s = [planner.estimate(planner.plan(p)).dram_s for p in (apart, shared)]
    assert dram_s[1] < 0.4 * dram_s[0]
    # Each element of a window takes whole steps of k.
    tilings = [planner.candidates(p)[0].tiling for p in (apart, few)]
    assert tilings[0].steps == tilings[1].steps


@pytest.mark.parametrize("name", GPUS)
def test_more_work_takes_longer(name: str) -> None:
    """Ten times an extent never takes less, but for what estimates of two tiles may differ by."""
    planner = planner_of(name)
    for m, n, k, batch, _ in ((*shape, 0) for shape in SHAPES):
        seconds = planner.estimate(planner.plan(ProductProblem(m, n, k, batch))).seconds
        for larger in ((10 * m, n, k, batch), (m, 10 * n, k, batch), (m, n, 10 * k, batch),
                       (m, n, k, 10 * batch)):  # fmt: skip
            assert planner.estimate(planner.plan(ProductProblem(*larger))).seconds >= 0.9 * seconds


@pytest.mark.parametrize("name", ["h200", "a100-sxm-80gb", "rtx4090", "v100"])
def test_selection(name: str, golden) -> None:  # type: ignore[no-untyped-def]
    """What is kept and chosen on recorded chips, as tables to be read when they change."""
    planner = planner_of(name)
    library = planner.library
    lines = [f"# {name}, {library.dtype}", "", "# tiles"]
    lines += [f"{p.name:12} {len(p.tiles)} out" for p in library.funnel.pruned]
    lines += [f"kept         {' '.join(map(str, library.tiles))}"]
    lines += [f"pairs        {' '.join(f'{a}+{b.bm}' for a, b in library.pairs)}", "", "# plans"]
    for m, n, k, batch in SHAPES:
        plan = planner.plan(ProductProblem(m, n, k, batch))
        shape = f"{batch}*{m}x{n}x{k}" if batch > 1 else f"{m}x{n}x{k}"
        bands = " + ".join(f"{last - first} by {tile}" for tile, first, last in plan.bands)
        lines.append(
            f"{shape:16} {plan.tiles:5} tiles, split-k {plan.split_k:2}, "
            f"{plan.programs:4} programs, swizzle {plan.swizzle:2}: {bands}"
        )
    golden(f"block-plans-{name}.txt", "\n".join(lines) + "\n")


def test_the_exponent_of_overlap_is_that_of_the_chip() -> None:
    """Resources that overlap perfectly take less than those whose seconds add up."""
    problem, found = ProductProblem(1000, 4096, 4096), []
    for exponent in (1.0, 8.0, 32.0):
        hardware = replace(gpu("h200"), tuning=GpuTuning(overlap_exponent=exponent))
        planner = product_planner_for(build_gpu_library(hardware, FLOAT16))
        found.append(planner.estimate(planner.plan(problem)).seconds)
    assert found[0] > found[1] > found[2]


WINDOWS = (
    (1, 56, 64, 64, 9), (1, 56, 128, 128, 9), (1, 14, 256, 256, 9), (1, 7, 512, 512, 9),
    (32, 112, 21, 64, 7), (32, 56, 64, 64, 9), (32, 14, 256, 256, 9), (4, 256, 32, 16, 9),
)  # fmt: skip
"""Images, side of the result, channels, columns, elements of the window."""


@pytest.mark.parametrize("name", ["h200", "rtx4090"])
def test_selection_of_windows(name: str, golden) -> None:  # type: ignore[no-untyped-def]
    """What is chosen for convolutions, as a table to be read when it changes."""
    planner = planner_of(name)
    lines = [f"# {name}, {planner.library.dtype}"]
    for images, side, channels, columns, elements in WINDOWS:
        m, k = images * side * side, elements * channels
        window = ReadWindow(2, channels, float(elements))
        problem = ProductProblem(
            m, columns, k, alignment=common_alignment(2 * channels), window=window
        )
        plan = planner.plan(problem)
        bands = " + ".join(f"{last - first} by {tile}" for tile, first, last in plan.bands)
        lines.append(
            f"{images:2} of {side}x{side}, {elements}*{channels}>{columns}: {plan.tiles} tiles, "
            f"split-k {plan.split_k}, {plan.programs} programs, swizzle {plan.swizzle}: {bands}"
        )
    golden(f"block-windows-{name}.txt", "\n".join(lines) + "\n")
