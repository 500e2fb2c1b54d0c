"""Ensembles of trees and support vector machines, beside onnxruntime's."""

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from tests.frontends.test_onnx_classical import agrees, model_for

from ftuner.errors import FTunerError
from ftuner.frontends.onnx.importer import import_model

RNG = np.random.default_rng(3)
TABLE = RNG.standard_normal((9, 4)).round(1).astype(np.float32)
TABLE[2, 1] = TABLE[5, 0] = np.nan
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def forest(
    of: str, targets: int, modes: tuple[str, ...] = MODES[:1], trees: int = 5, said: Any = None,
    missing: bool = False, levels: int = 3,
) -> dict[str, Any]:  # fmt: skip
    """The nodes of random trees of `levels` levels. `said`: the targets of which leaves have
    weights, or all."""
    rng = np.random.default_rng(trees + targets)
    nodes: list[tuple[Any, ...]] = []
    weights: list[tuple[int, int, int, float]] = []

    def grow(tree: int, level: int) -> int:
        number = sum(node[0] == tree for node in nodes)
        at = len(nodes)
        nodes.append(())
        if level == 0 or (level < levels and rng.random() < 0.3):
            nodes[at] = (tree, number, 0, 0.0, "LEAF", 0, 0, 0)
            weights.extend((tree, number, t, float(rng.standard_normal()))
                           for t in (range(targets) if said is None else said))  # fmt: skip
            return number
        nodes[at] = (tree,)
        split = float(TABLE[rng.integers(2), rng.integers(2, 4)])
        row = (int(rng.integers(4)), split, str(rng.choice(modes)))
        yes, no = grow(tree, level - 1), grow(tree, level - 1)
        nodes[at] = (tree, number, *row, yes, no, int(missing and rng.random() < 0.5))
        return number

    for tree in range(trees):
        grow(tree, 0 if tree == 1 else levels)
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
             "missing_value_tracks_true")  # fmt: skip
    found = {f"nodes_{n}": list(c) for n, c in zip(names, zip(*nodes, strict=True), strict=True)}
    columns = zip(("treeids", "nodeids", "ids", "weights"), zip(*weights, strict=True), strict=True)
    return found | {f"{of}_{name}": list(column) for name, column in columns}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("missing", [False, True])
def test_modes(mode: str, missing: bool) -> None:
    nodes = forest("target", 1, (mode,), missing=missing)
    agrees("TreeEnsembleRegressor", [TABLE], n_targets=1, **nodes)


@pytest.mark.parametrize("levels", [1, 8, 9, 12])
@pytest.mark.parametrize("trees", [1, 20])
def test_depths(levels: int, trees: int) -> None:
    """Trees of few levels are walked in blocks, of which the last is not full."""
    nodes = forest("target", 2, trees=trees, levels=levels)
    agrees("TreeEnsembleRegressor", [TABLE], n_targets=2, **nodes)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_dtypes(dtype: str) -> None:
    x = np.nan_to_num(3 * TABLE).astype(dtype)
    labels = {"classlabels_int64s": [4, 5, 6], "outputs": 2}
    agrees("TreeEnsembleClassifier", [x], **labels, **forest("class", 3, MODES))
    if x.dtype.kind == "f":
        agrees("TreeEnsembleRegressor", [x], n_targets=1, **forest("target", 1, MODES))


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_aggregates(aggregate: str) -> None:
    for targets, said in ((1, None), (3, None), (3, (0, 2))):
        nodes = forest("target", targets, said=said)
        given = {"n_targets": targets, "aggregate_function": aggregate, **nodes}
        agrees("TreeEnsembleRegressor", [TABLE], **given)
        agrees("TreeEnsembleRegressor", [TABLE[:0]], **given)
        base = [float(i) for i in range(1, targets + 1)]
        agrees("TreeEnsembleRegressor", [TABLE], base_values=base, **given)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize(
    "names", [{"classlabels_int64s": [7, -1, 2]}, {"classlabels_strings": ["a", "b", "c"]}]
)
def test_classes(transform: str, names: dict[str, Any]) -> None:
    ((name, labels),) = names.items()
    given = {"outputs": 2, "post_transform": transform}
    nodes = forest("class", 3)
    agrees("TreeEnsembleClassifier", [TABLE], **given, **names, **nodes)
    agrees(
        "TreeEnsembleClassifier", [TABLE], base_values=[1.0, 0.0, 2.0], **given, **names, **nodes
    )
    few = forest("class", 3, said=(1, 2))
    agrees("TreeEnsembleClassifier", [TABLE], **given, **names, **few)
    two = {name: labels[:2]}
    for said in ((0,), (1,), (0, 1)):
        nodes = forest("class", 2, said=said)
        # onnxruntime writes one score, of two, where no base value says otherwise.
        agrees("TreeEnsembleClassifier", [TABLE], **given, **two, **nodes)
        positive = nodes | {"class_weights": [abs(w) / 9 for w in nodes["class_weights"]]}
        agrees("TreeEnsembleClassifier", [TABLE], **given, **two, **positive)
        agrees("TreeEnsembleClassifier", [TABLE], **given, **two, **nodes, base_values=[0.5, 0.25])
    agrees("TreeEnsembleClassifier", [TABLE], **given, **two, base_values=[0.5],
           **forest("class", 2, said=(0,)))  # fmt: skip


