"""Products of one tensor with several weights, as one product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.core.dim import Dim
from ftuner.graph.ir import Array, Graph, Node, TensorType, Value
from ftuner.graph.rewriting import Surroundings, constant, made, rewritten


class _Member(NamedTuple):
    """A product, and what of a constant row follows it: a multiplication, an addition."""

    product: Node
    scale: tuple[Node, Array] | None
    bias: tuple[Node, Array] | None

    @property
    def result(self) -> Value:
        last = self.bias or self.scale
        return self.product.output if last is None else last[0].output

    @property
    def form(self) -> tuple[str, str, bool, bool]:
        """What the members of a group have in common."""
        weight = self.product.inputs[1]
        return self.product.op, weight.dtype.name, self.scale is None, self.bias is None


def merge_products(graph: Graph) -> Graph:
    """Query, key and value of attention, gate and up of a gated layer: weights side by side.

    Each product is followed by a multiplication with a constant row, by the addition of one, by
    both, or by neither. The results become slices of one.
    """
    around = Surroundings(graph)
    members: dict[Value, list[_Member]] = {}
    for node in graph.nodes:
        if _has_weight(node) and node.inputs[0].constant is None:
            members.setdefault(node.inputs[0], []).append(_member(around, node))
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for x, found in members.items():
        groups: dict[tuple[str, str, bool, bool], list[_Member]] = {}
        for member in found:
            groups.setdefault(member.form, []).append(member)
        for group in groups.values():
            if len(group) > 1:
                _merge(x, group, places, same)
    return rewritten(graph, places, same)


def _has_weight(node: Node) -> bool:
    if node.op == "int8_matmul":
        return True
    if node.op != "matmul":
        return False
    weight = node.inputs[1]
    return weight.constant is not None and weight.rank == 2 and weight.dtype.kind == "float"


def _member(around: Surroundings, product: Node) -> _Member:
    scale = _row(around, product.output, product, "multiply")
    last = product if scale is None else scale[0]
    return _Member(product, scale, _row(around, last.output, product, "add"))


def _row(around: Surroundings, value: Value, product: Node, op: str) -> tuple[Node, Array] | None:
    """The node that joins a constant row to the result of a product."""
    node = around.only_consumer(value)
    if node is None or node.op != op:
        return None
    other = node.inputs[1 if node.inputs[0] is value else 0]
    if other.constant is None or other.shape != product.inputs[1].shape[1:]:
        return None
    return node, other.constant


def _merge(
    x: Value, members: list[_Member], places: dict[Node, list[Node]], same: dict[Value, Value]
) -> None:
    first = members[0].product
    name = first.output.name
    weights = [m.product.inputs[1].constant for m in members]
    together = np.concatenate([w for w in weights if w is not None], axis=1)
    weight = constant(f"{name}_weights", first.inputs[1].dtype, together)
    type_ = TensorType(first.output.dtype, (*first.output.shape[:-1], together.shape[1]))
    written = [made(first.op, [x, weight], type_, f"{name}_merged")]
    for op, rows in (
        ("multiply", [m.scale for m in members]), ("add", [m.bias for m in members])
    ):  # fmt: skip
        arrays = [row[1] for row in rows if row is not None]
        if arrays:
            joined = constant(f"{name}_{op}", type_.dtype, np.concatenate(arrays))
            written.append(made(op, [written[-1].output, joined], type_, f"{name}_with_{op}"))
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
        for row in (member.scale, member.bias):
            if row is not None:
                places[row[0]] = []
    places[first] = written
