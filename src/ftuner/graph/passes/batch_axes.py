"""Merged and split batch axes: those before the rows and columns of matrices."""

from __future__ import annotations

from ftuner.core.dim import Dim, Shape, product
from ftuner.graph.ops.pointwise import broadcast_shape


def parts_of(batch: Shape, finer: Shape) -> tuple[Shape, ...] | None:
    """The axes of `finer` that each axis of `batch` is split into; None if it is not."""
    left = list(finer)
    found: list[Shape] = []
    for extent in batch:
        taken: list[Dim] = [left.pop(0)] if left else []
        while left and product(taken) != extent:
            taken.append(left.pop(0))
        if product(taken) != extent:
            return None
        found.append(tuple(taken))
    if any(n != 1 for n in left):
        return None
    if left and found:
        found[-1] = (*found[-1], *left)
    return tuple(found) if found or not left else None


def view_shape(shape: Shape, batch: Shape, finer: Shape) -> Shape | None:
    """The shape of a tensor that broadcasts to matrices of `batch` axes when these are split into
    `finer` ones; None if it has only some of the elements of an axis, or `batch` is not split."""
    parts = parts_of(batch, finer)
    ahead = len(batch) + 2 - len(shape)
    if parts is None or ahead < 0:
        return None
    if all(n == 1 for n in shape[:-2]):
        return shape if len(shape) <= 2 + len(finer) else None
    given = (*(1,) * ahead, *shape[:-2])
    found: list[Dim] = []
    for extent, whole, split in zip(given, batch, parts, strict=True):
        if extent not in (1, whole):
            return None
        found += split if extent == whole else (1,) * len(split)
    return (*found, *shape[-2:])


def together(x: Shape, y: Shape) -> Shape:
    """The shape that two tensors of a valid graph are broadcast to."""
    return broadcast_shape([x, y], _agreed, "operands of scores")


def _agreed(x: Dim, y: Dim, what: str, or_one: bool = False) -> None:
    """The graph that a pass changes has the constraints of these tensors."""
