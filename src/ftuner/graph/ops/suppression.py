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


def _kept(
    scores: Array, boxes: Array, iou_threshold: float, score_threshold: float | None, limit: int
) -> list[int]:
    """The numbers of the boxes of one label that are kept, the highest score first."""
    order = np.argsort(-scores, kind="stable")
    if score_threshold is not None:
        order = order[scores[order] > score_threshold]
    kept: list[int] = []
    while len(order) and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        overlaps = _overlaps(boxes[:, [best]], boxes[:, order])
        order = order[~(overlaps > iou_threshold)]
    return kept


def _overlaps(x: Array, y: Array) -> Array:
    """Intersection over union of one box and others, (y1, x1, y2, x2) by columns; zero where one of
    them has no area."""
    sides = np.maximum(np.minimum(x[2:], y[2:]) - np.maximum(x[:2], y[:2]), 0)
    shared = sides[0] * sides[1]
    areas = [(z[2] - z[0]) * (z[3] - z[1]) for z in (x, y)]
    union = areas[0] + areas[1] - shared
    sound = (areas[0] > 0) & (areas[1] > 0) & (union > 0)
    found: Array = np.where(sound, shared / np.where(sound, union, 1), 0)
    return found


SUPPRESSION = (Operator("non_max_suppression", _infer, _reference, binds=("count",)),)
"""The operand is (images, labels + 4, boxes): for each label the scores of all boxes, then the
lowest and the highest corner of all boxes, two coordinates each. The result has a row of image,
label and box for each box that is kept, by image and label, the highest score first. A box is kept
unless its intersection over union with one of the same label that is kept is above `iou_threshold`;
`limit` is the most boxes of a label. The attribute `count` names the symbol of their number."""
