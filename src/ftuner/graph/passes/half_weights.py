"""Keeps weights of half precision: uKernels widen them, which takes half of the memory."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dtype import FLOAT32, HALF_DTYPES, DType
from ftuner.graph.algebra import apply
from ftuner.graph.arrays import exactly_half
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewrite.rule import Rule, rule
from ftuner.graph.rewrite.surroundings import Surroundings, constant

LEAST_ELEMENTS = 1 << 14
"""Smaller weights stay in the nearest caches either way. Assumed."""


def half_dtypes(graph: Graph) -> tuple[DType, ...]:
    """The half-precision dtypes that constants of a graph have."""
    constants = (v for node in graph.nodes for v in node.inputs if v.constant is not None)
    found = {v.dtype for v in constants}
    return tuple(dtype for dtype in HALF_DTYPES.values() if dtype in found)


def half_weights(dtypes: Sequence[DType]) -> Rule:
    """The rule that keeps float32 weights whose elements are all numbers of one of `dtypes`."""

    def half(around: Surroundings, value: Value) -> Value | None:
        return _half(value, dtypes)

    @rule("matmul")
    def half_weight(node: Node, around: Surroundings) -> Value | None:
        x, weight = node.inputs
        fits = 0 not in x.shape and x.dtype == FLOAT32 and x.rank >= 2
        kept = around.once(half, weight) if fits else None
        return None if kept is None else apply("narrow_matmul", x, kept)

    return half_weight


def _half(value: Value, dtypes: Sequence[DType]) -> Value | None:
    array = value.constant
    if array is None or value.dtype != FLOAT32 or array.ndim != 2 or array.size < LEAST_ELEMENTS:
        return None
    for dtype in dtypes:
        if exactly_half(array, dtype):
            return constant(f"{value.name}_{dtype}", dtype, array)
    return None
