"""Half precision on a GPU: which values memory holds in another dtype than they are computed in.

A float32 graph is computed in float32: loads widen and stores round. Only values in memory have
half the bits. Products and attention multiply what memory holds and sum in float32. The graph does
not change, so passes know one kind of graph, and a fused expression is rounded once, at its end.

Held in half precision are *activations*, which are computed from the graph's float inputs, from
tables or by products, and the weights and tables that these read. Other values are small, or would
be spoiled, and stay in float32:

- values computed from integers alone, such as positions (bfloat16 counts to 256), and masks;
- results of reductions, such as the sum of squares of a row, which may overflow float16;
- operands of cosines, sines and rotary positions, and the masks of attention;
- values that meet a constant of the model beyond the range of the type, such as the least finite
  float32 that masks scores: as an infinity it would make NaN of rows that are masked whole. Large
  numbers in the inputs are the caller's concern.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from ftuner.core.dtype import FLOAT32, DType
from ftuner.graph.arrays import largest_finite
from ftuner.graph.ir import Array, Graph, Node, Value, producers
from ftuner.graph.operator import Numerics
from ftuner.graph.operators import OPERATORS

_PASSED_ON = (Numerics.PLAIN, Numerics.LIMIT, Numerics.LOOK_UP)
"""Where large elements of operands may be elements of results."""
_UNMOVED = (Numerics.LIMIT, Numerics.PERIODIC)
"""Where a large constant does not make results large."""


class _Kind(IntEnum):
    """What a float32 is computed from; of several kinds the largest counts."""

    EXACT = 0
    """Integers, shapes and constants."""
    STATISTIC = 1
    """A reduction of activations."""
    ACTIVATION = 2


def _numerics(node: Node) -> Numerics:
    return OPERATORS[node.op].numerics_of(node.attributes)


def held_types(graph: Graph, dtype: DType | None) -> Mapping[Value, DType]:
    """The dtype that memory holds a value in, for each value that is not held in its own dtype.

    `dtype`: a half-precision dtype for activations, or None to hold them as they are; see the
    module. Weights of 8-bit integers are held in the dtype that they are multiplied in.
    """
    held: dict[Value, DType] = {}
    if dtype is not None:
        kept = _delicate(graph) | _huge(graph, largest_finite(dtype))
        for value, kind in _kinds(graph).items():
            if kind == _Kind.ACTIVATION and value.dtype == FLOAT32 and value not in kept:
                held[value] = dtype
        held |= dict.fromkeys(_tables(graph, held), dtype)
    for node in graph.nodes:
        widened = OPERATORS[node.op].widened
        if widened is not None:
            held[node.inputs[widened]] = held.get(node.output, node.output.dtype)
    return held


def _kinds(graph: Graph) -> dict[Value, _Kind]:
    """The kind of each float that a node gives. Values of other dtypes are exact."""
    found: dict[Value, _Kind] = {}

    def kind_of(value: Value) -> _Kind:
        if value.dtype.kind != "float" or value.constant is not None:
            return _Kind.EXACT
        # No node gives it, so it is an input.
        return found.get(value, _Kind.ACTIVATION)

    def kind_of_result(node: Node) -> _Kind:
        whole = max(map(kind_of, node.inputs), default=_Kind.EXACT)
        numerics = _numerics(node)
        if numerics == Numerics.REDUCTION:
            return min(whole, _Kind.STATISTIC)
        if numerics == Numerics.PRODUCT:
            return _Kind.EXACT if whole == _Kind.EXACT else _Kind.ACTIVATION
        looked_up = numerics == Numerics.LOOK_UP and _is_table(node.inputs[0])
        return _Kind.ACTIVATION if looked_up else whole

    for node in graph.nodes:
        kind = kind_of_result(node)
        found.update((v, kind) for v in node.outputs if v.dtype.kind == "float")
    return found


def _huge(graph: Graph, largest: float) -> set[Value]:
    """Values that may have finite elements above `largest`, because of the model's constants."""
    found: set[Value] = set()
    for node in graph.nodes:
        numerics = _numerics(node)
        constants = [v.constant for v in node.inputs if v.constant is not None]
        if (numerics in _PASSED_ON and any(v in found for v in node.inputs)) or (
            numerics not in _UNMOVED and any(_beyond(c, largest) for c in constants)
        ):
            found.update(v for v in node.outputs if v.dtype.kind == "float")
    return found


def _beyond(array: Array, largest: float) -> bool:
    """Whether a finite element is larger in magnitude than `largest`."""
    if array.dtype.kind != "f" or not array.size:
        return False
    if max(-array.min(), array.max()) <= largest:
        # All elements are finite: avoid the copy of a large table.
        return False
    finite = array[np.isfinite(array)]
    return bool((np.abs(finite) > largest).any())


def _is_table(value: Value) -> bool:
    return value.constant is not None and value.rank > 1


def _delicate(graph: Graph) -> set[Value]:
    """Values on the way to an operand that rounding would spoil: an angle, a cosine or sine of
    rotary positions, a mask. The way begins at a product, a norm or an input. An angle that a
    product gives is included, because only its remainder modulo a full turn matters."""
    made = producers(graph)
    angles = [
        v for node in graph.nodes if _numerics(node) == Numerics.PERIODIC for v in node.inputs
    ]
    first = [(node, OPERATORS[node.op].exact_from) for node in graph.nodes]
    others = [v for node, at in first if at is not None for v in node.inputs[at:]]
    found: set[Value] = set()
    norms = {Numerics.NORMALISATION}
    for roots, ends in ((angles, norms), (others, norms | {Numerics.PRODUCT})):
        left = list(roots)
        while left:
            value = left.pop()
            node = made.get(value)
            if node is None or value in found or value.dtype.kind != "float":
                continue
            if _numerics(node) in ends:
                continue
            found.add(value)
            if _numerics(node) != Numerics.PRODUCT:
                left.extend(node.inputs)
    return found


def _tables(graph: Graph, held: Mapping[Value, DType]) -> set[Value]:
    """Tables that are read only by look-ups whose results are held."""
    readers: dict[Value, list[bool]] = {}
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if _is_table(value) and value.dtype == FLOAT32 and _numerics(node) != Numerics.PRODUCT:
                looks_up = _numerics(node) == Numerics.LOOK_UP and position == 0
                looks_up = looks_up and node.output in held
                readers.setdefault(value, []).append(looks_up)
    return {value for value, found in readers.items() if all(found)}
