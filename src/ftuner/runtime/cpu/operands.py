"""Layouts of operands: from NumPy shapes and strides to a problem and its strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ftuner.core.cpu.tile import COLUMN, ROW
from ftuner.core.product import ProductTypes, product_types
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import panel_problem
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.shapes.layout import StridedArray
from ftuner.ukernels.cpu.library import BSource, Operands

if TYPE_CHECKING:
    from ftuner.core.dim import Dim
    from ftuner.graph.buffers import View
    from ftuner.schedules.product.step import ProductStep


class MatrixLayout(NamedTuple):
    """The A of a product: which layout its uKernels read, and whether they need it packed."""

    layout: str
    must_pack: bool


def a_layout(array: Array | StridedArray, columns: int, hardware: CpuHardware) -> MatrixLayout:
    """How uKernels read `array[..., m, k]` for a product of `columns` columns.

    A column layout whose k steps are a page or more apart is packed where it is read more than a
    few times: in place, every step would access another page for every panel.
    """
    m, k = array.shape[-2:]
    row_stride, k_stride = array.strides[-2:]
    size = array.itemsize
    layout = _layout_of_a(k_stride == size, k == 1)
    if layout == ROW:
        return MatrixLayout(ROW, False)
    if row_stride == size or m == 1:
        # With one row, any stride along k is a column layout.
        far = abs(k_stride) >= hardware.page_bytes
        return MatrixLayout(COLUMN, far and columns >= hardware.tuning.columns_worth_packing)
    return MatrixLayout(COLUMN, True)


def _layout_of_a(along_k: bool, one_step: bool) -> str:
    return ROW if along_k or one_step else COLUMN


def unit_columns(array: Array | StridedArray) -> bool:
    """Whether the last axis is contiguous, as C and a B read in place must be."""
    return array.strides[-1] == array.itemsize or array.shape[-1] == 1


BatchAxes = tuple[tuple[int, int, int, int], ...]


def batch_axes(
    shape: tuple[int, ...],
    a: Array | StridedArray,
    b: Array | StridedArray,
    c: Array | StridedArray,
) -> BatchAxes:
    """The batch axes of a product, last first, neighbours merged where all operands allow it.

    `shape` is the broadcast batch shape; `c` has it, `a` and `b` broadcast to it (stride 0).
    """
    strides = []
    for array in (a, b, c):
        own = array.shape[:-2]
        missing = len(shape) - len(own)
        steps = [0] * missing + [
            0 if extent == 1 and full != 1 else stride
            for extent, full, stride in zip(own, shape[missing:], array.strides[:-2], strict=True)
        ]
        strides.append(steps)
    axes: list[tuple[int, int, int, int]] = []
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        if extent == 1:
            continue
        here = (strides[0][axis], strides[1][axis], strides[2][axis])
        if axes:
            inner = axes[-1]
            if all(h == i * inner[0] for h, i in zip(here, inner[1:], strict=True)):
                axes[-1] = (inner[0] * extent, *inner[1:])
                continue
        axes.append((extent, *here))
    return tuple(axes)


def b_source(b: Array | StridedArray) -> BSource:
    """Layouts of a B that is not packed."""
    size = b.itemsize
    return _source_of_b(b.strides[-2] == size, b.strides[-1] == size, b.shape[-1] == 1)


def _source_of_b(along_k: bool, along_n: bool, one_column: bool) -> BSource:
    in_rows = along_n or one_column
    if along_k and (one_column or not in_rows):
        return "columns"
    return "rows" if in_rows else "other"


def step_types(step: ProductStep) -> ProductTypes:
    """The dtypes of a step, which adds up in that of its result, or rounds sums to it."""
    return product_types(*(view.layout.dtype for view in (step.a, step.b, step.c)))


def step_operands(step: ProductStep) -> Operands:
    """The layouts that A and B of a step may have: what `a_layout` and `b_source` return for them
    at any extents of the graph."""
    (k, a_k), (n, b_n) = ((v.shape[-1], v.layout.strides[-1]) for v in (step.a, step.b))
    layouts = [_layout_of_a(*known) for known in product(_is(a_k, 1), _is(k, 1))]
    a_layouts = tuple(dict.fromkeys(layouts))
    if step.by_weight:
        return Operands(a_layouts, ("panels",))
    b_k = step.b.layout.strides[-2]
    sources = [_source_of_b(*known) for known in product(_is(b_k, 1), _is(b_n, 1), _is(n, 1))]
    return Operands(a_layouts, tuple(dict.fromkeys(sources)))


def _is(x: Dim, value: int) -> tuple[bool, ...]:
    """Whether a dim equals a number; both answers if only run time decides."""
    return (x == value,) if isinstance(x, int) else (True, False)


ProblemOf = Callable[
    [StridedArray, StridedArray, StridedArray, Sequence[StridedArray], int, int, CpuHardware],
    tuple[Problem, Strides],
]
"""A function with the arguments of `step_problem`."""


def step_problem(
    a: Array | StridedArray, b: Array | StridedArray, c: Array | StridedArray,
    operands: Sequence[StridedArray], width: int, workers: int, hardware: CpuHardware,
    accumulate: bool = False,
) -> tuple[Problem, Strides]:  # fmt: skip
    """The problem of a step of a program, or of a call, and the strides of its arrays.

    `width`: vectors of a panel of B if that is a weight in panels, otherwise 0.
    """
    k, n = b.shape[-2:]
    steps = tuple(x.strides[0] for x in operands) if operands else ()
    layout = a_layout(a, n, hardware)
    axes = batch_axes(c.shape[:-2], a, b, c)
    b_k = b_column = 0
    if width:
        problem = panel_problem(n, k, width, c.shape[0], workers, layout.layout, layout.must_pack)
    else:
        b_k = b.strides[-2]
        b_column = b.itemsize if unit_columns(b) else b.strides[-1]
        problem = Problem(
            m=c.shape[-2], n=n, k=k, batch=math.prod(axis[0] for axis in axes),
            a_layout=layout.layout, a_must_pack=layout.must_pack, b_source=b_source(b),
            width=0, b_k_bytes=abs(b_k), workers=workers,
        )  # fmt: skip
    a_row = a.itemsize if layout.layout == COLUMN and not layout.must_pack else a.strides[-2]
    strides = Strides(a_row, a.strides[-1], b_k, b_column, c.strides[-2], axes, steps, accumulate)
    return problem, strides


def row_distances(views: Sequence[View]) -> tuple[int, ...] | None:
    """Bytes between two rows of each matrix; None unless all are known without the extents."""
    distances = (view.layout.strides[0] * view.layout.dtype.itemsize for view in views)
    known = tuple(distance for distance in distances if isinstance(distance, int))
    return known if len(known) == len(views) else None
