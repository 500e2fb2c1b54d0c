"""Operators of ONNX's domain for classical learning that are arithmetic on columns, and linear
models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dim import product
from ftuner.core.dtype import FLOAT32, INT64, DType
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.scores import (
    above,
    best,
    both,
    count_of,
    labels,
    rows,
    transform_of,
    transformed,
)
from ftuner.graph.algebra import (
    constant,
    equal,
    gather,
    isnan,
    malformed,
    require,
    scalar,
    sqrt,
    unsupported,
    where,
)
from ftuner.graph.ir import Value


def _features(context: Context, x: Value) -> Value:
    """A table of numbers: a row for each sample."""
    if x.rank not in (1, 2) or x.dtype.kind == "bool":
        raise malformed(f"{x.type}; expected one or two axes of numbers")
    return x


def _floats(context: Context, numbers: Sequence[float], dtype: DType = FLOAT32) -> Value:
    return constant(np.array(numbers, np.float32), dtype)


def _of_columns(context: Context, parameter: Value, x: Value, what: str) -> Value:
    """A number for each column of a table, or one for all of them."""
    (count,) = parameter.shape
    if count != 1:
        require(x.shape[-1], count, f"{what} {parameter.type} for {x.type}")
    return parameter


def _extracted(context: Context, node: NodeView) -> Sequence[Value]:
    """Some columns."""
    x, at = node.input(0), node.input(1)
    if x.rank == 0:
        raise malformed(f"columns of {x.type}")
    if at.dtype != INT64:
        raise malformed(f"indices are {at.type}; expected int64")
    rows = x.unsqueeze([0]) if x.rank == 1 else x
    flat = at.reshape((product(at.shape),))
    return [gather(rows, flat, rows.rank - 1)]


def _scaler(context: Context, node: NodeView) -> Sequence[Value]:
    x = _features(context, node.input(0))
    x = x if x.dtype.kind == "float" else x.cast(FLOAT32)
    offset, scale = (_floats(context, node.numbers(name), x.dtype) for name in ("offset", "scale"))
    if offset.shape != scale.shape or offset.shape == (0,):
        raise malformed(f"offset {offset.type} and scale {scale.type}")
    centred = x - _of_columns(context, offset, x, "offset")
    scaled = centred * _of_columns(context, scale, x, "scale")
    return [scaled.cast(FLOAT32)]


def _normalizer(context: Context, node: NodeView) -> Sequence[Value]:
    x = _features(context, node.input(0)).cast(FLOAT32)
    norm, axes = node.text("norm", "MAX"), [x.rank - 1]
    if norm == "MAX":
        length = x.reduce("maximum", axes)
    elif norm == "L1":
        length = abs(x).reduce("sum", axes)
    elif norm == "L2":
        total = (x * x).reduce("sum", axes)
        length = sqrt(total)
    else:
        raise malformed(f"norm is {norm!r}; expected MAX, L1 or L2")
    zero, one = scalar(0, FLOAT32), scalar(1, FLOAT32)
    divisor = where(equal(length, zero), one, length)
    return [x / divisor]


def _binarizer(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if x.dtype != FLOAT32:
        raise unsupported(f"{x.type}; expected float32, as onnxruntime does")
    threshold = scalar(node.number("threshold", 0.0), x.dtype)
    return [(threshold < x).cast(x.dtype)]


def _imputer(context: Context, node: NodeView) -> Sequence[Value]:
    x = _features(context, node.input(0))
    if x.dtype == FLOAT32:
        imputed = _floats(context, node.numbers("imputed_value_floats"))
        replaced = node.number("replaced_value_float", 0.0, finite=False)
    elif x.dtype == INT64:
        integers = np.array(node.integers("imputed_value_int64s"), np.int64)
        imputed = constant(integers)
        replaced = node.integer("replaced_value_int64", 0)
    else:
        raise malformed(f"{x.type}; expected float32 or int64")
    if imputed.shape == (0,):
        raise malformed("imputed values are missing")
    imputed = _of_columns(context, imputed, x, "imputed values")
    number = constant(np.array(replaced), x.dtype)
    missing = isnan(x) if np.isnan(replaced) else equal(x, number)
    return [where(missing, imputed, x)]


# Linear models.


def _scores(context: Context, node: NodeView, count: int, bias: Sequence[float]) -> Value:
    """`count` linear functions of each row of a table."""
    x = rows(context, node.input(0)).cast(FLOAT32)
    weights = np.array(node.numbers("coefficients"), np.float32)
    if count < 1 or weights.size % count or weights.size == 0:
        raise malformed(f"{weights.size} coefficients of {count} functions")
    matrix = np.ascontiguousarray(weights.reshape(count, -1).T)
    require(x.shape[1], matrix.shape[0], f"coefficients of {matrix.shape[0]} columns for {x.type}")
    scores = x @ constant(matrix)
    if not bias:
        return scores
    if len(bias) != count:
        raise malformed(f"{len(bias)} intercepts of {count} functions")
    return scores + _floats(context, bias)


def _intercepts(node: NodeView) -> Sequence[float]:
    return node.numbers("intercepts") if node.has("intercepts") else ()


def _linear_regressor(context: Context, node: NodeView) -> Sequence[Value]:
    scores = _scores(context, node, node.integer("targets", 1), _intercepts(node))
    return [transformed(context, transform_of(context, node), scores)]


def _linear_classifier(context: Context, node: NodeView) -> Sequence[Value]:
    """The label of the best score of each row, and all scores. One function is of the second of two
    classes."""
    names, bias = labels(context, node), _intercepts(node)
    count, transform = count_of(names), transform_of(context, node)
    if len(bias) not in (1, count) or count < 2 or len(bias) == 1 != count - 1:
        raise unsupported(f"{len(bias)} functions for {count} labels")
    scores = _scores(context, node, len(bias), bias)
    if len(bias) == 1:
        label = above(context, names, scores, 0)
        return [label, both(context, transform, scores, probability=True)]
    return [best(context, names, scores), transformed(context, transform, scores)]


CLASSICAL: Table = {
    (LEARNING, "ArrayFeatureExtractor"): _extracted,
    (LEARNING, "Binarizer"): _binarizer,
    (LEARNING, "Imputer"): _imputer,
    (LEARNING, "LinearClassifier"): _linear_classifier,
    (LEARNING, "LinearRegressor"): _linear_regressor,
    (LEARNING, "Normalizer"): _normalizer,
    (LEARNING, "Scaler"): _scaler,
}
