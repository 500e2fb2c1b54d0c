"""How a GPU walks kernels: every element in exactly one lane, and blocks as literal tables."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from tests.core.test_access import applications, nest_of
from tests.gpu_kernels import BLOCK_SIZES

from ftuner.core.access import Kernel, kernel_of
from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import FLOAT32, FLOAT64, GPU_DTYPES, INT64, DType
from ftuner.core.evaluation import evaluate
from ftuner.core.gpu.schedule import best_schedule, reduced_elements, schedules_of
from ftuner.core.index_expr import Nest
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import contiguous

B, S, T = symbol("B"), symbol("S"), symbol("T")
HALF = GPU_DTYPES["float16"]


def kernel(op: str, *types: tuple[DType, tuple[Dim, ...]], **attributes: Any) -> Kernel:
    nest, results = nest_of(op, *(TensorType(d, s) for d, s in types), **attributes)
    return kernel_of(nest, contiguous(results))


def softmax(shape: tuple[Dim, ...], axis: int) -> Kernel:
    return kernel("softmax", (FLOAT32, shape), axis=axis, log=False)


def total(shape: tuple[Dim, ...], *axes: int, dtype: DType = FLOAT32) -> Kernel:
    return kernel("reduce", (dtype, shape), kind="sum", axes=axes)


def scatter(axis: int, x: tuple[Dim, ...], updates: tuple[Dim, ...]) -> Kernel:
    types = ((FLOAT32, x), (INT64, updates), (FLOAT32, updates))
    return kernel("scatter_elements", *types, axis=axis, kind="none")


TABLE: tuple[tuple[str, Kernel, list[tuple[tuple[int, int], int | None, bool, int]]], ...] = (
    # What, its kernel; for each schedule: block, dimension of the reduced axes, whole, warps.
    ("flat", kernel("add", (FLOAT32, (B, S)), (FLOAT32, (B, S))), [((1, 1024), None, True, 4)]),
    ("a number", kernel("add", (FLOAT32, ()), (FLOAT32, ())), [((1, 1), None, True, 1)]),
    ("few", kernel("add", (FLOAT32, (20,)), (FLOAT32, (20,))), [((1, 32), None, True, 1)]),
    ("rows of 768", kernel("add", (HALF, (B, 768)), (HALF, (768,))), [((4, 256), None, True, 4)]),
    ("rows of 77", kernel("add", (HALF, (B, 77)), (HALF, (77,))), [((32, 32), None, True, 4)]),
    ("rows of 5", kernel("add", (HALF, (B, 5)), (HALF, (5,))), [((128, 8), None, True, 4)]),
    ("rows", kernel("add", (HALF, (B, S)), (HALF, (S,))),
     [((1, 1024), None, True, 4), ((32, 32), None, True, 4)]),
    ("turned", kernel("transpose", (FLOAT32, (B, S)), perm=(1, 0)), [((32, 32), None, True, 4)]),
    ("turned halves", kernel("transpose", (HALF, (B, 64)), perm=(1, 0)),
     [((64, 64), None, True, 8)]),
    ("rows that data chooses", kernel("gather", (HALF, (T, 384)), (INT64, (B, S)), axis=0),
     [((8, 128), None, True, 4)]),
    ("long rows", softmax((B, 768), 1), [((1, 1024), 1, True, 4)]),
    ("short rows", softmax((B, 12), 1), [((64, 16), 1, True, 4)]),
    ("three short rows", softmax((3, 12), 1), [((4, 16), 1, True, 1)]),
    ("the longest rows", softmax((B, 8192), 1), [((1, 8192), 1, True, 16)]),
    ("longer rows", softmax((B, 8193), 1), [((1, 4096), 1, False, 16)]),
    ("rows of any length", softmax((B, S), 1),
     [((16, 64), 1, True, 4), ((4, 256), 1, True, 4), ((1, 2048), 1, True, 8),
      ((1, 4096), 1, False, 16)]),
    ("columns", softmax((B, S, 768), 1), [((32, 32), 0, False, 4)]),
    ("halves of columns", total((B, S, 768), 1, dtype=HALF), [((32, 64), 0, False, 8)]),
    ("columns of 9", total((B, 9, 768), 1), [((16, 64), 0, True, 4)]),
    ("narrow columns", total((B, S, 3), 1), [((32, 32), 0, False, 4)]),
    ("all", total((B, S), 0, 1), [((1, 64), 1, True, 1), ((1, 256), 1, True, 1),
                                  ((1, 2048), 1, True, 8), ((1, 4096), 1, False, 16)]),
    ("no elements", total((B, 0), 1), [((1, 4096), 1, False, 16)]),
    ("sums so far", kernel("cumulative_sum", (FLOAT32, (B, S)), axis=1, exclusive=False,
                           reverse=False),
     [((16, 64), 1, False, 4), ((4, 256), 1, False, 4), ((1, 2048), 1, False, 8)]),
    ("integers", kernel("matmul", (INT64, (B, S)), (INT64, (S, T))), [((32, 32), 0, False, 4)]),
    ("of doubles", total((B, S), 0, dtype=FLOAT64), [((32, 32), 0, False, 4)]),
)  # fmt: skip


@pytest.mark.parametrize(("what", "made", "expected"), TABLE, ids=[t[0] for t in TABLE])
def test_blocks(what: str, made: Kernel, expected: Any) -> None:
    found = [(s.block, s.reduction, s.whole, s.warps) for s in schedules_of(made, BLOCK_SIZES)]
    assert found == expected


@pytest.mark.parametrize("made", [t[1] for t in TABLE], ids=[t[0] for t in TABLE])
def test_wide_warps_have_the_same_threads(made: Kernel) -> None:
    for narrow, wide in zip(
        schedules_of(made, BLOCK_SIZES, 32), schedules_of(made, BLOCK_SIZES, 64), strict=True
    ):
        assert replace(wide, warps=narrow.warps) == narrow
        assert wide.warps == max(narrow.warps // 2, 1)


SCATTERS: tuple[tuple[str, Kernel, tuple[int, ...]], ...] = (
    # What, its kernel, axes that are walked one after the other.
    ("rows by data", scatter(0, (B, S), (T, S)), (0,)),
    ("within rows", scatter(1, (B, S), (B, T)), (1,)),
    ("fewer columns than there are", scatter(0, (B, 8), (T, 5)), (0,)),
    ("more columns than there are", scatter(0, (B, 4), (T, 5)), (0, 1)),
    ("columns of who knows where", scatter(0, (B, S), (T, B)), (0, 1)),
    ("elements", kernel("scatter_nd", (FLOAT32, (B,)), (INT64, (T, 1)), (FLOAT32, (T,)),
                        kind="none"), (0,)),
    ("rows of pairs of indices", kernel("scatter_nd", (FLOAT32, (B, S, 16)), (INT64, (T, 2)),
                                        (FLOAT32, (T, 16)), kind="add"), (0,)),
)  # fmt: skip


@pytest.mark.parametrize(("what", "made", "serial"), SCATTERS, ids=[t[0] for t in SCATTERS])
def test_elements_that_may_meet_follow_each_other(
    what: str, made: Kernel, serial: tuple[int, ...]
) -> None:
    (schedule,) = schedules_of(made, BLOCK_SIZES)
    assert schedule.serial == serial


@settings(max_examples=200)
@given(applications())
def test_every_axis_is_somewhere_once(application: tuple[Nest, tuple[TensorType, ...]]) -> None:
    nest, results = application
    made = kernel_of(nest, contiguous(results))
    for schedule in schedules_of(made, BLOCK_SIZES):
        rows, columns = schedule.axes
        axes = (*rows, *columns, *schedule.singles, *schedule.serial)
        assert sorted(axes) == list(range(len(made.axes)))
        assert all(b & (b - 1) == 0 for b in schedule.block)
        assert 1 <= schedule.warps <= BLOCK_SIZES.max_warps
        elements = math.prod(evaluate(n, {}) for n in made.axes)
        assert evaluate(schedule.lanes(made), {}) >= elements
        if schedule.reduction is not None:
            assert sorted(schedule.axes[schedule.reduction]) == list(
                range(len(made.kept), len(made.axes))
            )


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0), (1, 0), (64, 0), (65, 1), (256, 1), (257, 2), (2048, 2), (2049, 3), (10**6, 3)],
)
def test_rows_are_held_by_the_shortest_block(length: int, expected: int) -> None:
    made = softmax((B, S), 1)
    assert best(made, {"B": 1024, "S": length}) == expected


@pytest.mark.parametrize(("length", "expected"), [(1, 1), (32, 1), (100, 1), (1024, 0), (5000, 0)])
def test_short_rows_share_a_block(length: int, expected: int) -> None:
    made = kernel("add", (FLOAT32, (B, S)), (FLOAT32, (S,)))
    assert best(made, {"B": 1024, "S": length}) == expected


def best(made: Kernel, bindings: dict[str, int]) -> int:
    schedules = schedules_of(made, BLOCK_SIZES)
    lanes = [evaluate(s.lanes(made), bindings) for s in schedules]
    return best_schedule(schedules, lanes, evaluate(reduced_elements(made), bindings), BLOCK_SIZES)


def test_tiles_are_blocks_of_the_kept_axes() -> None:
    made = softmax((B, S, 768), 1)
    (schedule,) = schedules_of(made, BLOCK_SIZES)
    assert evaluate(schedule.tiles(made), {"B": 3, "S": 1000}) == 3 * 24
    flat = kernel("negative", (FLOAT32, (B,)))
    (schedule,) = schedules_of(flat, BLOCK_SIZES)
    for elements, tiles in ((0, 0), (1, 1), (1024, 1), (1025, 2)):
        assert evaluate(schedule.tiles(flat), {"B": elements}) == tiles
