"""Rows of ONNX's operators for classical learning."""

from __future__ import annotations

import numpy as np
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import elements, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import row
from tests.random_graphs.tensors import LEARNING, TAME, Tensor

NUMBERS = ("float32", "int64", "int32", "float64")


def _table(maker: Maker, dtypes: tuple[str, ...] = NUMBERS) -> Tensor:
    """Rows of a known, positive number of columns."""
    return maker.operand(
        dtypes, (2,), lambda x: x.shape[1].static and 0 < x.shape[1].at[0] <= 64, TAME
    )


def _floats(maker: Maker, count: int) -> list[float]:
    return [float(x) for x in maker.random().uniform(0.5, 2.0, count).astype(np.float32)]


def _parameters(maker: Maker, x: Tensor) -> int:
    """A number for each column, or one for all."""
    return x.shape[1].at[0] if maker.draws.chance(0.5) else 1


@row("ArrayFeatureExtractor", 0.3, LEARNING)
def _columns(maker: Maker) -> None:
    x = _table(maker)
    count = maker.draws.pick((1, 2, 5))
    at = maker.constant(maker.random().integers(0, x.shape[1].at[0], count))
    maker.moved("ArrayFeatureExtractor", x, (x.shape[0], static(count)), at, domain=LEARNING)


@row("Scaler", 0.3, LEARNING)
def _scaler(maker: Maker) -> None:
    x = _table(maker)
    count = _parameters(maker, x)
    size = 2 * (x.size + 2)
    maker.add("Scaler", [x], x.shape, "float32", -size, size, LEARNING,
              offset=_floats(maker, count), scale=_floats(maker, count))  # fmt: skip


@row("Normalizer", 0.3, LEARNING)
def _normalizer(maker: Maker) -> None:
    x = _table(maker)
    # The largest of a row may be any number, so that quotients may be huge.
    maker.add("Normalizer", [x], x.shape, "float32", -1, 1, LEARNING,
              norm=maker.draws.pick(("L1", "L2")))  # fmt: skip


@row("Binarizer", 0.3, LEARNING)
def _binarizer(maker: Maker) -> None:
    x = maker.operand(("float32",))
    maker.add("Binarizer", [x], x.shape, "float32", 0, 1, LEARNING, threshold=0.25)


@row("Imputer", 0.3, LEARNING)
def _imputer(maker: Maker) -> None:
    x = _table(maker, ("float32",))
    values = _floats(maker, _parameters(maker, x))
    maker.add("Imputer", [x], x.shape, "float32", min(x.low, 0), max(x.high, 2), LEARNING,
              imputed_value_floats=values, replaced_value_float=0.0)  # fmt: skip


@row("LabelEncoder", 0.3, LEARNING)
def _label_encoder(maker: Maker) -> None:
    x = maker.operand(("int64", "float32"))
    # Some of 30 keys, and of keys that are far apart, are looked up in other ways than of four.
    keys = maker.draws.pick(([1, 0, 3, 7], [*range(29), 10**6], [*range(-9, 9), 1 << 40]))
    given = {"keys_int64s": keys} if x.dtype == "int64" else {"keys_floats": [k / 2 for k in keys]}
    maker.add("LabelEncoder", [x], x.shape, "float32", -1, 2, LEARNING, **given,
              values_floats=_floats(maker, len(keys)), default_float=-1.0)  # fmt: skip


@row("OneHotEncoder", 0.3, LEARNING)
def _one_hot(maker: Maker) -> None:
    x = maker.operand(("int64", "float32"), (0, 1, 2))
    maker.add("OneHotEncoder", [x], (*x.shape, static(3)), "float32", 0, 1, LEARNING,
              cats_int64s=[1, 0, 3])  # fmt: skip


def _functions(maker: Maker, x: Tensor, count: int) -> tuple[list[float], list[float], float]:
    """Coefficients and intercepts of linear functions of a table, and how large they may be."""
    width = x.shape[1].at[0]
    maker.spend([n * count for n in elements(x.shape)])
    weights = _floats(maker, width * count)
    return weights, _floats(maker, count), 2 * (width * x.size + 1)


@row("LinearRegressor", 0.3, LEARNING)
def _linear_regressor(maker: Maker) -> None:
    x, count = _table(maker, ("float32",)), maker.draws.pick((1, 3))
    weights, bias, size = _functions(maker, x, count)
    maker.add("LinearRegressor", [x], (x.shape[0], static(count)), "float32", -size, size,
              LEARNING, coefficients=weights, intercepts=bias, targets=count)  # fmt: skip


@row("LinearClassifier", 0.3, LEARNING)
def _linear_classifier(maker: Maker) -> None:
    x, count = _table(maker, ("float32", "int64")), maker.draws.pick((2, 3))
    if 0 in x.shape[0].at:
        raise DeclinedError("onnxruntime has no labels of nothing")
    weights, bias, size = _functions(maker, x, count)
    softmax = maker.draws.chance(0.5)
    scores = maker.new(
        (x.shape[0], static(count)), "float32", 0 if softmax else -size, 1 if softmax else size
    )
    label = maker.new(x.shape[:1], "int64", 3, 2 + count)
    maker.node("LinearClassifier", [x], [label, scores], LEARNING, coefficients=weights,
               intercepts=bias, classlabels_ints=list(range(3, 3 + count)),
               post_transform="SOFTMAX" if softmax else "NONE")  # fmt: skip


