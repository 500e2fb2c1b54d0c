"""Products of one tensor with several weights, as one product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.core.dim import Dim
from ftuner.graph.ir import Array, Graph, Node, TensorType, Value
from ftuner.graph.rewriting import Surroundings, constant, made, rewritten


class _Member(NamedTuple):
    """A product, and the addition of a constant row that follows it."""

    product: Node
    bias: tuple[Node, Array] | None

    @property
    def result(self) -> Value:
        return self.product.output if self.bias is None else self.bias[0].output


def merge_products(graph: Graph) -> Graph:
    """Query, key and value of attention, gate and up of a gated layer: weights side by side.

    Each product is followed by the addition of a constant row, or none is. The results become
    slices of one.
    """
    around = Surroundings(graph)
    groups: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "matmul" and _is_weight(node.inputs[1]) and node.inputs[0].constant is None:
            groups.setdefault(node.inputs[0], []).append(node)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for x, nodes in groups.items():
        members = [_Member(n, _bias(around, n)) for n in nodes]
        for group in (
            [m for m in members if m.bias is not None],
            [m for m in members if m.bias is None],
        ):
            if len(group) > 1:
                _merge(x, group, places, same)
    return rewritten(graph, places, same)


def _is_weight(value: Value) -> bool:
    return value.constant is not None and value.rank == 2 and value.dtype.kind == "float"


def _bias(around: Surroundings, node: Node) -> tuple[Node, Array] | None:
    """The addition of a constant row that follows a product."""
    add = around.only_consumer(node.output)
    if add is None or add.op != "add":
        return None
    other = add.inputs[1 if add.inputs[0] is node.output else 0]
    if other.constant is None or other.shape != node.inputs[1].shape[1:]:
        return None
    return add, other.constant


def _merge(
    x: Value, members: list[_Member], places: dict[Node, list[Node]], same: dict[Value, Value]
) -> None:
    first = members[0].product
    name = first.output.name
    weights = [m.product.inputs[1].constant for m in members]
    together = np.concatenate([w for w in weights if w is not None], axis=1)
    weight = constant(f"{name}_weights", first.output.dtype, together)
    type_ = TensorType(first.output.dtype, (*first.output.shape[:-1], together.shape[1]))
    written = [made("matmul", [x, weight], type_, f"{name}_merged")]
    biases = [m.bias[1] for m in members if m.bias is not None]
    if biases:
        bias = constant(f"{name}_biases", first.output.dtype, np.concatenate(biases))
        written.append(made("add", [written[0].output, bias], type_, f"{name}_biased"))
    whole, rank = written[-1].output, len(type_.shape)
    begin: Dim = 0
    for member in members:
        result = member.result
        part = made(
            "slice", [whole], result.type, f"{result.name}_part",
            starts=(0,) * (rank - 1) + (begin,), steps=(1,) * rank, shape=result.shape,
        )  # fmt: skip
        written.append(part)
        same[result] = part.output
        begin = begin + result.shape[-1]
        places[member.product] = []
        if member.bias is not None:
            places[member.bias[0]] = []
    places[first] = written
