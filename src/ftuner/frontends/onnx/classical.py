"""Operators of ONNX's domain for classical learning that are arithmetic on columns, and linear
models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ftuner.core.dim import product
from ftuner.core.dtype import FLOAT32, INT64, DType
from ftuner.frontends.onnx import scores as scoring
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.signatures import Unbounded, onnx
from ftuner.graph.algebra import constant, equal, gather, isnan, sqrt, where
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.ir import Value


def _features(x: Value) -> Value:
    """A table of numbers: a row for each sample."""
    if x.rank not in (1, 2) or x.dtype.kind == "bool":
        raise malformed(f"{x.type}; expected one or two axes of numbers")
    return x


def _floats(numbers: Sequence[float], dtype: DType = FLOAT32) -> Value:
    return constant(np.array(numbers, np.float32), dtype)


def _of_columns(parameter: Value, x: Value, what: str) -> Value:
    """A number for each column of a table, or one for all of them."""
    (count,) = parameter.shape
    if count != 1:
        require(x.shape[-1], count, f"{what} {parameter.type} for {x.type}")
    return parameter


@onnx("ArrayFeatureExtractor", domain=LEARNING)
def _extracted(x: Value, at: Value) -> Value:
    """Some columns."""
    if x.rank == 0:
        raise malformed(f"columns of {x.type}")
    if at.dtype != INT64:
        raise malformed(f"indices are {at.type}; expected int64")
    rows = x.unsqueeze([0]) if x.rank == 1 else x
    return gather(rows, at.reshape((product(at.shape),)), rows.rank - 1)


@onnx("Scaler", domain=LEARNING)
def _scaler(x: Value, offset: tuple[float, ...], scale: tuple[float, ...]) -> Value:
    x = _features(x)
    x = x if x.dtype.kind == "float" else x.cast(FLOAT32)
    if len(offset) != len(scale) or not offset:
        raise malformed(f"{len(offset)} offsets and {len(scale)} scales")
    first, factor = _floats(offset, x.dtype), _floats(scale, x.dtype)
    scaled = (x - _of_columns(first, x, "offset")) * _of_columns(factor, x, "scale")
    return scaled.cast(FLOAT32)


@onnx("Normalizer", domain=LEARNING)
def _normalizer(x: Value, norm: Literal["MAX", "L1", "L2"] = "MAX") -> Value:
    x = _features(x).cast(FLOAT32)
    axes = [x.rank - 1]
    if norm == "MAX":
        length = x.reduce("maximum", axes)
    elif norm == "L1":
        length = abs(x).reduce("sum", axes)
    else:
        length = sqrt((x * x).reduce("sum", axes))
    return x / where(equal(length, 0), 1, length)


@onnx("Binarizer", domain=LEARNING)
def _binarizer(x: Value, threshold: float = 0.0) -> Value:
    if x.dtype != FLOAT32:
        raise unsupported(f"{x.type}; expected float32, as onnxruntime does")
    return (x > threshold).cast(x.dtype)


@onnx("Imputer", domain=LEARNING)
def _imputer(
    x: Value, imputed_value_floats: tuple[float, ...] = (),
    imputed_value_int64s: tuple[int, ...] = (), replaced_value_float: Unbounded = 0.0,
    replaced_value_int64: int = 0,
) -> Value:  # fmt: skip
    x = _features(x)
    if x.dtype == FLOAT32:
        imputed = _floats(imputed_value_floats)
        replaced = replaced_value_float
    elif x.dtype == INT64:
        imputed = constant(np.array(imputed_value_int64s, np.int64))
        replaced = replaced_value_int64
    else:
        raise malformed(f"{x.type}; expected float32 or int64")
    if imputed.shape == (0,):
        raise malformed("imputed values are missing")
    imputed = _of_columns(imputed, x, "imputed values")
    number = constant(np.array(replaced), x.dtype)
    missing = isnan(x) if np.isnan(replaced) else equal(x, number)
    return where(missing, imputed, x)


# Linear models.


def _scores(
    table: Value, coefficients: Sequence[float], count: int, bias: Sequence[float]
) -> Value:
    """`count` linear functions of each row of a table."""
    x = scoring.rows(table).cast(FLOAT32)
    weights = np.array(coefficients, np.float32)
    if count < 1 or weights.size % count or weights.size == 0:
        raise malformed(f"{weights.size} coefficients of {count} functions")
    matrix = np.ascontiguousarray(weights.reshape(count, -1).T)
    require(x.shape[1], matrix.shape[0], f"coefficients of {matrix.shape[0]} columns for {x.type}")
    scores = x @ constant(matrix)
    if len(bias) not in (0, count):
        raise malformed(f"{len(bias)} intercepts of {count} functions")
    return scores + _floats(bias) if bias else scores


@onnx("LinearRegressor", domain=LEARNING)
def _linear_regressor(
    node: NodeView, x: Value, coefficients: tuple[float, ...], targets: int = 1,
    intercepts: tuple[float, ...] = (),
) -> Value:  # fmt: skip
    scores = _scores(x, coefficients, targets, intercepts)
    return scoring.TRANSFORMS[scoring.transform_of(node)](scores)


@onnx("LinearClassifier", domain=LEARNING)
def _linear_classifier(
    node: NodeView, x: Value, coefficients: tuple[float, ...], intercepts: tuple[float, ...] = ()
) -> Sequence[Value]:
    """The label of the best score of each row, and all scores. One function is of the second of two
    classes."""
    names, bias = scoring.labels(node), intercepts
    count, transform = scoring.count_of(names), scoring.transform_of(node)
    if len(bias) not in (1, count) or count < 2 or len(bias) == 1 != count - 1:
        raise unsupported(f"{len(bias)} functions for {count} labels")
    scores = _scores(x, coefficients, len(bias), bias)
    if len(bias) == 1:
        return [scoring.above(names, scores, 0), scoring.both(transform, scores, probability=True)]
    return [scoring.best(names, scores), scoring.TRANSFORMS[transform](scores)]
