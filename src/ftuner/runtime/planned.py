"""What a product or an attention of a program needs to know of its extents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.ukernel import COLUMN
from ftuner.core.weighting import Weighting
from ftuner.errors import ShapeError
from ftuner.planner.plan import Problem
from ftuner.runtime.attention import AttentionRecord, attention_record
from ftuner.runtime.encode import Strides
from ftuner.runtime.operands import a_layout, b_source, batch_axes, unit_columns
from ftuner.runtime.panels import panel_problem
from ftuner.runtime.products import Products, Ready
from ftuner.runtime.strided import StridedArray


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
    source: str
    """Of B, if it is in panels."""
    layouts: tuple[int, ...]
    """Of the step's views, in their order."""


Planned = Ready | AttentionRecord | None
"""None if there is nothing to do."""


def planned(
    task: Task, values: Sequence[int], strided: Sequence[StridedArray], workers: int,
    page_bytes: int,
) -> Planned:  # fmt: skip
    """What a step needs to know of its extents.

    Raises:
        ShapeError: an axis of no elements is reduced.
    """
    arrays = [strided[n] for n in task.layouts]
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
    return _product(task, a, b, c, operands, workers, page_bytes)


def _product(
    task: Task, a: StridedArray, b: StridedArray, c: StridedArray,
    operands: Sequence[StridedArray], workers: int, page_bytes: int,
) -> Ready:  # fmt: skip
    k, n = b.shape[-2:]
    if len(b.shape) == 2:
        # All rows at once.
        rows = math.prod(c.shape[:-1])
        a = StridedArray((rows, k), a.strides[-2:], a.itemsize)
        c = StridedArray((rows, n), c.strides[-2:], c.itemsize)
    layout = a_layout(a, n, page_bytes)
    axes = batch_axes(c.shape[:-2], a, b, c)
    b_k = b_column = 0
    if task.width:
        problem = panel_problem(
            n, k, task.width, c.shape[0], workers, layout.layout, layout.must_pack, task.source
        )
    else:
        b_k = b.strides[-2]
        b_column = b.itemsize if unit_columns(b) else b.strides[-1]
        problem = Problem(
            m=c.shape[-2], n=n, k=k, batch=math.prod(axis[0] for axis in axes),
            a_layout=layout.layout, a_must_pack=layout.must_pack, b_source=b_source(b),
            width=0, b_k_bytes=abs(b_k), workers=workers,
        )  # fmt: skip
    a_row = a.itemsize if layout.layout == COLUMN and not layout.must_pack else a.strides[-2]
    steps = tuple(
        x.strides[-2] if len(x.shape) > 1 and any(e != 1 for e in x.shape[:-1]) else 0
        for x in operands
    )
    strides = Strides(a_row, a.strides[-1], b_k, b_column, c.strides[-2], axes, steps, False)
    return task.products.ready(problem, strides)


def workspace_bytes(found: Planned) -> int:
    if found is None:
        return 0
    if isinstance(found, AttentionRecord):
        return found.workspace_bytes
    return found.encoded.workspace_bytes