def of_leaves(**changes: Any) -> dict[str, Any]:
    """A TreeEnsemble of two trees, the first of which asks for membership."""
    array = numpy_helper.from_array
    given: dict[str, Any] = {
        "n_targets": 2, "tree_roots": [0, 2], "nodes_featureids": [0, 2, 1],
        "nodes_modes": array(np.array([6, 0, 3], np.uint8), "modes"),
        "nodes_splits": array(np.array([0, 0.2, -0.5], np.float32), "splits"),
        "nodes_truenodeids": [1, 0, 2], "nodes_trueleafs": [0, 1, 1],
        "nodes_falsenodeids": [4, 1, 3], "nodes_falseleafs": [1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 1],
        "leaf_weights": array(np.array([5.0, 10.0, -2.0, 1.0, 3.0], np.float32), "weights"),
        "membership_values": array(np.array([-1, 0, 2, np.nan], np.float32), "members"),
    }  # fmt: skip
    return given | changes


def test_numbered_leaves() -> None:
    x = np.nan_to_num(TABLE).round()
    for aggregate in (0, 1, 2, 3):
        agrees("TreeEnsemble", [x], aggregate_function=aggregate, **of_leaves())
    agrees("TreeEnsemble", [x], post_transform=2, **of_leaves())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"nodes_truenodeids": [0, 0, 2]}, "cycle"),
        ({"nodes_truenodeids": [1, 0, 7]}, "neither a node nor a leaf"),
        ({"nodes_truenodeids": [1, 0]}, "different lengths"),
        ({"nodes_falsenodeids": [-2, 1, 3]}, "negative"),
        ({"nodes_featureids": [0, 4, 1]}, "trees of 5 columns"),
        ({"leaf_targetids": [0, 2, 0, 1, 1]}, "target 2 of 2"),
        ({"n_targets": 0}, "0 targets"),
        ({"aggregate_function": 4}, "aggregate_function 4"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(FTunerError, match=what):
        import_model(model_for("TreeEnsemble", [TABLE], symbolic=False, **of_leaves(**changes)))


KERNELS: dict[str, dict[str, Any]] = {
    "LINEAR": {"kernel_params": [0.0, 0.0, 0.0]},
    "RBF": {"kernel_params": [0.5, 0.0, 3.0]},
    "POLY": {"kernel_params": [0.5, 1.0, 3.0]},
    "SIGMOID": {"kernel_params": [0.25, 0.5, 3.0]},
}
X = np.nan_to_num(TABLE)


def numbers(*shape: int) -> list[float]:
    return [float(n) for n in RNG.standard_normal(shape).astype(np.float32).ravel()]


@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vector_regressors(kernel: str) -> None:
    given = {"kernel_type": kernel, "rho": [0.25], **KERNELS[kernel]}
    vectors = {"support_vectors": numbers(6, 4), "n_supports": 6, "coefficients": numbers(6)}
    for one_class in (0, 1):
        agrees("SVMRegressor", [X], one_class=one_class, **given, **vectors)
    agrees("SVMRegressor", [X], n_supports=0, coefficients=numbers(4), **given)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_support_vector_classifiers(count: int, kernel: str) -> None:
    pairs = count * (count - 1) // 2
    given = {"kernel_type": kernel, "outputs": 2, **KERNELS[kernel]}
    of_classes = [2, 3, 1, 2][:count]
    whole = sum(of_classes)
    vectors = {
        "vectors_per_class": of_classes, "support_vectors": numbers(whole, 4),
        "coefficients": numbers(count - 1, whole), "rho": numbers(pairs),
    }  # fmt: skip
    labels = {"classlabels_strings": ["d", "a", "c", "b"][:count]}
    likely: dict[str, Any] = {"prob_a": [-1.5] * pairs, "prob_b": [0.25] * pairs}
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        given["post_transform"] = transform
        agrees("SVMClassifier", [X], **given, **vectors, **labels)
    agrees("SVMClassifier", [X[:0]], **given, **vectors, **labels)
    likely["classlabels_ints"] = [5, 6, 7, 8][:count]
    agrees("SVMClassifier", [X], **given, **vectors, **likely)
    linear = {"coefficients": numbers(count, 4), "rho": [0.5]}
    agrees("SVMClassifier", [X], **given, **linear, classlabels_ints=[9, 8, 7, 6][:count])


@pytest.mark.parametrize("count", [5, 12, 33])
def test_probabilities_of_many_classes(count: int) -> None:
    pairs = count * (count - 1) // 2
    agrees(
        "SVMClassifier", [np.concatenate([X, -X, 9 * X])], kernel_type="RBF",
        kernel_params=[0.5, 0, 3], vectors_per_class=[1] * count, rho=numbers(pairs),
        support_vectors=numbers(count, 4), coefficients=numbers(count - 1, count),
        classlabels_ints=[*range(count)], prob_a=numbers(pairs), prob_b=numbers(pairs), outputs=2,
    )  # fmt: skip
