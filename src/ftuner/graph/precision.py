"""Which values lie in memory in another element type than they are computed in, on a GPU.

A graph of float32 is computed in float32 whatever this says: loads widen and stores round. Only
what is held in memory has half the bits, and products and attention multiply what is held, with
sums in float32. Nothing in the graph changes, so that passes know one kind of graph, and whatever
lowering fuses is rounded once, at its end.

Held in half the bits are *activations*: what comes of the float inputs of a graph, of tables that
are looked up, and of products; and the weights and tables that these read. All else is small, or
does not survive it, and stays in float32:

- what comes of integers alone, such as positions (bfloat16 counts to 256), and masks;
- what reductions leave, such as the sum of squares of a row, which may be beyond what float16 has;
- what cosines, sines and rotary positions are given, and the masks of attention;
- what meets a number that the type is too short for, such as the least finite float32 that hides
  scores: as infinities, rows that are hidden whole would give NaN. These are numbers of the model;
  what is given as an input is the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from ftuner.core.dtype import FLOAT32, INT8, DType
from ftuner.graph.arrays import largest_finite
from ftuner.graph.ir import Array, Graph, Node, Value, producers


class _Kind(IntEnum):
    """What a float32 comes of. What comes of several is of the last kind among them."""

    EXACT = 0
    """Integers, shapes and constants."""
    STATISTIC = 1
    """A reduction of activations."""
    ACTIVATION = 2


_PRODUCTS = frozenset({"matmul", "int8_matmul", "attention"})
_WHOLE = frozenset({"softmax", "norm"})
"""Reductions that give each element anew."""
_REDUCTIONS = frozenset({"reduce", "cumulative_sum"})
_LIMITS = frozenset({"maximum", "minimum"})
"""A limit that no number reaches makes none large."""
_LOOK_UPS = frozenset({"gather", "gather_elements", "gather_nd"})


def held_types(graph: Graph, dtype: DType | None) -> Mapping[Value, DType]:
    """The element types of values where they lie in memory, where these are not their own: see the
    module for those of `dtype`, a float of half the bits, or none. Weights of 8-bit integers are
    held as the numbers that they are multiplied as."""
    held: dict[Value, DType] = {}
    if dtype is not None:
        kept = _delicate(graph) | _huge(graph, largest_finite(dtype))
        for value, kind in _kinds(graph).items():
            if kind == _Kind.ACTIVATION and value.dtype == FLOAT32 and value not in kept:
                held[value] = dtype
        held |= dict.fromkeys(_tables(graph, held), dtype)
    for node in graph.nodes:
        weight = node.inputs[1] if node.op == "int8_matmul" else None
        if weight is not None and weight.dtype == INT8:
            held[weight] = held.get(node.output, node.output.dtype)
    return held


def _kinds(graph: Graph) -> dict[Value, _Kind]:
    """Of the floats that nodes give. What is no float is exact, whatever it was found in."""
    found: dict[Value, _Kind] = {}

    def kind_of(value: Value) -> _Kind:
        if value.dtype.kind != "float" or value.constant is not None:
            return _Kind.EXACT
        # What is not made by a node is an input.
        return found.get(value, _Kind.ACTIVATION)

    def kind_of_result(node: Node) -> _Kind:
        whole = max(map(kind_of, node.inputs), default=_Kind.EXACT)
        if node.op in _REDUCTIONS:
            return min(whole, _Kind.STATISTIC)
        if node.op in _PRODUCTS:
            return _Kind.EXACT if whole == _Kind.EXACT else _Kind.ACTIVATION
        looked_up = node.op in _LOOK_UPS and _is_table(node.inputs[0])
        return _Kind.ACTIVATION if looked_up else whole

    for node in graph.nodes:
        kind = kind_of_result(node)
        found.update((v, kind) for v in node.outputs if v.dtype.kind == "float")
    return found


def _huge(graph: Graph, largest: float) -> set[Value]:
    """What may have finite numbers beyond those of a type, of which constants are made."""
    found: set[Value] = set()
    for node in graph.nodes:
        passed_on = node.op not in _PRODUCTS | _WHOLE | _REDUCTIONS
        constants = [v.constant for v in node.inputs if v.constant is not None]
        if (passed_on and any(v in found for v in node.inputs)) or (
            node.op not in _LIMITS and any(_beyond(c, largest) for c in constants)
        ):
            found.update(v for v in node.outputs if v.dtype.kind == "float")
    return found


def _beyond(array: Array, largest: float) -> bool:
    """Whether a finite number is larger in magnitude than a type has."""
    if array.dtype.kind != "f" or not array.size:
        return False
    if max(-array.min(), array.max()) <= largest:
        # No copy of a table, where all of it is finite.
        return False
    finite = array[np.isfinite(array)]
    return bool((np.abs(finite) > largest).any())


def _is_table(value: Value) -> bool:
    return value.constant is not None and value.rank > 1


def _delicate(graph: Graph) -> set[Value]:
    """What lies between a product, a norm or an input, and an operand that rounding would spoil:
    an angle, a cosine or sine of rotary positions, a mask. An angle that a product gives counts
    too: only its remainder by a turn does."""
    made = producers(graph)
    angles = [v for node in graph.nodes if node.op in ("sin", "cos") for v in node.inputs]
    others = [v for n in graph.nodes if n.op == "rotary" for v in n.inputs[1:]]
    others += [v for n in graph.nodes if n.op == "attention" for v in n.inputs[3:]]
    found: set[Value] = set()
    for roots, ends in ((angles, _WHOLE), (others, _PRODUCTS | _WHOLE)):
        left = list(roots)
        while left:
            value = left.pop()
            node = made.get(value)
            if node is None or value in found or value.dtype.kind != "float" or node.op in ends:
                continue
            found.add(value)
            if node.op not in _PRODUCTS:
                left.extend(node.inputs)
    return found


def _tables(graph: Graph, held: Mapping[Value, DType]) -> set[Value]:
    """Tables all of whose readers look something up that is held."""
    readers: dict[Value, list[bool]] = {}
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if _is_table(value) and value.dtype == FLOAT32 and node.op not in _PRODUCTS:
                looks_up = node.op in _LOOK_UPS and position == 0 and node.output in held
                readers.setdefault(value, []).append(looks_up)
    return {value for value, found in readers.items() if all(found)}
