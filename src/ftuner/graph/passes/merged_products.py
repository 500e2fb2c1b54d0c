"""Merges the products of one tensor with several weights into one product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import DType
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Array, Graph, Node, Value, writing_to
from ftuner.graph.rewrite.rule import Rewriting
from ftuner.graph.rewrite.surroundings import Surroundings, constant
from ftuner.graph.sources import note_made

MAX_COPIED_BYTES = 16 << 10
"""Largest constant that several groups may copy: the bias of a layer, but no weight."""

AFFINE = frozenset({"add", "subtract", "multiply", "divide", "negative"})


class _Member(NamedTuple):
    """A product, and the multiplication and addition with constant rows that may follow it."""

    product: Node
    scale: tuple[Node, Array] | None
    bias: tuple[Node, Array] | None

    @property
    def result(self) -> Value:
        last = self.bias or self.scale
        return self.product.output if last is None else last[0].output

    @property
    def form(self) -> tuple[str, str, bool, bool]:
        """The key that members of one group share."""
        weight = self.product.inputs[1]
        return self.product.op, weight.dtype.name, self.scale is None, self.bias is None


def merge_products(graph: Graph) -> Graph:
    """Merge products such as query, key and value of attention, or gate and up of a gated layer.

    Each product may be followed by a multiplication with a constant row and by the addition of one.
    A product with an activation of its own stays alone, because the activation is its epilogue.
    The weights are concatenated, and the results become slices of one result. Groups that read the
    same weights share one concatenation. A weight that different groups read is left alone, because
    each group would copy it.
    """
    around = Surroundings(graph)
    members: dict[tuple[Value, object], list[_Member]] = {}
    for node in graph.nodes:
        if _has_weight(node) and node.inputs[0].constant is None:
            member = _member(around, node)
            members.setdefault((node.inputs[0], member.form), []).append(member)
    found = [(x, _without_activated(around, group)) for (x, _), group in members.items()]
    groups = [(x, group) for x, group in found if len(group) > 1]
    joined = _Joined([_arrays(group) for _, group in groups])
    new = Rewriting(graph)
    with writing_to(new):
        for x, group in groups:
            if all(map(joined.may, _arrays(group))):
                new.name = group[0].product.output.name
                whole = _merged(x, group, joined)
                parts = whole.pieces(whole.rank - 1, [m.result.shape[-1] for m in group])
                new.same.update(zip((m.result for m in group), parts, strict=True))
    return new.rewritten()


class _Joined:
    """Concatenations of constants; each combination is made once."""

    def __init__(self, wanted: Iterable[Sequence[Sequence[Array]]]) -> None:
        self._combinations: dict[int, set[tuple[int, ...]]] = {}
        """The combinations that contain each array, by identity; the graph keeps the arrays
        alive."""
        self._made: dict[tuple[int, ...], Value] = {}
        for arrays in (arrays for kinds in wanted for arrays in kinds):
            key = tuple(map(id, arrays))
            for array in arrays:
                self._combinations.setdefault(id(array), set()).add(key)

    def may(self, arrays: Sequence[Array]) -> bool:
        """Whether no large array is part of another combination."""
        large = (a for a in arrays if a.nbytes > MAX_COPIED_BYTES)
        return all(len(self._combinations[id(array)]) == 1 for array in large)

    def value(self, name: str, dtype: DType, arrays: Sequence[Array]) -> Value:
        """The arrays concatenated along their last axis."""
        key = tuple(map(id, arrays))
        found = self._made.get(key)
        if found is None:
            joined = np.concatenate(arrays, axis=-1)
            note_made(joined, "concatenate", arrays, axis=-1)
            found = self._made[key] = constant(name, dtype, joined)
        return found


def _arrays(members: Sequence[_Member]) -> list[list[Array]]:
    """The weights of a group, the rows that scale its products, and the rows that are added."""
    weights = [m.product.inputs[1].constant for m in members]
    kinds = (
        [w for w in weights if w is not None],
        [m.scale[1] for m in members if m.scale is not None],
        [m.bias[1] for m in members if m.bias is not None],
    )
    return list(kinds)


def _has_weight(node: Node) -> bool:
    if node.op in ("narrow_matmul", "block_matmul"):
        return True
    if node.op != "matmul":
        return False
    weight = node.inputs[1]
    return weight.constant is not None and weight.rank == 2 and weight.dtype.kind == "float"


def _member(around: Surroundings, product: Node) -> _Member:
    scale = _row(around, product.output, product, "multiply")
    last = product if scale is None else scale[0]
    return _Member(product, scale, _row(around, last.output, product, "add"))


def _without_activated(around: Surroundings, members: Sequence[_Member]) -> list[_Member]:
    """The members but those with an activation of their own: all that is read of the result is a
    function that is not affine, and that does not go on to meet another member, as a gate does."""
    ends = {member.result: member for member in members}
    kept = []
    for member in members:
        end, activated = member.result, False
        node = around.only_consumer(end)
        while node is not None and _reads_constants(node, end):
            activated = activated or node.op not in AFFINE
            end = node.output
            node = around.only_consumer(end)
        meets = node is not None and any(ends.get(v, member) is not member for v in node.inputs)
        if not activated or meets:
            kept.append(member)
    return kept


def _reads_constants(node: Node, x: Value) -> bool:
    """Whether a node is a scalar function of x and of constants."""
    others = (v for v in node.inputs if v is not x)
    return node.op in SCALAR_FUNCTIONS and all(v.constant is not None for v in others)


def _row(around: Surroundings, value: Value, product: Node, op: str) -> tuple[Node, Array] | None:
    """The node that joins a constant row to the result of a product."""
    node = around.only_consumer(value)
    if node is None or node.op != op:
        return None
    other = node.inputs[1 if node.inputs[0] is value else 0]
    if other.constant is None or other.shape != product.inputs[1].shape[1:]:
        return None
    return node, other.constant


def _merged(x: Value, members: Sequence[_Member], joined: _Joined) -> Value:
    """The results of a group, side by side."""
    first = members[0].product
    weights, scales, biases = _arrays(members)
    name, dtype = first.output.name, first.output.dtype
    weight = joined.value(f"{name}_weights", first.inputs[1].dtype, weights)
    result = apply(first.op, x, weight, **first.attributes)
    if scales:
        result = result * joined.value(f"{name}_scales", dtype, scales)
    return result + joined.value(f"{name}_biases", dtype, biases) if biases else result
