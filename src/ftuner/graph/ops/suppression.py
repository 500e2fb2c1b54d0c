"""Non-maximum suppression: the boxes with the highest scores that do not overlap much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.core.dim import minimum, symbol
from ftuner.core.dtype import DTYPES, INT64
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.buffers import View
from ftuner.graph.ir import Array, Node, TensorType
from ftuner.graph.operator import Attributes, Operator, Require
from ftuner.graph.placement import Placement
from ftuner.graph.suppression_step import LANES, SuppressionStep

Types = Sequence[TensorType]
COORDINATES = 4
BLOCK = 128
"""Boxes that are compared with as many others at once. The matrices of a block, 64 KiB each, stay
in the L2 cache, and NumPy's overhead for each call is paid once for 16384 pairs."""


def _infer_suppress(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    scores, corners = types
    what = f"suppression of {scores} with {corners}"
    if scores.dtype.name not in DTYPES or scores.dtype != corners.dtype:
        raise GraphError(what)
    if scores.rank != 3 or corners.rank != 3:
        raise ShapeError(f"{what}: expected (images, labels, boxes) and (images, 4, boxes)")
    images, _, boxes = scores.shape
    for have, wanted in zip(corners.shape, (images, COORDINATES, boxes), strict=True):
        require(have, wanted, what)
    limit = minimum(max(attributes["limit"], 0), boxes)
    return (TensorType(INT64, (*scores.shape[:2], limit)),)


def _reference_suppress(
    scores: Any, corners: Any, iou_threshold: float, score_threshold: float | None, limit: int
) -> Any:
    limit = min(max(limit, 0), scores.shape[2])
    found = np.full((*scores.shape[:2], limit), -1, np.int64)
    for image, label in np.ndindex(scores.shape[:2]):
        kept = _kept(scores[image, label], corners[image], iou_threshold, score_threshold, limit)
        found[image, label, : len(kept)] = kept
    return found


def _lower_suppress(node: Node, placement: Placement) -> list[View] | None:
    scores, corners = node.inputs
    dtype = scores.dtype
    place = placement.alone(node.output)
    images, labels, boxes = scores.shape
    limit = node.output.shape[2]
    # A key has twice the bits of a score.
    keys = TensorType(dtype, (images, labels, boxes, 2))
    kept = TensorType(dtype, (images, labels, COORDINATES + 1, limit + LANES))
    overlap, least = node.attributes["iou_threshold"], node.attributes["score_threshold"]
    bits = np.array([overlap, least or 0.0], dtype.name).view(f"int{dtype.bits}")
    placement.add(
        SuppressionStep(
            "suppress", placement.contiguous(scores), placement.contiguous(corners), place.buffer,
            placement.apart(keys).buffer, placement.apart(kept).buffer, limit,
            (int(bits[0]), int(bits[1]), int(least is not None)),
        )
    )  # fmt: skip
    return [place]


def _infer_kept(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    if x.dtype != INT64 or x.rank != 3:
        raise GraphError(f"kept_boxes of {x}; expected what suppress gives")
    return (TensorType(INT64, (symbol(attributes["count"]), 3)),)


def _reference_kept(kept: Any, count: str) -> Any:
    _, labels, limit = kept.shape
    boxes = kept.ravel()
    (places,) = (boxes >= 0).nonzero()
    found = np.zeros((len(places), 3), np.int64)
    if len(kept) * labels > 1:
        rows = places // limit
        found[:, 0], found[:, 1] = rows // labels, rows % labels
    found[:, 2] = boxes[places]
    return found


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    return _infer_kept(_infer_suppress(types, attributes, require), attributes, require)


def _reference(
    scores: Any, corners: Any, iou_threshold: float, score_threshold: float | None, limit: int,
    count: str,
) -> Any:  # fmt: skip
    kept = _reference_suppress(scores, corners, iou_threshold, score_threshold, limit)
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


SUPPRESSION = (
    Operator("non_max_suppression", _infer, _reference),
    Operator("suppress", _infer_suppress, _reference_suppress, lower=_lower_suppress),
    Operator("kept_boxes", _infer_kept, _reference_kept),
)
"""`non_max_suppression` takes scores, (images, labels, boxes), and corners, (images, 4, boxes): the
lowest and the highest one of each box, two coordinates each. The result has a row of image, label
and box for each box that is kept, by image and label, the highest score first. A box is kept unless
its intersection over union with one of the same label that is kept is above `iou_threshold`;
`limit` is the most boxes of a label. The attribute `count` names the symbol of their number. NaN is
below all scores.

`suppress` gives (images, labels, limit) instead: the numbers of the boxes that are kept, and -1
after the last one. `kept_boxes` makes of it what `non_max_suppression` gives."""
