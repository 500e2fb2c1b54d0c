"""Has non-maximum suppression computed by a step, and the host only collect what is kept."""

from __future__ import annotations

from ftuner.core.dim import minimum
from ftuner.core.dtype import INT64
from ftuner.graph.ir import Graph, Node, TensorType
from ftuner.graph.ops.suppression import COLUMNS
from ftuner.graph.rewriting import made, rewritten


def suppress_in_steps(graph: Graph) -> Graph:
    """Replace `non_max_suppression` by `suppress`, which has a kernel, and `kept_boxes`."""
    places: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "non_max_suppression":
            attributes = {**node.attributes}
            count = attributes.pop("count")
            scores, result = node.inputs[0], node.output
            limit = minimum(max(attributes["limit"], 0), scores.shape[2])
            type_ = TensorType(INT64, (*scores.shape[:2], 1 + limit, COLUMNS))
            kept = made("suppress", node.inputs, type_, f"{result.name}_kept", **attributes)
            boxes = Node("kept_boxes", kept.outputs, node.outputs, {"count": count})
            places[node] = [kept, boxes]
    return rewritten(graph, places, {})
