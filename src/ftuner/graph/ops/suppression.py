"""Non-maximum suppression: the boxes with the highest scores that do not overlap much."""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dim import minimum, symbol
from ftuner.core.dtype import DTYPES, INT64
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import Attributes, Operator, Require, Types

COORDINATES = 4
COLUMNS = 3
"""Image, label and box."""
BLOCK = 128
"""Boxes that are compared with as many others at once. The matrices of a block, 64 KiB each, stay
in the L2 cache, and NumPy's overhead for each call is paid once for 16384 pairs."""


def _infer_suppress(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    scores, boxes = types
    what = f"suppression of {scores} with {boxes}"
    if scores.dtype.name not in DTYPES or scores.dtype != boxes.dtype:
        raise GraphError(what)
    if scores.rank != 3 or boxes.rank != 3:
        raise ShapeError(f"{what}: expected (images, labels, boxes) and (images, boxes, 4)")
    images, _, count = scores.shape
    for have, wanted in zip(boxes.shape, (images, count, COORDINATES), strict=True):
        require(have, wanted, what)
    limit = minimum(max(attributes["limit"], 0), count)
    return (TensorType(INT64, (*scores.shape[:2], 1 + limit, COLUMNS)),)


def _reference_suppress(
    scores: Any, boxes: Any, centred: bool, iou_threshold: float, score_threshold: float | None,
    limit: int,
) -> Any:  # fmt: skip
    limit = min(max(limit, 0), scores.shape[2])
    found = np.full((*scores.shape[:2], 1 + limit, COLUMNS), -1, np.int64)
    for image, label in np.ndindex(scores.shape[:2]):
        corners = _corners(boxes[image], centred)
        kept = _kept(scores[image, label], corners, iou_threshold, score_threshold, limit)
        rows = [(len(kept),) * COLUMNS, *((image, label, box) for box in kept)]
        found[image, label, : len(rows)] = rows
    return found


@np.errstate(all="ignore")
def _corners(boxes: Array, centred: bool) -> Array:
    """The lowest and the highest corner of boxes, by columns."""
    first, second = boxes[:, :2].T, boxes[:, 2:].T
    if centred:
        half = second * boxes.dtype.type(0.5)
        return np.concatenate([first - half, first + half])
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)])


def _infer_kept(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (rows,) = types
    if rows.dtype != INT64 or rows.rank != 4 or rows.shape[3] != COLUMNS:
        raise GraphError(f"kept_boxes of {rows}; expected what suppress gives")
    return (TensorType(INT64, (symbol(attributes["count"]), COLUMNS)),)


def _reference_kept(rows: Any, count: str) -> Any:
    if len(rows) == rows.shape[1] == 1:
        return rows[0, 0, 1 : 1 + rows[0, 0, 0, 0]].copy()
    return rows[:, :, 1:][np.arange(rows.shape[2] - 1) < rows[:, :, 0, :1]]


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    return _infer_kept(_infer_suppress(types, attributes, require), attributes, require)


def _reference(
    scores: Any, boxes: Any, centred: bool, iou_threshold: float, score_threshold: float | None,
    limit: int, count: str,
) -> Any:  # fmt: skip
    kept = _reference_suppress(scores, boxes, centred, iou_threshold, score_threshold, limit)
    return _reference_kept(kept, count)


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


OPERATORS = (
    Operator("non_max_suppression", _infer, _reference),
    Operator("suppress", _infer_suppress, _reference_suppress),
    Operator("kept_boxes", _infer_kept, _reference_kept, plain=True),
)
"""`non_max_suppression` takes scores, (images, labels, boxes), and boxes, (images, boxes, 4): two
opposite corners of each or, if `centred`, its centre and its extents. The result has a row of
image, label and box for each box that is kept, by image and label, the highest score first. A box
is kept unless its intersection over union with one of the same label that is kept is above
`iou_threshold`; `limit` is the most boxes of a label. The attribute `count` names the symbol of
their number. NaN is below all scores.

`suppress` gives (images, labels, 1 + limit, 3) instead: for each label their number, the rows, and
-1 after the last one. `kept_boxes` makes of it what `non_max_suppression` gives."""
