"""What a product or an attention of a program needs to know of its extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.dim import Dim, product
from ftuner.core.weighting import Weighting
from ftuner.errors import ShapeError
from ftuner.graph.buffers import View
from ftuner.graph.steps import ProductStep
from ftuner.planner.plan import Problem
from ftuner.runtime.attention import AttentionRecord, attention_record
from ftuner.runtime.encode import Strides
from ftuner.runtime.extents import Dims, Layouts
from ftuner.runtime.operands import step_problem
from ftuner.runtime.products import Products, Ready
from ftuner.runtime.strided import StridedArray


class ByRows(NamedTuple):
    """All that is planned of a product but its rows and workers."""

    problem: Problem
    strides: Strides
    rows: int
    """The number of the dim that counts them."""


class Task(NamedTuple):
    """A product or attention to be planned."""

    title: str
    products: Products
    weighting: Weighting | None
    """Of attention; None for products."""
    offset: int
    """The number of the dim that says which keys a row of causal attention sees, or -1."""
    width: int
    """Of the panels of a product's weight; 0 if it has none."""
    layouts: tuple[int, ...]
    """Of the step's views, in their order."""
    by_rows: ByRows | None
    """Of a product with a weight, whose arrays lie the same however many rows there are."""


Planned = Ready | AttentionRecord | None
"""None if there is nothing to do."""


def by_rows(step: ProductStep, width: int, dims: Dims, page_bytes: int) -> ByRows | None:
    """What is known of a product with a weight in panels of `width` before its rows are; None if
    its arrays lie otherwise for other rows."""
    a, b, c, *operands = (_matrix(view) for view in step.views)
    if a is None or b is None or c is None or a.strides[-1] != a.itemsize or 0 in b.shape:
        return None
    known = [x for x in operands if x is not None]
    if len(known) < len(operands):
        return None
    problem, strides = step_problem(a, b, c, known, width, 1, page_bytes)
    return ByRows(problem, strides, dims.number(product(step.c.shape[:-1])))


def _matrix(view: View) -> StridedArray | None:
    """A view as rows, if the numbers of its last two axes are known: of rows that are not, two
    stand for all."""
    shape, layout = view.shape, view.layout
    columns, strides = shape[-1], layout.strides[-2:]
    rows: tuple[Dim, ...] = ()
    if len(shape) > 1:
        rows = (1,) if all(n == 1 for n in shape[:-1]) else (shape[-2],)
        rows = tuple(n if isinstance(n, int) and len(shape) == 2 else 2 for n in rows)
    size = layout.dtype.itemsize
    extents = [n for n in (*rows, columns) if isinstance(n, int)]
    steps = [n * size for n in strides if isinstance(n, int)]
    if len(extents) != len(rows) + 1 or len(steps) != len(strides):
        return None
    return StridedArray(tuple(extents), tuple(steps), size)


def planned(
    task: Task, values: Sequence[int], layouts: Layouts, workers: int,
    page_bytes: int,
) -> Planned:  # fmt: skip
    """What a step needs to know of its extents.

    Raises:
        ShapeError: an axis of no elements is reduced.
    """
    if task.by_rows is not None:
        problem, strides, number = task.by_rows
        rows = values[number]
        if not rows:
            return None
        return task.products.ready(problem._replace(m=rows, workers=workers), strides)
    arrays = [layouts.strided(n, values) for n in task.layouts]
    if task.weighting is not None:
        q, k, v, *mask, out = arrays
        if 0 in out.shape:
            return None
        if 0 in v.shape or 0 in q.shape:
            raise ShapeError(f"{task.title}: attention over an axis of no elements")
        offset = None if task.offset < 0 else values[task.offset]
        return attention_record(
            task.products, q, k, v, mask[0] if mask else None, out, task.weighting, offset,
            workers,
        )  # fmt: skip
    a, b, c, *operands = arrays
    if 0 in c.shape:
        return None
    if a.shape[-1] == 0:
        raise ShapeError(f"{task.title}: a product over an axis of no elements")
    problem, strides = step_problem(a, b, c, operands, task.width, workers, page_bytes)
    return task.products.ready(problem, strides)


def workspace_bytes(found: Planned) -> int:
    if found is None:
        return 0
    if isinstance(found, AttentionRecord):
        return found.workspace_bytes
    return found.encoded.workspace_bytes
