"""Support vector machines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import FLOAT32, FLOAT64, INT64
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.scores import (
    best,
    both,
    chosen,
    count_of,
    labels,
    rows,
    transform_of,
    transformed,
)
from ftuner.graph.ir import Array, Value

LEAST_PROBABILITY = 1e-7
"""Probabilities of pairs are at least this far from 0 and 1."""


def _floats(node: NodeView, name: str) -> Array:
    return np.array(node.numbers(name) if node.has(name) else (), np.float32)


def _powers(context: Context, x: Value, vectors: Array, node: NodeView) -> Value:
    """The kernel function of each row and each vector."""
    kind, given = node.text("kernel_type", "LINEAR"), _floats(node, "kernel_params")
    if len(given) not in (0, 3):
        raise context.malformed(f"{len(given)} kernel_params; expected gamma, coef0 and degree")
    gamma, shift, degree = (float(n) for n in (given if len(given) else np.zeros(3)))
    if kind == "RBF":
        apart = context.add(
            "subtract", context.unsqueeze(x, [1]), context.builder.constant(vectors[None])
        )
        square = context.reduce(context.add("multiply", apart, apart), "sum", [2], keep=False)
        return context.add("exp", context.scaled(square, -gamma))
    product = context.add("matmul", x, context.builder.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    affine = context.add_to(context.scaled(product, gamma), shift)
    if kind == "POLY":
        return context.add("power", affine, context.scalar(degree, affine.dtype))
    if kind == "SIGMOID":
        return context.add("tanh", affine)
    raise context.malformed(f"kernel_type {kind!r}")


def _vectors(context: Context, x: Value, numbers: Array, count: int, what: str) -> Array:
    """`count` vectors of as many numbers as the table has columns."""
    if count < 1 or numbers.size % count or not numbers.size:
        raise context.malformed(f"{numbers.size} {what} of {count} vectors")
    found = numbers.reshape(count, -1)
    context.builder.require(x.shape[1], found.shape[1], f"{what} of {found.shape} for {x.type}")
    return found


def _linear(context: Context, x: Value, weights: Array, shift: float) -> Value:
    matrix = context.builder.constant(np.ascontiguousarray(weights.T))
    return context.add_to(context.add("matmul", x, matrix), shift)


def _regressor(context: Context, node: NodeView) -> Sequence[Value]:
    x, count = context.cast(rows(context, node.input(0)), FLOAT32), node.integer("n_supports", 0)
    weights, rho = _floats(node, "coefficients"), _floats(node, "rho")
    if not len(rho):
        raise context.malformed("rho is missing")
    transform_of(context, node)  # onnxruntime applies none.
    if count > 0:
        vectors = _vectors(context, x, _floats(node, "support_vectors"), count, "support_vectors")
        if len(weights) != count:
            raise context.malformed(f"{len(weights)} coefficients of {count} vectors")
        scores = _linear(context, _powers(context, x, vectors, node), weights[None], rho[0])
    else:
        weights = _vectors(context, x, weights, 1, "coefficients")
        scores = _linear(context, x, weights, float(rho[0]))
    if node.flag("one_class"):
        hit = context.add("less", context.scalar(0, FLOAT32), scores)
        scores = context.add("where", hit, *(context.scalar(n, FLOAT32) for n in (1, -1)))
    return [scores]


def _classifier(context: Context, node: NodeView) -> Sequence[Value]:
    x, names = context.cast(rows(context, node.input(0)), FLOAT32), labels(context, node)
    count, transform = count_of(names), transform_of(context, node)
    weights, rho = _floats(node, "coefficients"), _floats(node, "rho")
    of_classes = np.array(node.integers("vectors_per_class", ()), np.int64)
    if count < 2:
        raise context.unsupported(f"{count} class")
    if of_classes.min(initial=0) < 0 or not len(rho):
        raise context.malformed(f"vectors_per_class {of_classes}, rho {rho}")
    if not of_classes.sum():
        scores = _linear(
            context, x, _vectors(context, x, weights, count, "coefficients"), float(rho[0])
        )
        label = best(context, names, scores)
        if count == 2:
            label = _of_two(context, names, scores, bool((weights >= 0).all()))
        return [label, transformed(context, transform, scores)]
    first, second = np.triu_indices(count, 1)
    whole, pairs = int(of_classes.sum()), len(first)
    if len(of_classes) != count or len(rho) < pairs or len(weights) < (count - 1) * whole:
        raise context.malformed(
            f"{len(of_classes)} classes of vectors, {len(rho)} rho and {len(weights)} coefficients "
            f"of {whole} vectors for {count} labels"
        )
    vectors = _vectors(context, x, _floats(node, "support_vectors"), whole, "support_vectors")
    matrix = _of_pairs(weights[: (count - 1) * whole].reshape(-1, whole), of_classes)
    powers = context.cast(_powers(context, x, vectors, node), FLOAT64)
    sums = context.add("matmul", powers, context.builder.constant(matrix, FLOAT64))
    sums = context.add("add", sums, context.builder.constant(rho[:pairs], FLOAT64))
    # A pair is a vote for its first class where its sum is positive, else for the second.
    each = np.eye(count, dtype=np.float32)
    hit = context.cast(context.add("less", context.scalar(0, FLOAT64), sums), FLOAT32)
    votes = context.add("matmul", hit, context.builder.constant(each[first] - each[second]))
    votes = context.add("add", votes, context.builder.constant(each[second].sum(0)))
    label, scores = best(context, names, votes), context.cast(sums, FLOAT32)
    if node.has("prob_a") and len(node.numbers("prob_a")):
        factor, shift = _floats(node, "prob_a"), _floats(node, "prob_b")
        if min(len(factor), len(shift)) < pairs:
            raise context.malformed(f"{len(factor)} prob_a and {len(shift)} prob_b of {pairs}")
        affine = context.add("multiply", scores, context.builder.constant(-factor[:pairs]))
        affine = context.add("subtract", affine, context.builder.constant(shift[:pairs]))
        likely = context.at_least(context.add("sigmoid", affine), LEAST_PROBABILITY)
        likely = context.at_most(likely, 1 - LEAST_PROBABILITY)
        return [label, transformed(
            context, transform, context.add("coupled_probabilities", likely)
        )]  # fmt: skip
    if count == 2:
        return [label, both(context, transform, scores, probability=transform != "NONE")]
    return [label, transformed(context, transform, scores)]


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


def _of_two(context: Context, names: Value, scores: Value, positive: bool) -> Value:
    """The label of two classes, as onnxruntime chooses it from scores of linear functions."""
    largest = context.reduce(scores, "maximum", [1], keep=False)
    at = context.add("arg_reduce", scores, kind="argmax", axis=1, last=False)
    half = context.scalar(0.5 if positive else 0, FLOAT32)
    if positive:
        second = context.add("less_equal", half, largest)
    else:
        second = context.add("less", half, largest)
    return chosen(context, names, context.add("where", second, context.scalar(1, INT64), at))


SUPPORT_VECTORS: Table = {
    (LEARNING, "SVMClassifier"): _classifier,
    (LEARNING, "SVMRegressor"): _regressor,
}
