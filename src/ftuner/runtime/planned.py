"""What a product or an attention of a program needs to know of its extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ftuner.core.weighting import Weighting
from ftuner.errors import ShapeError
from ftuner.runtime.attention import AttentionRecord, attention_record
from ftuner.runtime.operands import step_problem
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
    problem, strides = step_problem(a, b, c, operands, task.width, workers, page_bytes)
    return task.products.ready(problem, strides)


def workspace_bytes(found: Planned) -> int:
    if found is None:
        return 0
    if isinstance(found, AttentionRecord):
        return found.workspace_bytes
    return found.encoded.workspace_bytes
