"""Plans of grouped products: exact covers, the estimate of one product, choices as tables."""

import random
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recorded_gpus import GPUS, gpu

from ftuner.core.dtype import FLOAT16, FLOAT32, DType
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, ALIGNMENTS, MOST_COUNTED
from ftuner.cost.gpu.product import TileSchedule, chip_of, estimate_product, tiling_of
from ftuner.planner.gpu import grouped as block_grouped
from ftuner.planner.gpu.grouped import GroupedPlan, GroupedPlanner, GroupedProblem
from ftuner.ukernels.gpu.library import build_gpu_library

Sizes = tuple[tuple[int, int, int], ...]


def planner_of(
    name: str, dtype: DType = FLOAT16, alignment: int = ALIGNMENT_BYTES
) -> GroupedPlanner:
    hardware = gpu(name)
    return block_grouped.grouped_planner_for(build_gpu_library(hardware, dtype), alignment)


def tiles_of(plan: GroupedPlan) -> dict[tuple[int, int, int], int]:
    """How often each tile of each group, by (group, row, column), is taken by a program, in the
    order in which the kernel counts."""
    tile, found = plan.kernel.main, {}
    for program in range(plan.programs):
        place = 0
        for index in range(program, plan.tiles, plan.programs):
            while plan.ends[place] <= index:
                place += 1
            number = plan.order[place]
            m, n, _ = plan.problem.sizes[number]
            inside = index - (plan.ends[place - 1] if place else 0)
            rows, columns = ceil(m / tile.bm), ceil(n / tile.bn)
            first = inside // (plan.swizzle * columns) * plan.swizzle
            height = min(rows - first, plan.swizzle)
            within = inside % (plan.swizzle * columns)
            key = (number, first + within % height, within // height)
            found[key] = found.get(key, 0) + 1
            assert key[1] < rows
            assert key[2] < columns
    return found


@settings(max_examples=60)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 20000)),
        min_size=1, max_size=8,
    ),
    name=st.sampled_from(GPUS), alignment=st.sampled_from(ALIGNMENTS),
)  # fmt: skip
def test_every_tile_is_computed_once(
    sizes: list[tuple[int, int, int]], name: str, alignment: int
) -> None:
    planner = planner_of(name, alignment=alignment)
    plan = planner.plan(GroupedProblem(tuple(sizes)))
    tile = plan.kernel.main
    expected = {
        (number, row, column): 1
        for number, (m, n, _) in enumerate(sizes)
        for row in range(ceil(m / tile.bm))
        for column in range(ceil(n / tile.bn))
    }
    assert tiles_of(plan) == expected
    assert plan.tiles == len(expected)
    assert 1 <= plan.programs <= plan.tiles
    longest = [sizes[number][2] for number in plan.order]
    assert longest == sorted(longest, reverse=True)
    # What is compiled beforehand is all that a plan may launch.
    assert plan.kernel in planner.kernels("k", "k")
    assert plan.kernel.loads == "pointers"
    assert plan.seconds > 0


@settings(max_examples=60)
@given(
    m=st.integers(1, 5000), n=st.integers(1, 5000), k=st.integers(1, 20000),
    name=st.sampled_from(GPUS),
)  # fmt: skip
def test_one_group_takes_what_one_product_takes(m: int, n: int, k: int, name: str) -> None:
    planner = planner_of(name)
    plan = planner.plan(GroupedProblem(((m, n, k),)))
    tile = plan.kernel.main
    rows = ceil(m / tile.bm)
    chip = chip_of(planner.library.hardware, FLOAT16)
    tiling = tiling_of((planner.library.cost(tile),), n, k, 1, False)
    schedule = TileSchedule((rows, 0), 1, min(plan.swizzle, rows), plan.programs)
    assert plan.seconds == pytest.approx(estimate_product(chip, tiling, schedule, m).seconds)


@pytest.mark.parametrize("name", GPUS)
def test_more_work_takes_longer(name: str) -> None:
    """One more group, or ten times an extent of one, never takes less, but for what estimates of
    two tiles may differ by."""
    planner = planner_of(name)
    rng = random.Random(0)
    for _ in range(40):
        sizes = tuple(
            (rng.randint(1, 500), rng.randint(1, 5000), rng.randint(1, 5000))
            for _ in range(rng.randint(1, 40))
        )
        seconds = planner.plan(GroupedProblem(sizes)).seconds
        m, n, k = sizes[0]
        for larger in ((*sizes, (100, 100, 100)), ((10 * m, n, k), *sizes[1:]),
                       ((m, 10 * n, k), *sizes[1:]), ((m, n, 10 * k), *sizes[1:])):  # fmt: skip
            assert planner.plan(GroupedProblem(larger)).seconds >= 0.97 * seconds


def test_groups_together_take_less_than_one_by_one() -> None:
    """Few tiles each: together they fill the chip, and are launched once."""
    planner = planner_of("h200")
    sizes: Sizes = tuple((40 + i, 1024, 4096) for i in range(16))
    together = planner.plan(GroupedProblem(sizes)).seconds
    one_by_one = sum(planner.plan(GroupedProblem((size,))).seconds for size in sizes)
    assert together < one_by_one / 4


def test_tiles_walked_together_can_be_counted() -> None:
    """Kernels count the tiles of the rows of tiles that programs take at once; of the narrowest
    tile these are more rows than it has columns."""
    library = planner_of("l40s", FLOAT32).library
    narrow = min(library.tiles, key=lambda tile: (tile.bn, tile.bm))
    planner = GroupedPlanner(replace(library, tiles=(narrow,), pairs=()), ALIGNMENT_BYTES)
    plan = planner.plan(GroupedProblem(((8, MOST_COUNTED, 8),)))
    assert plan.tiles * narrow.bn == MOST_COUNTED
    assert plan.swizzle * plan.tiles <= MOST_COUNTED


def test_plans_are_kept_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_grouped, "MAX_PLANS", 4)
    planner = GroupedPlanner(planner_of("h200").library, ALIGNMENT_BYTES)
    problems = [GroupedProblem(((m, 8, 8),)) for m in range(1, 6)]
    plans = [planner.plan(problem) for problem in problems]
    assert planner.plan(problems[-1]) is plans[-1]
    again = planner.plan(problems[0])
    assert again == plans[0]
    assert again is not plans[0]
    assert 2 <= len(planner._plans) <= 4


EXPERTS: dict[str, Sizes] = {
    "8 experts, 2 rows": tuple((2, 14336, 4096) for _ in range(8)),
    "8 experts, 100 to 800 rows": tuple((100 * i, 14336, 4096) for i in range(1, 9)),
    "64 experts, 1 to 64 rows": tuple((i, 1408, 2048) for i in range(1, 65)),
    "scores of 12 sentences": tuple((17 * i, 17 * i, 64) for i in range(1, 13)),
    "k from 64 to 8192": tuple((256, 256, 64 << i) for i in range(8)),
}


@pytest.mark.parametrize("name", ["h200", "a100-sxm-80gb", "rtx4090"])
def test_selection(name: str, golden) -> None:  # type: ignore[no-untyped-def]
    """What is chosen on recorded chips, as a table to be read when it changes."""
    planner = planner_of(name)
    lines = [f"# {name}, float16"]
    for label, sizes in EXPERTS.items():
        plan = planner.plan(GroupedProblem(sizes))
        lines.append(
            f"{label:28} {plan.kernel.main!s:18} {plan.tiles:5} tiles, {plan.programs:4} programs, "
            f"swizzle {plan.swizzle:2}"
        )
    golden(f"block-grouped-{name}.txt", "\n".join(lines) + "\n")
