"""Support vector machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.frontends.onnx import scores as scoring
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, constant, exp, gather, scalar, sigmoid, tanh, where
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.ir import Array, Value

LEAST_PROBABILITY = 1e-7
"""Probabilities of pairs are at least this far from 0 and 1."""


def _floats(node: NodeView, name: str) -> Array:
    return np.array(node.numbers(name, ()), np.float32)


def _powers(x: Value, vectors: Array, node: NodeView) -> Value:
    """The kernel function of each row and each vector."""
    kind = node.one_of("kernel_type", ("LINEAR", "RBF", "POLY", "SIGMOID"), "LINEAR")
    given = _floats(node, "kernel_params")
    if len(given) not in (0, 3):
        raise malformed(f"{len(given)} kernel_params; expected gamma, coef0 and degree")
    gamma, shift, degree = (float(n) for n in (given if len(given) else np.zeros(3)))
    if kind == "RBF":
        # Vectors are along lanes, not their numbers, which may be few.
        apart = x.unsqueeze([2]) - constant(np.ascontiguousarray(vectors.T)[None])
        return exp((apart * apart).reduce("sum", [1], keep=False) * -gamma)
    product = x @ constant(np.ascontiguousarray(vectors.T))
    if kind == "LINEAR":
        return product
    affine = product * gamma + shift
    return affine**degree if kind == "POLY" else tanh(affine)


def _vectors(x: Value, numbers: Array, count: int, what: str) -> Array:
    """`count` vectors of as many numbers as the table has columns."""
    if count < 1 or numbers.size % count or not numbers.size:
        raise malformed(f"{numbers.size} {what} of {count} vectors")
    found = numbers.reshape(count, -1)
    require(x.shape[1], found.shape[1], f"{what} of {found.shape} for {x.type}")
    return found


def _linear(x: Value, weights: Array, shift: float) -> Value:
    return x @ constant(np.ascontiguousarray(weights.T)) + shift


@onnx("SVMRegressor", domain=LEARNING)
def _regressor(node: NodeView, table: Value, one_class: bool = False, n_supports: int = 0) -> Value:
    x = scoring.rows(table).cast(FLOAT32)
    weights, rho = _floats(node, "coefficients"), _floats(node, "rho")
    if not len(rho):
        raise malformed("rho is missing")
    scoring.transform_of(node)  # onnxruntime applies none.
    if n_supports > 0:
        vectors = _vectors(x, _floats(node, "support_vectors"), n_supports, "support_vectors")
        if len(weights) != n_supports:
            raise malformed(f"{len(weights)} coefficients of {n_supports} vectors")
        scores = _linear(_powers(x, vectors, node), weights[None], rho[0])
    else:
        weights = _vectors(x, weights, 1, "coefficients")
        scores = _linear(x, weights, float(rho[0]))
    if one_class:
        scores = apply("where", scores > 0, *(scalar(n, FLOAT32) for n in (1, -1)))
    return scores


@onnx("SVMClassifier", domain=LEARNING)
def _classifier(
    node: NodeView, table: Value, vectors_per_class: tuple[int, ...] = ()
) -> Sequence[Value]:
    x, names = scoring.rows(table).cast(FLOAT32), scoring.labels(node)
    count, transform = scoring.count_of(names), scoring.transform_of(node)
    weights, rho = _floats(node, "coefficients"), _floats(node, "rho")
    of_classes = np.array(vectors_per_class, np.int64)
    if count < 2:
        raise unsupported(f"{count} class")
    if of_classes.min(initial=0) < 0 or not len(rho):
        raise malformed(f"vectors_per_class {of_classes}, rho {rho}")
    if not of_classes.sum():
        scores = _linear(x, _vectors(x, weights, count, "coefficients"), float(rho[0]))
        label = scoring.best(names, scores)
        if count == 2:
            label = _of_two(names, scores, bool((weights >= 0).all()))
        return [label, scoring.TRANSFORMS[transform](scores)]
    first, second = np.triu_indices(count, 1)
    whole, pairs = int(of_classes.sum()), len(first)
    if len(of_classes) != count or len(rho) < pairs or len(weights) < (count - 1) * whole:
        raise malformed(
            f"{len(of_classes)} classes of vectors, {len(rho)} rho and {len(weights)} coefficients "
            f"of {whole} vectors for {count} labels"
        )
    vectors = _vectors(x, _floats(node, "support_vectors"), whole, "support_vectors")
    matrix = _of_pairs(weights[: (count - 1) * whole].reshape(-1, whole), of_classes)
    sums = _powers(x, vectors, node).cast(FLOAT64) @ constant(matrix, FLOAT64)
    sums = sums + constant(rho[:pairs], FLOAT64)
    # A pair is a vote for its first class where its sum is positive, else for the second.
    each = np.eye(count, dtype=np.float32)
    votes = (sums > 0).cast(FLOAT32) @ constant(each[first] - each[second])
    votes = votes + constant(each[second].sum(0))
    label, scores = scoring.best(names, votes), sums.cast(FLOAT32)
    if node.has("prob_a") and len(node.numbers("prob_a")):
        factor, shift = _floats(node, "prob_a"), _floats(node, "prob_b")
        if min(len(factor), len(shift)) < pairs:
            raise malformed(f"{len(factor)} prob_a and {len(shift)} prob_b of {pairs}")
        affine = scores * constant(-factor[:pairs]) - constant(shift[:pairs])
        likely = sigmoid(affine).at_least(LEAST_PROBABILITY).at_most(1 - LEAST_PROBABILITY)
        return [label, scoring.TRANSFORMS[transform](apply("coupled_probabilities", likely))]
    if count == 2:
        return [label, scoring.both(transform, scores, probability=transform != "NONE")]
    return [label, scoring.TRANSFORMS[transform](scores)]


def _of_pairs(weights: Array, of_classes: Array) -> Array:
    """The weights of all vectors for each pair of classes, (vectors, pairs). `weights`: of each
    vector, for the classes other than its own."""
    ends = np.cumsum(of_classes)
    spans = [slice(end - count, end) for end, count in zip(ends, of_classes, strict=True)]
    first, second = np.triu_indices(len(of_classes), 1)
    found = np.zeros((weights.shape[1], len(first)))
    for pair, (i, j) in enumerate(zip(first, second, strict=True)):
        found[spans[i], pair] = weights[j - 1, spans[i]]
        found[spans[j], pair] = weights[i, spans[j]]
    return found


def _of_two(names: Value, scores: Value, positive: bool) -> Value:
    """The label of two classes, as onnxruntime chooses it from scores of linear functions."""
    largest = scores.reduce("maximum", [1], keep=False)
    at = apply("arg_reduce", scores, kind="argmax", axis=1, last=False)
    second = largest >= 0.5 if positive else largest > 0
    return gather(names, where(second, 1, at))
