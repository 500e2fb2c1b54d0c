"""What each operator keeps of what is known of padding; see `graph.padding`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import Dim, Symbolic, minimum, product
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.ir import Node, Value
from ftuner.graph.operators import OPERATORS

HIDDEN = -1e4
"""Scores that are at least as low have no weight in a softmax. Derived: exp(-1e4 + x) is zero in
float32 for all x below 9,896; it is what BERT's graphs hide tokens with."""
LOWEST = -1e9
"""Elements that are at least as low are no maximum; it is what pooling layers hide tokens with."""
POINTWISE = frozenset({*SCALAR_FUNCTIONS, "where", "cast", "rotary"})
"""Operators on elements, with broadcasting."""
Tails = Mapping[int, Any]
"""The constant in the tail of an axis, where one is known."""


class _AtMost(float):
    """A tail whose elements are not known, but are hidden: about this number, or less."""


class NoProofError(Exception):
    """Says why."""


class Following:
    """What is known of the values of a graph so far."""

    def __init__(self, requests: Collection[Dim], length: Dim) -> None:
        self.requests, self._length = requests, length
        self._kinds: dict[Dim, str] = {}
        self.known_numbers: dict[Value, tuple[int, ...]] = {}
        """Values whose elements are their own numbers along some axes, which follow each other
        along the last axis."""
        self.known_tails: dict[Value, Tails] = {}

    def kind(self, extent: Dim) -> str:
        """What an axis counts."""
        if isinstance(extent, int):
            return ""
        found = self._kinds.get(extent)
        if found is None:
            if extent in self.requests:
                found = "requests"
            elif any(extent == product((d, self._length)) for d in self.requests):
                found = "both"
            else:
                found = "positions" if self._is_length(extent) else ""
            self._kinds[extent] = found
        return found

    def is_length(self, extent: Dim) -> bool:
        """Whether an axis counts positions."""
        return self.kind(extent) == "positions"

    def _is_length(self, extent: Dim) -> bool:
        """Whether an axis counts positions: all, or the first ones, as many as there are of what it
        is added to."""
        if extent == self._length:
            return True
        return any(extent == minimum(n, self._length) for n in _bounds(extent))

    def parted(self, extent: Dim) -> tuple[Dim, ...]:
        """The extents of an axis that counts the positions of all requests; else the extent."""
        pairs = ((d, self._length) for d in self.requests)
        return next((pair for pair in pairs if product(pair) == extent), (extent,))

    def numbers(self, value: Value) -> tuple[int, ...]:
        return self.known_numbers.get(value, ())

    def is_numbered(self, value: Value) -> bool:
        """Whether elements of a value are numbers of requests."""
        return any(value.shape[a] in self.requests for a in self.numbers(value))

    def concerns(self, value: Value, axis: int) -> bool:
        """Whether an axis counts requests or positions."""
        return bool(self.kind(value.shape[axis]))

    def expect_apart(self, value: Value, axes: Iterable[int]) -> None:
        """Refuse axes that count requests or positions."""
        if any(self.concerns(value, axis) for axis in axes):
            raise NoProofError("mixes requests or positions")

    def expect_tail(self, value: Value, axis: int, holds: Callable[[Any], bool]) -> None:
        """Refuse an axis that counts requests, or positions whose tail is not as it should be."""
        if not self.concerns(value, axis):
            return
        tail = self.known_tails.get(value, {}).get(axis)
        if value.shape[axis] in self.requests or tail is None or not holds(tail):
            raise NoProofError("mixes requests, or positions that no mask hides")

    def tails(self, value: Value) -> Tails:
        return self.known_tails.get(value, {})

    def tail(self, value: Value, axis: int) -> Any:
        """The constant of a value in the tail of an axis; None if it is not known."""
        if value.constant is not None and value.constant.size == 1 and not value.dtype.on_host:
            return value.constant.reshape(())[()]
        return self.tails(value).get(axis)


def _bounds(extent: Dim) -> list[int]:
    """The numbers that an extent may be the minimum of."""
    if not isinstance(extent, Symbolic) or len(extent.terms) > 1:
        return []
    ((atoms, _),) = extent.terms
    pairs = [(getattr(a, "x", None), getattr(a, "y", None)) for a in atoms]
    return [n for pair in pairs for n in pair if isinstance(n, int)]


