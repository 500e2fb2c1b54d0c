"""Keeps weights of half precision: uKernels widen them, which takes half of the memory."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dtype import FLOAT32, HALF_DTYPES, DType
from ftuner.graph.arrays import exactly_half
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.rewrite.surroundings import constant, made, rewritten

LEAST_ELEMENTS = 1 << 14
"""Smaller weights stay in the nearest caches either way. Assumed."""


def half_dtypes(graph: Graph) -> tuple[DType, ...]:
    """The half-precision dtypes that constants of a graph have."""
    constants = (v for node in graph.nodes for v in node.inputs if v.constant is not None)
    found = {v.dtype for v in constants}
    return tuple(dtype for dtype in HALF_DTYPES.values() if dtype in found)


def keep_half_weights(graph: Graph, dtypes: Sequence[DType]) -> Graph:
    """Replace products by float32 weights whose elements are all numbers of one of `dtypes`."""
    kept: dict[Value, Value | None] = {}
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "matmul" or 0 in node.inputs[0].shape:
            continue
        a, b = node.inputs
        if b not in kept:
            kept[b] = _half(b, dtypes)
        weight = kept[b]
        if weight is not None and a.dtype == FLOAT32 and a.rank >= 2:
            result = node.output
            product = made("narrow_matmul", [a, weight], result.type, f"{result.name}_half")
            places[node] = [product]
            same[result] = product.output
    return rewritten(graph, places, same)


def _half(value: Value, dtypes: Sequence[DType]) -> Value | None:
    array = value.constant
    if array is None or value.dtype != FLOAT32 or array.ndim != 2 or array.size < LEAST_ELEMENTS:
        return None
    for dtype in dtypes:
        if exactly_half(array, dtype):
            return constant(f"{value.name}_{dtype}", dtype, array)
    return None
