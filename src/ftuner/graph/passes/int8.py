"""Weights of 8-bit integers, kept as they are: uKernels widen them, and scales come after."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ftuner.core.dtype import INT8
from ftuner.graph.ir import Array, Graph, Node, Value
from ftuner.graph.rewriting import Surroundings, constant, made, rewritten


class _Levels(NamedTuple):
    """A matrix as integers times a scale that broadcasts to it."""

    integers: Array
    """Wide enough for a zero point to have been subtracted."""
    scale: Array


def keep_int8_weights(graph: Graph) -> Graph:
    """`x @ ((widened - zero) * scale)` becomes `(x @ integers) * scale`, where the scale is one for
    the weight or one for each column, and the integers without their zero point fit 8 bits."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    same: dict[Value, Value] = {}
    for node in graph.nodes:
        if node.op != "matmul" or 0 in node.inputs[0].shape:
            continue
        levels = _levels(around, node.inputs[1])
        if levels is None or not _fits(levels):
            continue
        integers, scale = levels
        result = node.output
        weight = constant(f"{result.name}_int8", INT8, integers)
        row = np.broadcast_to(scale, (1, integers.shape[1])).reshape(-1)
        factor = constant(f"{result.name}_scale", result.dtype, row)
        product = made("int8_matmul", [node.inputs[0], weight], result.type, f"{result.name}_raw")
        scaled = made("multiply", [product.output, factor], result.type, f"{result.name}_scaled")
        places[node] = [product, scaled]
        same[result] = scaled.output
    return rewritten(graph, places, same)


def _fits(levels: _Levels) -> bool:
    limits = np.iinfo(np.int8)
    low, high = levels.integers.min(), levels.integers.max()
    return levels.scale.shape[0] == 1 and bool(limits.min <= low and high <= limits.max)


def _levels(around: Surroundings, value: Value) -> _Levels | None:
    """What a matrix is made of, if it is widened, shifted, scaled and transposed integers."""
    cast = around.producer(value, "cast")
    if cast is not None:
        array = cast.inputs[0].constant
        narrow = array is not None and array.ndim == 2 and array.itemsize == 1
        if not narrow or array is None or array.dtype.kind not in "iu":
            return None
        return _Levels(array.astype(np.int16), np.ones((1, 1)))
    transpose = around.producer(value, "transpose")
    if transpose is not None:
        found = _levels(around, transpose.inputs[0])
        turned = tuple(transpose.attributes["perm"]) == (1, 0)
        return _Levels(found.integers.T, found.scale.T) if found and turned else None
    subtract = around.producer(value, "subtract")
    if subtract is not None:
        return _shifted(_levels(around, subtract.inputs[0]), subtract.inputs[1].constant)
    multiply = around.producer(value, "multiply")
    if multiply is not None:
        for x, other in (multiply.inputs, multiply.inputs[::-1]):
            if other.constant is not None:
                return _scaled(_levels(around, x), other.constant)
    return None


def _shifted(levels: _Levels | None, zero: Array | None) -> _Levels | None:
    """Less a zero point, which is subtracted before anything is scaled."""
    if levels is None or zero is None or zero.ndim > 2 or np.any(levels.scale != 1):
        return None
    whole = zero.astype(np.int16)
    if np.any(whole != zero) or np.any(np.abs(zero) > np.iinfo(np.uint8).max):
        return None
    return levels._replace(integers=levels.integers - whole)


def _scaled(levels: _Levels | None, factor: Array) -> _Levels | None:
    if levels is None or factor.ndim > 2 or not np.all(np.isfinite(factor)):
        return None
    return levels._replace(scale=levels.scale * factor)