def _pointwise(proof: Following, node: Node) -> Tails:
    result = node.outputs[0]
    found: dict[int, Any] = {}
    if node.op == "rotary":
        return found
    for axis, extent in enumerate(result.shape):
        if proof.is_length(extent):
            known = [proof.tail(v, axis - result.rank + v.rank) for v in node.inputs]
            tail = _computed(node, known)
            if tail is not None:
                found[axis] = tail
    return found


def _computed(node: Node, known: Sequence[Any]) -> Any:
    """What a node makes of the constants of its operands, some of which may not be known."""
    op = node.op
    about = any(isinstance(x, _AtMost) for x in known)
    if op == "cast" and about:
        return known[0]
    if op == "where" and known[0] is not None:
        return known[1] if known[0] else known[2]
    if not about and all(x is not None for x in known):
        arrays = [np.asarray(x) for x in known]
        with np.errstate(all="ignore"):
            return np.asarray(OPERATORS[op].reference(*arrays, **node.attributes))[()]
    if op in ("multiply", "logical_and") and any(x is not None and x == 0 for x in known):
        return known[0] if known[1] is None else known[1]
    if op == "subtract" and known[0] is None and known[1] is not None and known[1] >= -HIDDEN:
        return _AtMost(-known[1])
    if op in ("add", "minimum"):
        # An addend that hides a score leaves it hidden.
        return next((_AtMost(x) for x in known if x is not None and x <= HIDDEN), None)
    return None


def _transpose(proof: Following, node: Node) -> Tails:
    tails = proof.tails(node.inputs[0])
    return {to: tails[axis] for to, axis in enumerate(node.attributes["perm"]) if axis in tails}


def _reshape(proof: Following, node: Node) -> Tails:
    value, shape = node.inputs[0], node.outputs[0].shape
    moved = moved_axes(proof, value, shape)
    apart = [n for extent in value.shape for n in proof.parted(extent) if proof.kind(n)]
    if len(moved) < len(apart):
        raise NoProofError("counts requests and positions along one axis")
    found = {a: proof.tails(value)[axis] for axis, a in moved if axis in proof.tails(value)}
    return {a: tail for a, tail in found.items() if proof.is_length(shape[a])}


def moved_axes(proof: Following, value: Value, shape: Sequence[Dim]) -> list[tuple[int, int]]:
    """The axes that count requests or positions, and where a reshape leaves each, if it does."""
    sides = [[(n, a) for a, extent in enumerate(x) for n in proof.parted(extent)]
             for x in (value.shape, shape)]  # fmt: skip
    counts = [[product([n for n, _ in side[:i]]) for i in range(len(side))] for side in sides]
    moved = []
    for (extent, axis), before in zip(sides[0], counts[0], strict=True):
        rows = zip(sides[1], counts[1], strict=True)
        # A length that is a minimum is the whole one by a constraint.
        long = proof.is_length(extent)
        at = [
            a
            for (n, a), there in rows
            if (n == extent or (long and proof.is_length(n))) and there == before
        ]
        if proof.kind(extent) and at:
            moved.append((axis, at[0]))
    return moved


def _broadcast(proof: Following, node: Node) -> Tails:
    value, more = node.inputs[0], node.outputs[0].rank - node.inputs[0].rank
    return {axis + more: tail for axis, tail in proof.tails(value).items()}


def _slice(proof: Following, node: Node) -> Tails:
    value, result = node.inputs[0], node.outputs[0]
    kept: dict[int, Any] = {}
    rows = zip(node.attributes["starts"], node.attributes["steps"], result.shape, strict=True)
    for axis, (start, step, extent) in enumerate(rows):
        if not proof.concerns(value, axis):
            if proof.is_length(extent) and (start != 0 or step != 1):
                raise NoProofError("does not begin with the first position")
            continue
        whole = extent == value.shape[axis] and start == 0 and step == 1
        # Each request has a first position.
        first = start == 0 and extent == 1 and proof.is_length(value.shape[axis])
        if not whole and not first:
            raise NoProofError("takes a part of the requests or positions")
        if whole and axis in proof.tails(value):
            kept[axis] = proof.tails(value)[axis]
    return kept


def _gather(proof: Following, node: Node) -> Tails:
    value, indices = node.inputs
    if proof.concerns(value, node.attributes["axis"]):
        first = indices.constant is not None and not indices.constant.any()
        if not first or not proof.is_length(value.shape[node.attributes["axis"]]):
            raise NoProofError("takes positions or requests by their number")
    return {}


def _along(proof: Following, node: Node) -> Tails:
    """An operator that mixes what is along one axis, or, a norm, along the axes from it on."""
    axis = node.attributes["axis"]
    for value in node.inputs if node.op == "concat" else node.inputs[:1]:
        proof.expect_apart(value, range(axis, value.rank) if node.op == "norm" else [axis])
    return {}