def _tree(maker: Maker, x: Tensor, of: str, targets: int) -> dict[str, list[object]]:
    """The nodes of two trees of one level, whose leaves have a weight for each target."""
    columns = [int(n) for n in maker.random().integers(0, x.shape[1].at[0], 2)]
    names = ("treeids", "nodeids", "ids")
    keys = [(tree, leaf, t) for tree in (0, 1) for leaf in (1, 2) for t in range(targets)]
    return {
        "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2] * 2,
        "nodes_featureids": [columns[0], 0, 0, columns[1], 0, 0],
        "nodes_values": [0.25, 0.0, 0.0, -0.125, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2,
        **{f"{of}_{n}": list(c) for n, c in zip(names, zip(*keys, strict=True), strict=True)},
        f"{of}_weights": [*_floats(maker, len(keys))],
    }  # fmt: skip


@row("TreeEnsembleRegressor", 0.3, LEARNING)
def _tree_regressor(maker: Maker) -> None:
    x, targets = _table(maker, ("float32",)), maker.draws.pick((1, 3))
    maker.add("TreeEnsembleRegressor", [x], (x.shape[0], static(targets)), "float32", 1, 4,
              LEARNING, n_targets=targets, **_tree(maker, x, "target", targets))  # fmt: skip


@row("TreeEnsembleClassifier", 0.3, LEARNING)
def _tree_classifier(maker: Maker) -> None:
    x = _table(maker, ("float32", "int64"))
    label = maker.new(x.shape[:1], "int64", 3, 5)
    scores = maker.new((x.shape[0], static(3)), "float32", 1, 4)
    maker.node("TreeEnsembleClassifier", [x], [label, scores], LEARNING,
               classlabels_int64s=[3, 4, 5], **_tree(maker, x, "class", 3))  # fmt: skip


def _machine(maker: Maker, x: Tensor, count: int) -> dict[str, object]:
    """Support vectors, and a kernel function whose values are small."""
    maker.spend([n * count for n in elements(x.shape)])
    kernel = maker.draws.pick(("RBF", "SIGMOID"))
    return {"kernel_type": kernel, "kernel_params": [0.125, 0.25, 3.0],
            "support_vectors": _floats(maker, count * x.shape[1].at[0])}  # fmt: skip


@row("SVMRegressor", 0.3, LEARNING)
def _machine_regressor(maker: Maker) -> None:
    x = _table(maker, ("float32",))
    given = _machine(maker, x, 3)
    maker.add("SVMRegressor", [x], (x.shape[0], static(1)), "float32", -7, 7, LEARNING,
              n_supports=3, coefficients=_floats(maker, 3), rho=[0.5], **given)  # fmt: skip


@row("SVMClassifier", 0.3, LEARNING)
def _machine_classifier(maker: Maker) -> None:
    x = _table(maker, ("float32", "int64"))
    given = _machine(maker, x, 4)
    label = maker.new(x.shape[:1], "int64", 3, 5)
    likely = {"prob_a": [-1.0, -2.0, -1.5], "prob_b": [0.25, 0.0, -0.25]}
    likely = likely if maker.draws.chance(0.7) else {}
    scores = maker.new((x.shape[0], static(3)), "float32", 0 if likely else -9, 1 if likely else 9)
    maker.node("SVMClassifier", [x], [label, scores], LEARNING, classlabels_ints=[3, 4, 5],
               vectors_per_class=[1, 2, 1], coefficients=_floats(maker, 8), rho=[0.5, -0.5, 0.25],
               **given, **likely)  # fmt: skip


@row("TfIdfVectorizer", 0.3, since=9)
def _counts(maker: Maker) -> None:
    x = maker.operand(("int64", "int32"), (1, 2))
    if 0 in x.shape[0].at:
        raise DeclinedError("onnxruntime takes no batch of nothing")
    maker.add("TfIdfVectorizer", [x], (*x.shape[:-1], static(4)), "float32", 0, max(x.shape[-1].at),
              mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=1,
              ngram_counts=[0, 2], ngram_indexes=[2, 0, 3, 1],
              pool_int64s=[0, 1, 0, 1, 1, 2])  # fmt: skip


def _words(maker: Maker) -> Tensor:
    """Strings, which the caller gives to a node."""
    x = maker.operand(("int64",), (0, 1, 2))
    words = {"cats_int64s": [0, 1, 2], "cats_strings": ["a", "B", "ab"], "default_string": "-"}
    return maker.add("CategoryMapper", [x], x.shape, "string", 0, 0, LEARNING, **words)


@row("CategoryMapper", 0.3, LEARNING)
def _category_mapper(maker: Maker) -> None:
    words = _words(maker)
    maker.add("LabelEncoder", [words], words.shape, "float32", -1, 3, LEARNING,
              keys_strings=["a", "ab"], values_floats=[1.0, 3.0], default_float=-1.0)  # fmt: skip


@row("RegexFullMatch", 0.3, since=20)
def _full_match(maker: Maker) -> None:
    words = _words(maker)
    maker.add("RegexFullMatch", [words], words.shape, "bool", 0, 1, pattern="a.?")


@row("StringConcat", 0.3, since=20)
def _concat(maker: Maker) -> None:
    words = _words(maker)
    joined = maker.add("StringConcat", [words, words], words.shape, "string", 0, 0)
    maker.add("RegexFullMatch", [joined], joined.shape, "bool", 0, 1, pattern="a.+")
