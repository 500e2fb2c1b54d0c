"""Operators of detection: which boxes are kept."""

from __future__ import annotations

from ftuner.core.dtype import HALF_DTYPES
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply
from ftuner.graph.checks import malformed, require
from ftuner.graph.ir import Value


def _number(context: Context, value: Value | None, what: str) -> float | None:
    """The element, known now, of a tensor of one element; None if it is left out."""
    if value is None or value.shape == (0,):
        return None
    array = context.array_of(value, what)
    if array.size != 1 or array.dtype.kind not in "iuf":
        raise malformed(f"{what} is {value.type}; expected one number")
    return float(array.item())


@onnx("NonMaxSuppression")
def _non_max_suppression(
    context: Context, node: NodeView, boxes: Value, scores: Value, most: Value | None,
    threshold: Value | None, score: Value | None, center_point_box: bool = False,
) -> Value:  # fmt: skip
    what = f"boxes {boxes.type} with scores {scores.type}"
    if boxes.rank != 3 or scores.rank != 3 or boxes.dtype.name in HALF_DTYPES:
        raise malformed(what)
    for have, wanted in ((boxes.shape[2], 4), (boxes.shape[0], scores.shape[0]),
                         (boxes.shape[1], scores.shape[2])):  # fmt: skip
        require(have, wanted, what)
    limit = _number(context, most, "the most boxes of a class")
    overlap = _number(context, threshold, "the threshold of overlaps")
    least = _number(context, score, "the threshold of scores")
    count = context.names.fresh(f"{next(iter(node.record.outputs), 'boxes')}_count")
    return apply(
        "non_max_suppression", scores, boxes, centred=center_point_box, limit=int(limit or 0),
        iou_threshold=overlap or 0.0, score_threshold=least, count=str(count),
    )  # fmt: skip
