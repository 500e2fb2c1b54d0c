"""Non-maximum suppression: the boxes with the highest scores that do not overlap much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import symbol
from ftuner.core.dtype import INT64
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import Attributes, Operator, Require

Types = Sequence[TensorType]
COORDINATES = 4
"""Rows of a box, after those of the scores."""
BLOCK = 128
"""Boxes that are compared with as many others at once. The matrices of a block, 64 KiB each, stay
in the L2 cache, and NumPy's overhead for each call is paid once for 16384 pairs."""


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    what = f"non_max_suppression of {x}"
    if x.dtype.kind != "float":
        raise GraphError(what)
    if x.rank != 3 or (isinstance(x.shape[1], int) and x.shape[1] < COORDINATES):
        raise ShapeError(f"{what}: expected scores and {COORDINATES} coordinates of boxes")
    return (TensorType(INT64, (symbol(attributes["count"]), 3)),)


def _reference(
    x: Any, iou_threshold: float, score_threshold: float | None, limit: int, count: str
) -> Any:
    found = []
    for image, rows in enumerate(x):
        for label, scores in enumerate(rows[:-COORDINATES]):
            kept = _kept(scores, rows[-COORDINATES:], iou_threshold, score_threshold, limit)
            found += [(image, label, box) for box in kept]
    return np.array(found, np.int64).reshape(len(found), 3)


@np.errstate(all="ignore")
def _kept(
    scores: Array, boxes: Array, iou_threshold: float, score_threshold: float | None, limit: int
) -> list[int]:
    """The numbers of the boxes of one label that are kept, the highest score first.

    Candidates are compared with kept boxes block by block, so that NumPy computes whole matrices,
    and nothing is computed of candidates after the last box that is kept. Boxes may be infinite,
    NaN or without area, hence no warnings.
    """
    order = np.arange(len(scores))
    if score_threshold is not None:
        order = order[scores > score_threshold]
    order = order[np.argsort(-scores[order], kind="stable")]
    found = _Boxes(boxes, order)
    limit = max(limit, 0)
    kept = np.empty(min(limit, len(order)), np.int64)
    count = 0
    for first in range(0, len(order), BLOCK):
        left = np.arange(first, min(first + BLOCK, len(order)))
        for start in range(0, count, BLOCK):
            known = kept[start : min(start + BLOCK, count)]
            left = left[~found.overlap(known, left, iou_threshold).any(axis=0)]
        clear = ~found.overlap(left, left, iou_threshold)
        free = np.ones(len(left), np.bool_)
        for number, candidate in enumerate(left):
            if count == len(kept):
                break
            if free[number]:
                kept[count] = candidate
                count += 1
                free &= clear[number]
        if count == limit:
            break
    return [int(box) for box in order[kept[:count]]]


class _Boxes:
    """Boxes in some order, each coordinate contiguous."""

    def __init__(self, boxes: Array, order: Array) -> None:
        """`boxes`: (y1, x1, y2, x2) by columns."""
        self._low, self._high = (
            [np.ascontiguousarray(row[order]) for row in rows] for rows in (boxes[:2], boxes[2:])
        )
        y, x = (high - low for low, high in zip(self._low, self._high, strict=True))
        self._area = y * x

    def overlap(self, x: Array, y: Array, iou_threshold: float) -> Array:
        """Whether the intersection over union of each box of x and each of y is above a threshold.
        It is zero where one of the two has no area."""
        sides = []
        for low, high in zip(self._low, self._high, strict=True):
            side = np.minimum(high[x][:, None], high[y])
            side -= np.maximum(low[x][:, None], low[y])
            sides.append(np.maximum(side, 0, out=side))
        shared = np.multiply(sides[0], sides[1], out=sides[0])
        areas = self._area[x][:, None], self._area[y]
        union = areas[0] + areas[1]
        union -= shared
        found: Array = np.divide(shared, union, out=shared) > iou_threshold
        for positive in (union > 0, areas[0] > 0, areas[1] > 0):
            found &= positive
        return found


SUPPRESSION = (Operator("non_max_suppression", _infer, _reference),)
"""The operand is (images, labels + 4, boxes): for each label the scores of all boxes, then the
lowest and the highest corner of all boxes, two coordinates each. The result has a row of image,
label and box for each box that is kept, by image and label, the highest score first. A box is kept
unless its intersection over union with one of the same label that is kept is above `iou_threshold`;
`limit` is the most boxes of a label. The attribute `count` names the symbol of their number."""
