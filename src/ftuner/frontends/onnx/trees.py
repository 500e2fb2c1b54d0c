"""Ensembles of trees. Nodes are numbered by tree, by leaf or by name in files; here all become one
table of nodes, in which a node compares one column with its split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ftuner.core.dim import minimum
from ftuner.core.dtype import FLOAT32, FLOAT64, INT32
from ftuner.core.frozen import dataclass
from ftuner.frontends.onnx import scores as scoring
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply, concat, constant, gather, where
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.ir import Array, Value
from ftuner.graph.ops.trees import COLUMN, LEAF, MISSING, NEXT

MAX_DEPTH = 512
"""Most levels. Trees that are grown without a limit on this have some 50."""
MAX_COLUMNS = 1 << 24
MAX_WEIGHTS = 1 << 28
"""Most weights of all leaves for all targets."""
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ",
         "BRANCH_MEMBER")  # fmt: skip
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORM_NAMES = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
"""In the order of the numbers of TreeEnsemble."""


@dataclass(frozen=True)
class _Forest:
    """The table of nodes of all trees; see `graph.ops.trees`. The leaves are numbered."""

    splits: Array
    nodes: Array
    trees: int
    depth: int
    weights: Array
    """Of each leaf, for each target or class."""
    present: Array
    """Whether a leaf says something of a target or class; its weight is 0 elsewhere."""


class _Nodes:
    """The nodes with splits, while their comparisons become `<=`."""

    def __init__(self, feature: Array, split: Array, missing: Array, yes: Array, no: Array) -> None:
        self.columns = [list(x) for x in (feature, split, missing, no, yes)]

    def set(self, at: int, *row: object) -> int:
        """Set a node, or add one for -1; returns its number."""
        if at < 0:
            at = len(self.columns[0])
            for column in self.columns:
                column.append(None)
        for column, entry in zip(self.columns, row, strict=True):
            column[at] = entry
        return at

    def equal(self, at: int, feature: int, split: float, missing: bool, yes: int, no: int) -> int:
        """Go to `yes` where the column is the split."""
        below = np.nextafter(split, np.array(-np.inf, np.asarray(split).dtype))
        lower = self.set(-1, feature, below, False, yes, no)
        return self.set(at, feature, split, missing, no, lower)

    def member(self, at: int, feature: int, splits: Array, missing: bool, yes: int, no: int) -> int:
        """Go to `yes` where the column is one of sorted splits."""
        if len(splits) == 1:
            return self.equal(at, feature, splits[0], missing, yes, no)
        half = (len(splits) + 1) // 2
        upper = self.member(-1, feature, splits[half:], False, yes, no)
        lower = self.member(-1, feature, splits[:half], missing, yes, no)
        return self.set(at, feature, splits[half - 1], missing, upper, lower)


def _compared(
    mode: Array, feature: Array, split: Array, missing: Array, yes: Array, no: Array,
    members: Sequence[Array],
) -> tuple[Array, ...]:  # fmt: skip
    """Column, split, where NaN goes, and the nodes above the split and below it, of nodes with a
    `mode` each. Numbers of leaves are negative, -1 for the first, as more nodes may be needed."""
    with np.errstate(all="ignore"):
        below = np.nextafter(split, np.array(-np.inf, split.dtype))
    strict, turned = np.isin(mode, (1, 2)), np.isin(mode, (2, 3))
    split, missing = np.where(strict, below, split), missing != turned
    yes, no = np.where(turned, no, yes), np.where(turned, yes, no)
    if not (mode >= 4).any():
        return feature, split, missing, no, yes
    nodes = _Nodes(feature, split, missing, yes, no)
    left = iter(members)
    for at in np.flatnonzero(mode >= 4):
        kind, own = mode[at], (int(at), feature[at])
        if kind == 4:
            nodes.equal(*own, split[at], missing[at], yes[at], no[at])
        elif kind == 5:
            nodes.equal(*own, split[at], False, no[at], yes[at])
        else:
            found = next(left, split[:0])
            if not len(found):
                raise malformed("a node asks for membership in no values")
            nodes.member(*own, np.unique(found), missing[at], yes[at], no[at])
    kinds: tuple[Any, ...] = (np.int64, split.dtype, np.bool_, np.int64, np.int64)
    return tuple(np.array(x, kind) for x, kind in zip(nodes.columns, kinds, strict=True))


def _forest(columns: tuple[Array, ...], roots: Array, weights: Array, present: Array) -> _Forest:
    """`columns`: as `_compared` returns them. `roots`: negative numbers are leaves as well."""
    feature, split, missing, no, yes = columns
    count = len(feature)
    if feature.min(initial=0) < 0 or feature.max(initial=0) >= MAX_COLUMNS:
        raise malformed(f"a node reads column {feature.min(initial=0)}")
    # The roots, and then two nodes for each with a split: those below and above it.
    trees = len(roots)
    at = np.concatenate([roots, np.stack([yes, no], 1).ravel()])
    if at.size and not -len(weights) <= at.min() <= at.max() < count:
        raise malformed("a child is neither a node nor a leaf")
    depth, level = 0, np.unique(roots)
    while len(level := level[level >= 0]):
        depth += 1
        if depth > MAX_DEPTH:
            raise unsupported(f"trees of more than {MAX_DEPTH} levels, or with a cycle")
        level = np.unique(np.concatenate([yes[level], no[level]]))
    nodes = np.zeros((len(at), LEAF + 1), np.int32)
    inner, ends = at >= 0, np.flatnonzero(at < 0)
    nodes[inner, COLUMN], nodes[inner, MISSING] = feature[at[inner]], missing[at[inner]]
    nodes[inner, NEXT], nodes[inner, LEAF] = trees + 2 * at[inner], -1
    # Nothing is at most NaN, so that a leaf leads to the node after the one before it.
    nodes[ends, NEXT], nodes[ends, LEAF] = ends - 1, -1 - at[ends]
    splits = np.full(len(at), np.nan, split.dtype)
    splits[inner] = split[at[inner]]
    return _Forest(splits, nodes, trees, depth, weights, present)


def _by_names(node: NodeView, of: str, targets: int) -> _Forest:
    """The forest of TreeEnsembleClassifier and TreeEnsembleRegressor, which name nodes by the
    number of their tree and their own."""
    trees, ids = (_integers(node, f"nodes_{x}ids") for x in ("tree", "node"))
    yes, no = (_integers(node, f"nodes_{x}nodeids") for x in ("true", "false"))
    feature, missing = _integers(node, "nodes_featureids"), _missing(node, len(ids))
    split, named = _floats(node, "nodes_values"), np.array(node.texts("nodes_modes"), object)
    if {len(x) for x in (trees, ids, yes, no, feature, split, named, missing)} != {len(ids)}:
        raise malformed("lists of nodes have different lengths")
    tree_of, node_of = (_integers(node, f"{of}_{x}ids") for x in ("tree", "node"))
    column, weight = _integers(node, f"{of}_ids"), _floats(node, f"{of}_weights")
    known = {key: i for i, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    if len(known) < len(ids):
        raise malformed("two nodes of a tree have one number")
    inner = named != "LEAF"
    number = np.where(inner, np.cumsum(inner) - 1, -np.cumsum(~inner))

    def numbers(of_trees: Array, of_ids: Array) -> Array:
        pairs = zip(of_trees.tolist(), of_ids.tolist(), strict=True)
        found = [known.get(pair) for pair in pairs]
        if None in found:
            raise malformed("a node that is named does not exist")
        return number[np.array(found, np.int64)]

    mode = np.array([MODES.index(x) if x in MODES else -1 for x in named[inner]], np.int64)
    if (mode < 0).any() or (mode == 6).any():
        raise malformed(f"nodes_modes are {', '.join(sorted(set(named)))}")
    columns = _compared(
        mode, feature[inner], split[inner], missing[inner], numbers(trees[inner], yes[inner]),
        numbers(trees[inner], no[inner]), (),
    )  # fmt: skip
    _, first = np.unique(trees, return_index=True)
    if not len(tree_of) == len(node_of) == len(column) == len(weight):
        raise malformed("lists of weights have different lengths")
    leaves = _weights(-1 - numbers(tree_of, node_of), column, weight, int((~inner).sum()), targets)
    return _forest(columns, number[np.sort(first)], *leaves)


def _weights(
    leaf: Array, column: Array, weight: Array, leaves: int, targets: int
) -> tuple[Array, Array]:
    if leaves * targets > MAX_WEIGHTS:
        raise unsupported(f"{leaves} leaves with weights for {targets} targets")
    kept = leaf >= 0
    leaf, column, weight = leaf[kept], column[kept], weight[kept]
    if len(column) and not 0 <= column.min() <= column.max() < targets:
        raise malformed(f"weights of target {column.max()} of {targets}")
    whole, present = (np.zeros((leaves, targets), dtype) for dtype in (weight.dtype, np.bool_))
    np.add.at(whole, (leaf, column), weight)
    present[leaf, column] = True
    return whole, present


def _integers(node: NodeView, name: str) -> Array:
    return np.array(node.integers(name), np.int64)


def _missing(node: NodeView, count: int) -> Array:
    """Whether NaN goes to `yes`, of each node with a split."""
    given = node.integers("nodes_missing_value_tracks_true", ())
    return np.array(given, np.bool_) if given else np.zeros(count, np.bool_)


def _floats(node: NodeView, name: str) -> Array:
    """A list of floats, or the tensor that may be in its place."""
    if node.has(f"{name}_as_tensor"):
        return node.tensor(f"{name}_as_tensor").array.ravel()
    return np.array(node.numbers(name, ()), np.float32)


def _reached(x: Value, forest: _Forest) -> Value:
    """The leaf that each row reaches in each tree, (rows, trees)."""
    least = int(forest.nodes[:, COLUMN].max(initial=0)) + 1
    require(minimum(least, x.shape[1]), least, f"trees of {least} columns for {x.type}")
    return apply(
        "trees", x, constant(forest.splits, x.dtype), constant(forest.nodes, INT32),
        trees=forest.trees, depth=forest.depth, missing=bool(forest.nodes[:, MISSING].any()),
    )  # fmt: skip


def _scores(x: Value, forest: _Forest, aggregate: str) -> tuple[Value, Value | None]:
    """The scores, (rows, targets), and whether a leaf says something of each; None if all do."""
    at = _reached(x, forest)

    def reduced(of_leaves: Array, kind: str) -> Value:
        return gather(constant(of_leaves, x.dtype), at).reduce(kind, [1], keep=False)

    ends = {"MIN": ("minimum", np.inf), "MAX": ("maximum", -np.inf)}
    kind, fill = ends.get(aggregate, ("sum", 0))
    scores = reduced(np.where(forest.present, forest.weights, fill), kind)
    said = None
    if not forest.present.all():
        said = reduced(forest.present.astype(np.float32), "maximum") > 0
    return scores / forest.trees if aggregate == "AVERAGE" else scores, said


def _shown(scores: Value, said: Value | None) -> Value:
    """The scores as onnxruntime gives them: 0 where no leaf says anything, whatever the base."""
    return scores if said is None else where(said, scores, 0)


def _table(x: Value) -> Value:
    x = scoring.rows(x)
    return x if x.dtype == FLOAT64 else x.cast(FLOAT32)


@onnx("TreeEnsembleClassifier", domain=LEARNING)
def _classifier(node: NodeView, table: Value) -> Sequence[Value]:
    """Labels and scores, by the rules of onnxruntime for two classes of which a file may give one
    score."""
    x, names = _table(table), scoring.labels(node)
    count, transform = scoring.count_of(names), scoring.transform_of(node)
    if count < 2:
        raise unsupported(f"{count} class")
    forest = _by_names(node, "class", count)
    scores, said = _scores(x, forest, "SUM")
    base = _floats(node, "base_values")
    offset = constant(base, scores.dtype)
    if count > 2:
        if len(base) == count:
            scores = scores + offset
        elif len(base):
            raise unsupported(f"{len(base)} base values of {count} classes")
        elif said is not None:
            label = scoring.best(names, where(said, scores, -np.inf))
            return [label, _given(transform, _shown(scores, said))]
        return [scoring.best(names, scores), _given(transform, scores)]
    first, second = _shown(scores, said).pieces(1, [1, 1])
    of_second = bool(forest.present[:, 1].any())
    if of_second and len(base) == 2:
        second = first + offset.slice(0, 1, 1)
        first = -second
    elif len(base):
        first = first + offset.slice(0, 0, 1)
    if said is not None:
        first = _shown(first, said.slice(1, 0, 1))
    weight = second if of_second else first
    positive = bool((forest.weights >= 0).all())
    if forest.present.any(axis=0).sum() == 1:
        label = scoring.above(names, weight, 0.5 if positive else 0)
    else:
        label, positive = scoring.above(scoring.literal_labels(names), weight, 0), False
    if not of_second and len(base) < 2:
        return [label, scoring.both(transform, first, positive).cast(FLOAT32)]
    return [label, _given(transform, concat([first, second], 1))]


def _given(transform: str, scores: Value) -> Value:
    return scoring.TRANSFORMS[transform](scores).cast(FLOAT32)


@onnx("TreeEnsembleRegressor", domain=LEARNING)
def _regressor(
    node: NodeView, table: Value, n_targets: int,
    aggregate_function: Literal["AVERAGE", "SUM", "MIN", "MAX"] = "SUM",
) -> Value:  # fmt: skip
    x = _table(table)
    _expect_targets(n_targets)
    forest = _by_names(node, "target", n_targets)
    base = _floats(node, "base_values")
    return _targets(x, forest, aggregate_function, scoring.transform_of(node), base).cast(FLOAT32)


def _targets(x: Value, forest: _Forest, aggregate: str, transform: str, base: Array) -> Value:
    scores, said = _scores(x, forest, aggregate)
    if len(base) == scores.shape[1]:
        scores = scores + constant(base, scores.dtype)
    elif len(base):
        raise unsupported(f"{len(base)} base values of {scores.shape[1]} targets")
    scores = _shown(scores, said)
    made = scoring.TRANSFORMS[transform](scores)
    return scores if scores.shape[1] == 1 and transform != "PROBIT" else made


def _expect_targets(targets: int) -> None:
    if not 1 <= targets <= 1 << 20:
        raise malformed(f"{targets} targets")


@onnx("TreeEnsemble", domain=LEARNING)
def _ensemble(
    node: NodeView, table: Value, n_targets: int = 1, aggregate_function: int = 1,
    post_transform: int = 0,
) -> Value:  # fmt: skip
    """TreeEnsemble, whose nodes and leaves are numbered."""
    x = _table(table)
    if x.dtype != table.dtype:
        raise unsupported(f"{table.type}; expected float32 or float64")
    numbers: Mapping[str, Array] = {
        name: _integers(node, name)
        for name in (
            "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
            "nodes_falseleafs", "leaf_targetids", "tree_roots",
        )
    }  # fmt: skip
    mode, split, weight = (
        node.tensor(name).array.ravel() for name in ("nodes_modes", "nodes_splits", "leaf_weights")
    )
    feature, column = numbers["nodes_featureids"], numbers["leaf_targetids"]
    missing = _missing(node, len(feature))
    lengths = {len(x) for name, x in numbers.items() if name.startswith("nodes_")}
    if lengths | {len(mode), len(split), len(missing)} != {len(feature)}:
        raise malformed("lists of nodes have different lengths")
    if len(column) != len(weight) or (len(mode) and mode.max() >= len(MODES)):
        raise malformed(f"{len(column)} targets, {len(weight)} weights of leaves")
    yes, no = (
        np.where(numbers[f"nodes_{x}leafs"] != 0, -1 - numbers[f"nodes_{x}nodeids"],
                 numbers[f"nodes_{x}nodeids"])
        for x in ("true", "false")
    )  # fmt: skip
    given = np.zeros(0, split.dtype)
    if node.has("membership_values"):
        given = node.tensor("membership_values").array.ravel()
    ends = np.flatnonzero(np.isnan(given))
    members = [m[~np.isnan(m)] for m in np.split(given, ends)]
    _expect_targets(n_targets)
    columns = _compared(mode.astype(np.int64), feature, split, missing, yes, no, members)
    leaves = _weights(np.arange(len(weight)), column, weight, len(weight), n_targets)
    roots = numbers["tree_roots"]
    if (
        any((numbers[f"nodes_{x}nodeids"] < 0).any() for x in ("true", "false"))
        or roots.min(initial=0) < 0
    ):
        raise malformed("a number of a node is negative")
    forest = _forest(columns, roots, *leaves)
    kind, transform = aggregate_function, post_transform
    if not (0 <= kind < len(AGGREGATES) and 0 <= transform < len(TRANSFORM_NAMES)):
        raise malformed(f"aggregate_function {kind}, post_transform {transform}")
    base = np.zeros(0, np.float32)
    return _targets(x, forest, AGGREGATES[kind], TRANSFORM_NAMES[transform], base)
