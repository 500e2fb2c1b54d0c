"""What a product or an attention of a program needs to know of its extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.attention_weights import Weighting
from ftuner.core.dtype import INT8
from ftuner.graph.steps import ProductStep
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.panel_width import panel_problem
from ftuner.planner.cpu.plan import Problem
from ftuner.runtime.cpu.attention_record import AttentionRecord, attention_record
from ftuner.runtime.cpu.operands import step_problem
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.products import Products, Ready
from ftuner.runtime.shapes.evaluation import Dims, Layouts


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


def by_rows(step: ProductStep, width: int, dims: Dims) -> ByRows | None:
    """What is known of a product of contiguous rows with a weight in panels of `width` before its
    rows are; None if that is not all."""
    views = (step.a, step.c, *step.operands)
    apart = [view.layout.strides[0] * view.layout.dtype.itemsize for view in views]
    known = [distance for distance in apart if isinstance(distance, int)]
    if step.a.layout.strides[-1] != 1 or len(known) < len(apart):
        return None
    a_row, c_row, *operands = known
    k, n = (extent for extent in step.b.shape if isinstance(extent, int))
    problem = panel_problem(n, k, width, 1, 1, int8=step.b.layout.dtype == INT8)
    a_k = step.a.layout.dtype.itemsize
    strides = Strides(a_row, a_k, 0, 0, c_row, (), tuple(operands), False)
    return ByRows(problem, strides, dims.number(step.c.shape[0]))


def planned(
    task: Task, values: Sequence[int], layouts: Layouts, workers: int,
    hardware: CpuHardware,
) -> Planned:  # fmt: skip
    """What a step needs to know of its extents."""
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
        offset = None if task.offset < 0 else values[task.offset]
        return attention_record(
            task.products, q, k, v, mask[0] if mask else None, out, task.weighting, offset,
            workers,
        )  # fmt: skip
    a, b, c, *operands = arrays
    if 0 in c.shape:
        return None
    problem, strides = step_problem(a, b, c, operands, task.width, workers, hardware)
    return task.products.ready(problem, strides)


def workspace_bytes(found: Planned) -> int:
    if found is None:
        return 0
    if isinstance(found, AttentionRecord):
        return found.workspace_bytes
    return found.encoded.workspace_bytes
