"""What follows the scores of models of classical learning: transforms, and labels of classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from ftuner.core.dtype import INT64, STRING
from ftuner.errors import GraphError
from ftuner.frontends.onnx.context import NodeView
from ftuner.graph.algebra import (
    apply,
    concat,
    constant,
    exp,
    gather,
    log,
    scalar,
    sigmoid,
    sqrt,
    where,
)
from ftuner.graph.checks import malformed, unsupported
from ftuner.graph.ir import Value

_TINY = 1e-7
"""Scores below it are zero to onnxruntime's SOFTMAX_ZERO."""
_WINITZKI = 0.147
"""Of the approximation of the inverse error function by Winitzki, which onnxruntime's PROBIT is."""


def rows(x: Value) -> Value:
    """A table of numbers: a row for each sample."""
    if x.rank not in (1, 2) or x.dtype.kind not in ("float", "int", "uint"):
        raise malformed(f"{x.type}; expected one or two axes of numbers")
    return x.unsqueeze([0]) if x.rank == 1 else x


def _softmax_zero(scores: Value) -> Value:
    """A softmax of the scores that are not zero."""
    largest = scores.reduce("maximum", [1])
    power = exp(scores - largest)
    some = abs(scores) > _TINY
    return where(some, power, scores * exp(-largest)) / where(some, power, 0).reduce("sum", [1])


def _probit(scores: Value) -> Value:
    """The inverse of the normal distribution."""
    x = scores * 2 + -1
    power = log(scalar(1, x.dtype) - x * x)
    half = power * 0.5 + 2 / (3.14159 * _WINITZKI)
    found = sqrt(sqrt(half * half - power * (1 / _WINITZKI)) - half)
    return where(x < 0, -found, found) * math.sqrt(2)


TRANSFORMS: Mapping[str, Callable[[Value], Value]] = {
    "NONE": lambda scores: scores,
    "LOGISTIC": sigmoid,
    "SOFTMAX": lambda scores: apply("softmax", scores, axis=1, log=False),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}
"""What scores of several classes or targets, (rows, scores), become, by the name of the
attribute."""


def transform_of(node: NodeView) -> str:
    """The name of a node's transform."""
    return node.one_of("post_transform", TRANSFORMS, "NONE")


def both(name: str, score: Value, probability: bool) -> Value:
    """The scores of two classes, (rows, 2), by that of the second one, (rows, 1), as onnxruntime
    completes it. `probability`: whether it is one, between 0 and 1."""
    if name == "PROBIT":
        raise unsupported("PROBIT of the score of one of two classes")
    if name == "LOGISTIC":
        other, score = (sigmoid(x) for x in (-score, score))
    elif probability:
        other = 1 - score
    else:
        other = -score
    return concat([other, score], 1)


def labels(node: NodeView) -> Value:
    """The labels of classes, strings or integers."""
    if node.has("classlabels_strings"):
        return constant(np.array(node.texts("classlabels_strings"), object), STRING)
    for name in ("classlabels_ints", "classlabels_int64s"):
        if node.has(name):
            return constant(np.array(node.integers(name), np.int64), INT64)
    raise GraphError(f"{node.record.label}: classlabels are missing")


def count_of(value: Value) -> int:
    """The length of a constant vector."""
    (count,) = value.shape
    assert isinstance(count, int)
    return count


def best(values: Value, scores: Value) -> Value:
    """The label of the largest score of each row, the first of equal ones."""
    return gather(values, apply("arg_reduce", scores, kind="argmax", axis=1, last=False))


def above(values: Value, score: Value, bound: float) -> Value:
    """The second of two labels where a score, (rows, 1), is above a bound, else the first."""
    return gather(values, (bound < score).squeeze([1]).cast(INT64))


def literal_labels(values: Value) -> Value:
    """The labels 0 and 1 that onnxruntime gives where a file does not say which of two classes a
    score is of; of strings, the first two."""
    return values if values.dtype == STRING else constant(np.arange(2), INT64)
