"""Operators of ONNX's domain for classical learning that are arithmetic on numbers: what stands
before and after the products of a network that scikit-learn has trained, and linear models.

Ensembles of trees, support vectors, and labels that are strings are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ftuner.core.dim import product
from ftuner.core.dtype import FLOAT32, INT64, DType
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import LEARNING
from ftuner.graph.ir import Array, Value

LABEL_LISTS: Mapping[str, type[np.generic]] = {"int64s": np.int64, "floats": np.float32}
"""The attributes of a list of labels that are numbers, by the end of their names."""


def _features(context: Context, x: Value) -> Value:
    """A table of numbers: a row for each sample."""
    if x.rank not in (1, 2) or x.dtype.kind == "bool":
        raise context.malformed(f"{x.type}; expected one or two axes of numbers")
    return x


def _floats(context: Context, numbers: Sequence[float], dtype: DType = FLOAT32) -> Value:
    return context.builder.constant(np.array(numbers, np.float32), dtype)


def _of_columns(context: Context, parameter: Value, x: Value, what: str) -> Value:
    """A number for each column of a table, or one for all of them."""
    (count,) = parameter.shape
    if count != 1:
        context.builder.require(x.shape[-1], count, f"{what} {parameter.type} for {x.type}")
    return parameter


def _is_nan(context: Context, x: Value) -> Value:
    return context.add("logical_not", context.add("equal", x, x))


def _extracted(context: Context, node: NodeView) -> Sequence[Value]:
    """Some columns."""
    x, at = node.input(0), node.input(1)
    if x.rank == 0:
        raise context.malformed(f"columns of {x.type}")
    if at.dtype != INT64:
        raise context.malformed(f"indices are {at.type}; expected int64")
    rows = context.unsqueeze(x, [0]) if x.rank == 1 else x
    flat = context.reshape(at, (product(at.shape),))
    where = context.builder.where
    return [context.add("gather", rows, flat, axis=rows.rank - 1, node=where)]


def _scaler(context: Context, node: NodeView) -> Sequence[Value]:
    x = _features(context, node.input(0))
    x = x if x.dtype.kind == "float" else context.cast(x, FLOAT32)
    offset, scale = (_floats(context, node.numbers(name), x.dtype) for name in ("offset", "scale"))
    if offset.shape != scale.shape or offset.shape == (0,):
        raise context.malformed(f"offset {offset.type} and scale {scale.type}")
    centred = context.add("subtract", x, _of_columns(context, offset, x, "offset"))
    scaled = context.add("multiply", centred, _of_columns(context, scale, x, "scale"))
    return [context.cast(scaled, FLOAT32)]


def _normalizer(context: Context, node: NodeView) -> Sequence[Value]:
    x = context.cast(_features(context, node.input(0)), FLOAT32)
    norm, axes = node.text("norm", "MAX"), [x.rank - 1]
    if norm == "MAX":
        length = context.reduce(x, "maximum", axes)
    elif norm == "L1":
        length = context.reduce(context.add("absolute", x), "sum", axes)
    elif norm == "L2":
        total = context.reduce(context.add("multiply", x, x), "sum", axes)
        length = context.add("sqrt", total)
    else:
        raise context.malformed(f"norm is {norm!r}; expected MAX, L1 or L2")
    zero, one = context.scalar(0, FLOAT32), context.scalar(1, FLOAT32)
    divisor = context.add("where", context.add("equal", length, zero), one, length)
    return [context.add("divide", x, divisor)]


def _binarizer(context: Context, node: NodeView) -> Sequence[Value]:
    x = node.input(0)
    if x.dtype != FLOAT32:
        raise context.unsupported(f"{x.type}; expected float32, as onnxruntime does")
    threshold = context.scalar(node.number("threshold", 0.0), x.dtype)
    return [context.cast(context.add("less", threshold, x), x.dtype)]


def _imputer(context: Context, node: NodeView) -> Sequence[Value]:
    x = _features(context, node.input(0))
    if x.dtype == FLOAT32:
        imputed = _floats(context, node.numbers("imputed_value_floats"))
        replaced = node.number("replaced_value_float", 0.0, finite=False)
    elif x.dtype == INT64:
        integers = np.array(node.integers("imputed_value_int64s"), np.int64)
        imputed = context.builder.constant(integers)
        replaced = node.integer("replaced_value_int64", 0)
    else:
        raise context.malformed(f"{x.type}; expected float32 or int64")
    if imputed.shape == (0,):
        raise context.malformed("imputed values are missing")
    imputed = _of_columns(context, imputed, x, "imputed values")
    if np.isnan(replaced):
        missing = _is_nan(context, x)
    else:
        missing = context.add("equal", x, context.builder.constant(np.array(replaced), x.dtype))
    return [context.add("where", missing, imputed, x)]


def _label_encoder(context: Context, node: NodeView) -> Sequence[Value]:
    """Values of keys; the first one of keys that are equal. Other numbers have the default."""
    keys, values = (_labels(context, node, which) for which in ("keys", "values"))
    x = node.input(0)
    if keys.shape != values.shape or keys.ndim != 1 or keys.size == 0:
        raise context.malformed(f"{keys.size} keys and {values.size} values")
    if x.dtype.name != keys.dtype.name:
        raise context.malformed(f"{x.type}, whose keys are {keys.dtype}")
    default = _default(node, values.dtype.name)
    choices = context.builder.constant(np.append(values, default.astype(values.dtype)))
    at = context.reduce(_found(context, x, keys), "minimum", [x.rank], keep=False)
    return [context.add("gather", choices, at, axis=0, node=context.builder.where)]


def _matches(context: Context, x: Value, keys: Array) -> Value:
    """Whether each element is equal to each key, along a new last axis. NaN is equal to NaN."""
    column, row = context.unsqueeze(x, [x.rank]), context.builder.constant(keys)
    hit = context.add("equal", column, row)
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        both = context.builder.constant(np.isnan(keys))
        none = context.add("logical_and", _is_nan(context, column), both)
        hit = context.add("logical_or", hit, none)
    return hit


def _found(context: Context, x: Value, keys: Array) -> Value:
    """The position of each key that an element is equal to, along a new last axis. That of others
    is the number of keys."""
    numbers = context.builder.constant(np.arange(keys.size))
    return context.add(
        "where", _matches(context, x, keys), numbers, context.scalar(keys.size, INT64)
    )


def _one_hot(context: Context, node: NodeView) -> Sequence[Value]:
    """A one for the category of each element, along a new last axis. Elements of no category have
    zeros, or are out of range."""
    if not node.has("cats_int64s"):
        raise context.unsupported("categories that are strings")
    keys = np.array(node.integers("cats_int64s"), np.int64)
    if not 0 < keys.size == len(set(keys.tolist())):
        raise context.malformed(f"{keys.size} categories; expected some, all different")
    x = context.cast(node.input(0), INT64)
    if not node.flag("zeros", True):
        # Gather checks that each has a category.
        ones = context.builder.constant(np.eye(keys.size, dtype=np.float32))
        at = context.reduce(_found(context, x, keys), "minimum", [x.rank], keep=False)
        return [context.add("gather", ones, at, axis=0, node=context.builder.where)]
    return [context.cast(_matches(context, x, keys), FLOAT32)]


def _labels(context: Context, node: NodeView, which: str) -> Array:
    """The keys or values of a label encoder."""
    if node.has(f"{which}_tensor"):
        return node.tensor(f"{which}_tensor").array
    for end, dtype in LABEL_LISTS.items():
        if node.has(f"{which}_{end}"):
            return np.array(node.numbers(f"{which}_{end}"), dtype)
    raise context.unsupported(f"{which} that are no numbers")


def _default(node: NodeView, dtype: str) -> Array:
    """What a label encoder gives for numbers other than its keys."""
    if node.has("default_tensor"):
        return node.tensor("default_tensor").array.reshape(-1)[:1]
    if dtype == "float32":
        return np.array([node.number("default_float", -0.0, finite=False)])
    return np.array([node.integer("default_int64", -1)])


# Linear models.


def _sigmoid(context: Context, scores: Value) -> Value:
    return context.add("sigmoid", scores)


def _softmax(context: Context, scores: Value) -> Value:
    return context.add("softmax", scores, axis=1, log=False)


def _as_it_is(context: Context, scores: Value) -> Value:
    return scores


TRANSFORMS: Mapping[str, Callable[[Context, Value], Value]] = {
    "NONE": _as_it_is, "LOGISTIC": _sigmoid, "SOFTMAX": _softmax,
}  # fmt: skip
"""What follows a linear model, by the name of its attribute."""


def _scores(context: Context, node: NodeView, count: int, bias: Sequence[float]) -> Value:
    """`count` linear functions of each row of a table."""
    x = _features(context, node.input(0))
    rows = context.cast(context.unsqueeze(x, [0]) if x.rank == 1 else x, FLOAT32)
    weights = np.array(node.numbers("coefficients"), np.float32)
    if count < 1 or weights.size % count or weights.size == 0:
        raise context.malformed(f"{weights.size} coefficients of {count} functions")
    matrix = np.ascontiguousarray(weights.reshape(count, -1).T)
    context.builder.require(
        rows.shape[1], matrix.shape[0], f"coefficients of {matrix.shape[0]} columns for {x.type}"
    )
    scores = context.add("matmul", rows, context.builder.constant(matrix))
    if not bias:
        return scores
    if len(bias) != count:
        raise context.malformed(f"{len(bias)} intercepts of {count} functions")
    return context.add("add", scores, _floats(context, bias))


def _transformed(context: Context, node: NodeView, scores: Value) -> Value:
    name = node.text("post_transform", "NONE")
    transform = TRANSFORMS.get(name)
    if transform is None:
        raise context.unsupported(f"post_transform {name!r}")
    return transform(context, scores)


def _intercepts(node: NodeView) -> Sequence[float]:
    return node.numbers("intercepts") if node.has("intercepts") else ()


def _linear_regressor(context: Context, node: NodeView) -> Sequence[Value]:
    scores = _scores(context, node, node.integer("targets", 1), _intercepts(node))
    return [_transformed(context, node, scores)]


def _linear_classifier(context: Context, node: NodeView) -> Sequence[Value]:
    """The label of the best score of each row, and all scores."""
    if not node.has("classlabels_ints"):
        raise context.unsupported("labels that are strings")
    labels = np.array(node.integers("classlabels_ints"), np.int64)
    bias = _intercepts(node)
    if len(bias) != labels.size or labels.size < 2:
        raise context.unsupported(f"{len(bias)} functions for {labels.size} labels")
    scores = _scores(context, node, labels.size, bias)
    best = context.add("arg_reduce", scores, kind="argmax", axis=1, last=False)
    chosen = context.add(
        "gather", context.builder.constant(labels), best, axis=0, node=context.builder.where
    )
    return [chosen, _transformed(context, node, scores)]


CLASSICAL: Table = {
    (LEARNING, "ArrayFeatureExtractor"): _extracted,
    (LEARNING, "Binarizer"): _binarizer,
    (LEARNING, "Imputer"): _imputer,
    (LEARNING, "LabelEncoder"): _label_encoder,
    (LEARNING, "LinearClassifier"): _linear_classifier,
    (LEARNING, "LinearRegressor"): _linear_regressor,
    (LEARNING, "Normalizer"): _normalizer,
    (LEARNING, "OneHotEncoder"): _one_hot,
    (LEARNING, "Scaler"): _scaler,
}