def _gather_nd(proof: Following, node: Node) -> Tails:
    """Elements at their own numbers are the value itself: so are masks of `transformers`."""
    value, indices = node.inputs
    numbers, depth = proof.numbers(indices), indices.shape[-1]
    if node.attributes["batch_dims"] or not isinstance(depth, int):
        raise NoProofError("takes elements of each request")
    kinds = [proof.kind(indices.shape[a]) for a in numbers]
    if numbers and kinds == [proof.kind(extent) for extent in value.shape[:depth]]:
        tails = proof.tails(value)
        return {a: tails[i] for i, a in enumerate(numbers) if i in tails}
    if proof.is_numbered(indices):
        raise NoProofError("takes requests by their number")
    proof.expect_apart(value, range(depth))
    return {}


def _iota(proof: Following, node: Node) -> Tails:
    if proof.kind(node.outputs[0].shape[node.attributes["axis"]]) == "both":
        raise NoProofError("numbers the positions of all requests")
    return {}


def _cumulative(proof: Following, node: Node) -> Tails:
    value, axis = node.inputs[0], node.attributes["axis"]
    if node.attributes["reverse"] or not proof.is_length(value.shape[axis]):
        proof.expect_apart(value, [axis])
    return {}


def _matmul(proof: Following, node: Node) -> Tails:
    a, b = node.inputs[:2]
    try:
        proof.expect_tail(a, a.rank - 1, lambda tail: tail == 0)
    except NoProofError:
        if not proof.is_length(a.shape[-1]):
            raise
        proof.expect_tail(b, max(b.rank - 2, 0), lambda tail: tail == 0)
    return {}


def _softmax(proof: Following, node: Node) -> Tails:
    value, axis = node.inputs[0], node.attributes["axis"]
    proof.expect_tail(value, axis, lambda tail: tail <= HIDDEN)
    return {axis: 0.0} if axis in proof.tails(value) and not node.attributes["log"] else {}


def _reduce(proof: Following, node: Node) -> Tails:
    value, kind, axes = node.inputs[0], node.attributes["kind"], node.attributes["axes"]
    hidden: dict[str, Callable[[Any], bool]] = {
        "sum": lambda tail: tail == 0,
        "maximum": lambda tail: tail <= LOWEST,
        "minimum": lambda tail: tail >= -LOWEST,
        "product": lambda tail: tail == 1,
    }
    for axis in axes:
        proof.expect_tail(value, axis, hidden.get(kind, lambda tail: False))
    kept = [axis for axis in range(value.rank) if axis not in axes]
    tails = proof.tails(value) if kind in ("maximum", "minimum") else {}
    return {to: tails[axis] for to, axis in enumerate(kept) if axis in tails}


def _attention(proof: Following, node: Node) -> Tails:
    q, _, v, *_ = node.inputs
    proof.expect_apart(q, [q.rank - 1])
    if not proof.concerns(v, v.rank - 2):
        return {}
    if not proof.is_length(v.shape[-2]):
        raise NoProofError("mixes requests")
    softmax = AttentionSoftmax(**node.attributes)
    causal = softmax.causal
    if isinstance(causal, int) and causal <= 0 and proof.is_length(q.shape[-2]):
        return {}
    masks = node.inputs[3 : len(node.inputs) - softmax.sinks]
    if not masks:
        raise NoProofError("sees positions that no mask hides")
    (mask,) = masks
    hidden = softmax.hidden <= HIDDEN

    def hides(tail: Any) -> bool:
        return hidden and not tail if mask.dtype.kind == "bool" else bool(tail <= HIDDEN)

    if not proof.concerns(mask, mask.rank - 1):
        raise NoProofError("sees positions that no mask hides")
    proof.expect_tail(mask, mask.rank - 1, hides)
    return {}


RULES: Mapping[str, Callable[[Following, Node], Tails]] = {
    "pointwise": _pointwise, "transpose": _transpose, "reshape": _reshape, "broadcast": _broadcast,
    "slice": _slice, "gather": _gather, "gather_elements": _along,
    "gather_nd": _gather_nd, "concat": _along, "iota": _iota,
    "cumulative_sum": _cumulative, "cumulative_product": _cumulative, "matmul": _matmul,
    "norm": _along, "softmax": _softmax, "reduce": _reduce, "attention": _attention,
}  # fmt: skip
"""By operator: raises `NoProofError`, or gives the known tails of the results."""
