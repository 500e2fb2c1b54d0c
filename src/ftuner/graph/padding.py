"""Proves from a graph that nothing which is kept depends on the padding of a batch.

Requests of several lengths make a rectangular batch if each is padded at its end; an input, the
mask, is zero there. An axis that counts positions is a *length*, and its elements after the last
one of the request are its *tail*. For each value we show that its elements outside all tails are
those of the request alone. Most operators keep that. A sum over a length keeps it if the tail is
known to be zero, a maximum or a softmax if it is hidden, which masks see to. What the mask makes of
a tail is computed: the constants that an operator gives for the constant zero.

Anything else is no proof: other operators, values that hold the number of positions or of requests,
positions counted from the end. Then a batch runs as it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ftuner.core.dim import Dim, Symbolic, symbols_of
from ftuner.core.symbolic import Symbol
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.padding_rules import POINTWISE, RULES, Following, NoProofError, moved_axes
from ftuner.graph.ragged import Axes, Padding

_UNCOUNTED = ("shape", "node")
"""Attributes that may hold the number of requests or positions: axes of results are checked."""


def proven_padding(graph: Graph) -> Padding | str:
    """How the padding of a batch is left out, or why it is not."""
    furthest = -1, "no input is a mask, of requests by positions"
    for number, value in enumerate(graph.inputs):
        dims = value.shape
        if value.rank != 2 or not all(_is_symbol(d) for d in dims) or dims[0] == dims[1]:
            continue
        if value.dtype.on_host:
            continue  # Text.
        proof = _Proof(number, graph.inputs)
        try:
            return proof.of(graph)
        except NoProofError as error:
            furthest = max(furthest, (proof.done, f"{value.name} as the mask: {error}"))
    return furthest[1]


def _is_symbol(dim: Dim) -> bool:
    if not isinstance(dim, Symbolic):
        return False
    ((atoms, factor), *others) = dim.terms
    return not others and factor == 1 and len(atoms) == 1 and isinstance(atoms[0], Symbol)


class _Proof(Following):
    """Follows the nodes of a graph with one input as the mask."""

    def __init__(self, mask: int, inputs: Sequence[Value]) -> None:
        first, length = inputs[mask].shape
        # Exporters may give the requests of each input a symbol of its own.
        dims = [v.shape[0] for v in inputs if v.rank > 1 and length in v.shape[1:]]
        super().__init__({d for d in (first, *dims) if _is_symbol(d)}, length)
        self._mask = mask
        self._names = {*symbols_of((*self.requests, length))}
        self.done = 0
        """Nodes that are proven."""

    def of(self, graph: Graph) -> Padding:
        """Raises NoProofError."""
        for number, value in enumerate(graph.inputs):
            self._check_shape(value, value.name)
            self.known_tails[value] = {1: 0} if number == self._mask else {}
        for node in graph.nodes:
            name = node.attributes.get("node", node.op)
            counted = [v.dims or () for v in node.inputs]
            counted += [_dims_in(x) for n, x in node.attributes.items() if n not in _UNCOUNTED]
            if any(map(self._is_counted, counted)):
                raise NoProofError(f"{name} computes with the number of requests or positions")
            numbers = self._numbered(node)
            apart = numbers is None and node.op != "gather_nd"
            if apart and any(map(self.is_numbered, node.inputs)):
                raise NoProofError(f"{name} computes with numbers of requests")
            rule = RULES.get("pointwise" if node.op in POINTWISE else node.op)
            if rule is None:
                raise NoProofError(f"nothing is known of {name}")
            for value in node.outputs:
                self._check_shape(value, name)
            try:
                tails = rule(self, node)
            except NoProofError as error:
                raise NoProofError(f"{name} {error}") from None
            self.known_tails |= dict.fromkeys(node.outputs, tails)
            if numbers is not None:
                self.known_numbers[node.output] = numbers
            self.done += 1
        inputs = tuple(self._axes(value) for value in graph.inputs)
        outputs = tuple(self._axes(value) for _, value in graph.outputs)
        for (name, value), axes in zip(graph.outputs, outputs, strict=True):
            whole = [value.shape[a] for a in axes.lengths]
            apart = axes.requests is None or self.is_numbered(value)
            apart |= any(self.kind(extent) == "both" for extent in value.shape)
            if apart or any(extent != self._length for extent in whole):
                raise NoProofError(f"output {name} has no axis of requests, or part of a length")
        return Padding(self._mask, inputs, outputs)

    def _numbered(self, node: Node) -> tuple[int, ...] | None:
        """`_numbers` of the result of a node; None if it has none."""
        if node.op == "iota":
            return (node.attributes["axis"],)
        if node.op == "add":
            # `torch.arange(n) + 0`, where an export has no offset.
            rest = [v for v in node.inputs if v.constant is None or v.constant.any()]
            alone = len(rest) == 1 and rest[0].shape == node.output.shape
            return self.known_numbers.get(rest[0]) if alone else None
        known = [self.known_numbers.get(value) for value in node.inputs]
        found = [axis for axes in known if axes is not None for axis in axes]
        if not known or None in known:
            return None
        value, shape = node.inputs[0], node.outputs[0].shape
        if node.op == "reshape":
            moved = dict(moved_axes(self, value, shape))
            return tuple(moved[a] for a in found) if moved.keys() >= {*found} else None
        if node.op == "broadcast":
            return tuple(a + len(shape) - value.rank for a in found)
        if node.op == "cast" and node.outputs[0].dtype.kind == "int":
            return tuple(found)
        rows = zip(node.inputs, known, strict=True)
        apart = any(axes is None or v.shape[-1] != len(axes) for v, axes in rows)
        last = node.op == "concat" and node.attributes["axis"] == len(shape) - 1
        return tuple(found) if last and not apart else None

    def _is_counted(self, dims: Iterable[Dim]) -> bool:
        return not self._names.isdisjoint(symbols_of(dims))

    def _axes(self, value: Value) -> Axes:
        requests = [a for a, extent in enumerate(value.shape) if extent in self.requests]
        lengths = [a for a, extent in enumerate(value.shape) if self.is_length(extent)]
        return Axes(requests[0] if requests else None, tuple(lengths))

    def _check_shape(self, value: Value, name: str) -> None:
        others = [d for d in value.shape if not self.kind(d)]
        if self._is_counted(others):
            raise NoProofError(f"{name} counts requests and positions along one axis")
        if sum(self.kind(d) in ("requests", "both") for d in value.shape) > 1:
            raise NoProofError(f"{name} compares requests")


def _dims_in(attribute: Any) -> tuple[Dim, ...]:
    """The dims that an attribute is or has."""
    given = attribute if isinstance(attribute, tuple) else (attribute,)
    return tuple(x for x in given if isinstance(x, Symbolic))
