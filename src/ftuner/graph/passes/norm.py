"""Recognises layer norms and RMS norms."""

from __future__ import annotations

from ftuner.core.dtype import FLOAT32
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewriting import Surroundings, made, near, reduced, rewritten, scalar, scaled


def recognise_norms(graph: Graph) -> Graph:
    """Replace `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)`, with or without the mean,
    and the scale and shift after it, by one node. Means are over the last axis. The division may be
    a product with the reciprocal of the root."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op == "sqrt":
            found = _normalised(around, node)
            if found is not None:
                end, norm = _with_parameters(around, *found)
                places[end] = [norm]
                same[end.output] = norm.output
    return rewritten(graph, places, same)


def _normalised(around: Surroundings, sqrt: Node) -> tuple[Node, Value, float, bool] | None:
    """The division by a root: its node, x, epsilon, and whether x keeps its mean."""
    lifted = around.producer(sqrt.inputs[0], "add")
    divided = _divided_by(around, sqrt.output)
    if lifted is None or divided is None or divided[1].rank == 0:
        return None
    end, centred = divided
    for variance, other in (lifted.inputs, lifted.inputs[::-1]):
        epsilon = scalar(other)
        squares = _mean_of(around, variance)
        if epsilon is None or squares is None or not _is_square(around, squares, centred):
            continue
        subtract = around.producer(centred, "subtract")
        if subtract is not None and _mean_of(around, subtract.inputs[1]) is subtract.inputs[0]:
            return end, subtract.inputs[0], epsilon, False
        return end, centred, epsilon, True
    return None


def _divided_by(around: Surroundings, root: Value) -> tuple[Node, Value] | None:
    """The only node that divides a tensor by a root, or multiplies it by the reciprocal of the
    root, and the tensor."""
    divide = around.only_consumer(root)
    if divide is None or divide.op != "divide" or divide.inputs[1] is not root:
        return None
    if scalar(divide.inputs[0]) != 1:
        return divide, divide.inputs[0]
    product = around.only_consumer(divide.output)
    if product is None or product.op != "multiply":
        return None
    return product, product.inputs[1 if product.inputs[0] is divide.output else 0]


def _mean_of(around: Surroundings, value: Value) -> Value | None:
    """The tensor whose mean over the last axis, kept with extent 1, is the value."""
    total, factor = scaled(around, value)
    found = reduced(around, total, "sum")
    if found is None:
        return None
    x, axes = found
    if axes != (x.rank - 1,):
        return None
    count = x.shape[-1]
    return x if isinstance(count, int) and near(factor, 1.0 / count, FLOAT32) else None


def _is_square(around: Surroundings, value: Value, base: Value) -> bool:
    power = around.producer(value, "power")
    if power is not None:
        return power.inputs[0] is base and near(scalar(power.inputs[1]), 2.0, FLOAT32)
    product = around.producer(value, "multiply")
    return product is not None and all(v is base for v in product.inputs)


def _with_parameters(
    around: Surroundings, divide: Node, x: Value, epsilon: float, rms: bool
) -> tuple[Node, Node]:
    """The last node of the norm, and the node that replaces it."""
    end = divide
    parameters: list[Value] = []
    for op in ("multiply", "add"):
        following = around.only_consumer(end.output)
        if following is None or following.op != op:
            break
        other = following.inputs[1 if following.inputs[0] is end.output else 0]
        if other.shape != x.shape[-1:] or following.output.type != x.type:
            break
        parameters.append(other)
        end = following
    return end, made(
        "norm", [x, *parameters], x.type, f"{end.output.name}_norm",
        axis=x.rank - 1, epsilon=epsilon, rms=rms,
    )  # fmt: skip
