"""Ensembles of trees. Every row walks down all trees at once, a level at a time: at each level a
node compares one column with its split. Leaves lead to themselves, so that all trees take as many
levels as the deepest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ftuner.core.dim import minimum
from ftuner.core.dtype import FLOAT32, FLOAT64, INT32
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import LEARNING
from ftuner.frontends.onnx.scores import (
    above,
    best,
    both,
    count_of,
    labels,
    literal_labels,
    rows,
    transform_of,
    transformed,
)
from ftuner.graph.ir import Array, Value

MAX_DEPTH = 512
"""Most levels. Trees that are grown without a limit on this have some 50."""
MAX_COLUMNS = 1 << 24
MAX_WEIGHTS = 1 << 28
"""Most weights of all leaves for all targets."""
BLOCK = 16
"""Trees that a row walks down at once: the 32-bit lanes of AVX-512's vectors."""
MAX_BLOCK_DEPTH = 8
"""Most levels of trees in blocks. Derived: the nodes of a block, 16 bytes each, take at most
64 KiB."""
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ",
         "BRANCH_MEMBER")  # fmt: skip
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORM_NAMES = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
"""In the order of the numbers of TreeEnsemble."""


@dataclass(frozen=True)
class _Forest:
    """The nodes of all trees: first those with a split, then the leaves. A row goes on to
    `children[node, 1]` where its column `feature` is at most `split`, or is NaN and `missing` says
    so, else to `children[node, 0]`."""

    feature: Array
    split: Array
    missing: Array
    children: Array
    roots: Array
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
    context: Context, mode: Array, feature: Array, split: Array, missing: Array, yes: Array,
    no: Array, members: Sequence[Array],
) -> tuple[Array, ...]:  # fmt: skip
    """The columns of `_Forest` of nodes with a `mode` each. Numbers of leaves are negative, -1 for
    the first, as more nodes may be needed."""
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
                raise context.malformed("a node asks for membership in no values")
            nodes.member(*own, np.unique(found), missing[at], yes[at], no[at])
    kinds: tuple[Any, ...] = (np.int64, split.dtype, np.bool_, np.int64, np.int64)
    return tuple(np.array(x, kind) for x, kind in zip(nodes.columns, kinds, strict=True))


def _forest(
    context: Context, columns: tuple[Array, ...], roots: Array, weights: Array, present: Array
) -> _Forest:
    """`columns`: as `_compared` returns them. `roots`: negative numbers are leaves as well."""
    feature, split, missing, no, yes = columns
    count = len(feature)
    if feature.min(initial=0) < 0 or feature.max(initial=0) >= MAX_COLUMNS:
        raise context.malformed(f"a node reads column {feature.min(initial=0)}")
    leaves = np.arange(count, count + len(weights))

    def numbered(at: Array) -> Array:
        return np.where(at < 0, count - 1 - at, at)

    inner = numbered(np.stack([no, yes], 1).reshape(-1, 2))
    children = np.concatenate([inner, np.stack([leaves, leaves], 1)])
    roots = numbered(roots)
    for numbers in (children, roots):
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(children):
            raise context.malformed("a child is no node or leaf")
    depth, level = 0, np.unique(roots)
    while len(level := level[level < count]):
        depth += 1
        if depth > MAX_DEPTH:
            raise context.unsupported(f"trees of more than {MAX_DEPTH} levels, or with a cycle")
        level = np.unique(children[level])
    feature, split, missing = (
        np.append(x, np.zeros(len(leaves), x.dtype)) for x in (feature, split, missing)
    )
    return _Forest(feature, split, missing, children, roots, depth, weights, present)


def _by_names(context: Context, node: NodeView, of: str, targets: int) -> _Forest:
    """The forest of TreeEnsembleClassifier and TreeEnsembleRegressor, which name nodes by the
    number of their tree and their own."""
    trees, ids = (np.array(node.integers(f"nodes_{x}ids"), np.int64) for x in ("tree", "node"))
    yes, no = (np.array(node.integers(f"nodes_{x}nodeids"), np.int64) for x in ("true", "false"))
    feature = np.array(node.integers("nodes_featureids"), np.int64)
    split, named = _floats(node, "nodes_values"), np.array(node.texts("nodes_modes"), object)
    missing = np.array(node.integers("nodes_missing_value_tracks_true", ()), np.bool_)
    missing = missing if missing.size else np.zeros(len(ids), np.bool_)
    if {len(x) for x in (trees, ids, yes, no, feature, split, named, missing)} != {len(ids)}:
        raise context.malformed("lists of nodes have different lengths")
    of_nodes = (np.array(node.integers(f"{of}_{x}ids"), np.int64) for x in ("tree", "node"))
    column, weight = np.array(node.integers(f"{of}_ids"), np.int64), _floats(node, f"{of}_weights")
    known = {key: i for i, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    if len(known) < len(ids):
        raise context.malformed("two nodes of a tree have one number")
    inner = named != "LEAF"
    number = np.where(inner, np.cumsum(inner) - 1, -np.cumsum(~inner))

    def numbers(of_trees: Array, of_ids: Array) -> Array:
        pairs = zip(of_trees.tolist(), of_ids.tolist(), strict=True)
        found = [known.get(pair) for pair in pairs]
        if None in found:
            raise context.malformed("a node that is named does not exist")
        return number[np.array(found, np.int64)]

    mode = np.array([MODES.index(x) if x in MODES else -1 for x in named[inner]], np.int64)
    if (mode < 0).any() or (mode == 6).any():
        raise context.malformed(f"nodes_modes are {', '.join(sorted(set(named)))}")
    columns = _compared(
        context, mode, feature[inner], split[inner], missing[inner],
        numbers(trees[inner], yes[inner]), numbers(trees[inner], no[inner]), (),
    )  # fmt: skip
    _, first = np.unique(trees, return_index=True)
    tree_of, node_of = of_nodes
    if not len(tree_of) == len(node_of) == len(column) == len(weight):
        raise context.malformed("lists of weights have different lengths")
    leaf = -1 - numbers(tree_of, node_of)
    return _forest(
        context, columns, number[np.sort(first)],
        *_weights(context, leaf, column, weight, int((~inner).sum()), targets),
    )  # fmt: skip


def _weights(
    context: Context, leaf: Array, column: Array, weight: Array, leaves: int, targets: int
) -> tuple[Array, Array]:
    if leaves * targets > MAX_WEIGHTS:
        raise context.unsupported(f"{leaves} leaves with weights for {targets} targets")
    kept = leaf >= 0
    leaf, column, weight = leaf[kept], column[kept], weight[kept]
    if len(column) and not 0 <= column.min() <= column.max() < targets:
        raise context.malformed(f"weights of target {column.max()} of {targets}")
    whole, present = (
        np.zeros((leaves, targets), weight.dtype),
        np.zeros((leaves, targets), np.bool_),
    )
    np.add.at(whole, (leaf, column), weight)
    present[leaf, column] = True
    return whole, present


def _floats(node: NodeView, name: str) -> Array:
    """A list of floats, or the tensor that may be in its place."""
    if node.has(f"{name}_as_tensor"):
        return node.tensor(f"{name}_as_tensor").array.ravel()
    return np.array(node.numbers(name) if node.has(name) else (), np.float32)


def _reached(context: Context, x: Value, forest: _Forest) -> Value:
    """The leaf that each row reaches in each tree, (blocks of trees, rows, trees of a block). All
    rows walk down one block, whose nodes stay in the caches. Its trees lie along vectors, which are
    full however few rows there are."""
    least = int(forest.feature.max(initial=0)) + 1
    context.builder.require(
        minimum(least, x.shape[1]), least, f"trees of {least} columns for {x.type}"
    )
    feature, children = (
        context.builder.constant(a.astype(np.int32), INT32)
        for a in (forest.feature, forest.children.ravel())
    )
    split = context.builder.constant(forest.split, x.dtype)
    missing = context.builder.constant(forest.missing) if forest.missing.any() else None
    side = min(_side(forest), len(forest.roots))
    blocks = forest.roots.astype(np.int32).reshape(-1, 1, side)
    roots = context.builder.constant(blocks, INT32)
    at = context.broadcast(roots, (len(blocks), x.shape[0], side))
    table = context.broadcast(context.unsqueeze(x, [0]), (len(blocks), *x.shape))
    where = context.builder.where

    def taken(values: Value) -> Value:
        return context.add("gather", values, at, axis=0, node=where)

    for _ in range(forest.depth):
        number = context.add("gather_elements", table, taken(feature), axis=2, node=where)
        yes = context.add("less_equal", number, taken(split))
        if missing is not None:
            none = context.add("logical_and", context.add("isnan", number), taken(missing))
            yes = context.add("logical_or", yes, none)
        at = context.add("add", context.scaled(at, 2), context.cast(yes, INT32))
        at = taken(children)
    first = len(forest.children) - len(forest.weights)
    return context.add_to(at, -first)


def _side(forest: _Forest) -> int:
    """Trees of a block. Deep ones are walked one after the other, by vectors of rows."""
    return BLOCK if forest.depth <= MAX_BLOCK_DEPTH else 1


def _padded(forest: _Forest) -> _Forest:
    """The forest with whole blocks of trees: those that are added are a leaf that says nothing."""
    side = _side(forest)
    missing = -len(forest.roots) % side
    if len(forest.roots) < side or not missing:
        return forest
    leaf = len(forest.children)
    return replace(
        forest,
        feature=np.append(forest.feature, 0),
        split=np.append(forest.split, np.zeros(1, forest.split.dtype)),
        missing=np.append(forest.missing, False),
        children=np.append(forest.children, [[leaf, leaf]], 0),
        roots=np.append(forest.roots, [leaf] * missing),
        weights=np.append(forest.weights, np.zeros_like(forest.weights[:1]), 0),
        present=np.append(forest.present, np.zeros_like(forest.present[:1]), 0),
    )


def _scores(
    context: Context, x: Value, forest: _Forest, aggregate: str
) -> tuple[Value, Value | None]:
    """The scores, (rows, targets), and whether a leaf says something of each; None if all do."""
    padded = _padded(forest)
    at = _reached(context, x, padded)
    where = context.builder.where

    def reduced(of_leaves: Array, kind: str) -> Value:
        table = context.builder.constant(of_leaves, x.dtype)
        return context.reduce(
            context.add("gather", table, at, axis=0, node=where), kind, [0, 2], keep=False
        )

    ends = {"MIN": ("minimum", np.inf), "MAX": ("maximum", -np.inf)}
    kind, fill = ends.get(aggregate, ("sum", 0))
    scores = reduced(np.where(padded.present, padded.weights, fill), kind)
    said = None
    if not forest.present.all():
        hits = reduced(padded.present.astype(np.float32), "maximum")
        said = context.add("less", context.scalar(0, hits.dtype), hits)
    if aggregate == "AVERAGE":
        scores = context.add("divide", scores, context.scalar(len(forest.roots), scores.dtype))
    return scores, said


def _shown(context: Context, scores: Value, said: Value | None) -> Value:
    """The scores as onnxruntime gives them: 0 where no leaf says anything, whatever the base."""
    if said is None:
        return scores
    return context.add("where", said, scores, context.scalar(0, scores.dtype))


def _table(context: Context, node: NodeView) -> Value:
    x = rows(context, node.input(0))
    return x if x.dtype == FLOAT64 else context.cast(x, FLOAT32)


def _classifier(context: Context, node: NodeView) -> Sequence[Value]:
    """Labels and scores, by the rules of onnxruntime for two classes of which a file may give one
    score."""
    x, names = _table(context, node), labels(context, node)
    count, transform = count_of(names), transform_of(context, node)
    if count < 2:
        raise context.unsupported(f"{count} class")
    forest = _by_names(context, node, "class", count)
    scores, said = _scores(context, x, forest, "SUM")
    base = _floats(node, "base_values")
    offset = context.builder.constant(base, scores.dtype)
    if count > 2:
        if len(base) == count:
            scores = context.add("add", scores, offset)
        elif len(base):
            raise context.unsupported(f"{len(base)} base values of {count} classes")
        elif said is not None:
            lowest = context.scalar(-np.inf, scores.dtype)
            label = best(context, names, context.add("where", said, scores, lowest))
            return [label, _given(context, transform, _shown(context, scores, said))]
        return [best(context, names, scores), _given(context, transform, scores)]
    first, second = context.pieces(_shown(context, scores, said), 1, [1, 1])
    of_second = bool(forest.present[:, 1].any())
    if of_second and len(base) == 2:
        second = context.add("add", first, context.slice(offset, 0, 1, 1))
        first = context.add("negative", second)
    elif len(base):
        first = context.add("add", first, context.slice(offset, 0, 0, 1))
    if said is not None:
        first = _shown(context, first, context.slice(said, 1, 0, 1))
    weight = second if of_second else first
    positive = bool((forest.weights >= 0).all())
    if forest.present.any(axis=0).sum() == 1:
        label = above(context, names, weight, 0.5 if positive else 0)
    else:
        label, positive = above(context, literal_labels(context, names), weight, 0), False
    if not of_second and len(base) < 2:
        return [label, context.cast(both(context, transform, first, positive), FLOAT32)]
    return [label, _given(context, transform, context.concat([first, second], 1))]


def _given(context: Context, transform: str, scores: Value) -> Value:
    return context.cast(transformed(context, transform, scores), FLOAT32)


def _regressor(context: Context, node: NodeView) -> Sequence[Value]:
    x = _table(context, node)
    targets = node.integer("n_targets")
    _expect_targets(context, targets)
    forest = _by_names(context, node, "target", targets)
    aggregate = node.text("aggregate_function", "SUM")
    transform = transform_of(context, node)
    base = _floats(node, "base_values")
    return [context.cast(_targets(context, x, forest, aggregate, transform, base), FLOAT32)]


def _targets(
    context: Context, x: Value, forest: _Forest, aggregate: str, transform: str, base: Array
) -> Value:
    if aggregate not in AGGREGATES:
        raise context.malformed(f"aggregate_function {aggregate!r}")
    scores, said = _scores(context, x, forest, aggregate)
    if len(base) == scores.shape[1]:
        scores = context.add("add", scores, context.builder.constant(base, scores.dtype))
    elif len(base):
        raise context.unsupported(f"{len(base)} base values of {scores.shape[1]} targets")
    scores = _shown(context, scores, said)
    made = transformed(context, transform, scores)
    return scores if scores.shape[1] == 1 and transform != "PROBIT" else made


def _expect_targets(context: Context, targets: int) -> None:
    if not 1 <= targets <= 1 << 20:
        raise context.malformed(f"{targets} targets")


def _ensemble(context: Context, node: NodeView) -> Sequence[Value]:
    """TreeEnsemble, whose nodes and leaves are numbered."""
    x = _table(context, node)
    if x.dtype != node.input(0).dtype:
        raise context.unsupported(f"{node.input(0).type}; expected float32 or float64")
    numbers: Mapping[str, Array] = {
        name: np.array(node.integers(name), np.int64)
        for name in (
            "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs",
            "nodes_falseleafs", "leaf_targetids", "tree_roots",
        )
    }  # fmt: skip
    mode, split, weight = (
        node.tensor(name).array.ravel() for name in ("nodes_modes", "nodes_splits", "leaf_weights")
    )
    feature, column = numbers["nodes_featureids"], numbers["leaf_targetids"]
    missing = np.array(node.integers("nodes_missing_value_tracks_true", ()), np.bool_)
    missing = missing if missing.size else np.zeros(len(feature), np.bool_)
    lengths = {len(x) for name, x in numbers.items() if name.startswith("nodes_")}
    if lengths | {len(mode), len(split), len(missing)} != {len(feature)}:
        raise context.malformed("lists of nodes have different lengths")
    if len(column) != len(weight) or (len(mode) and mode.max() >= len(MODES)):
        raise context.malformed(f"{len(column)} targets, {len(weight)} weights of leaves")
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
    targets = node.integer("n_targets", 1)
    _expect_targets(context, targets)
    columns = _compared(context, mode.astype(np.int64), feature, split, missing, yes, no, members)
    leaves = _weights(context, np.arange(len(weight)), column, weight, len(weight), targets)
    roots = numbers["tree_roots"]
    if (
        any((numbers[f"nodes_{x}nodeids"] < 0).any() for x in ("true", "false"))
        or roots.min(initial=0) < 0
    ):
        raise context.malformed("a number of a node is negative")
    forest = _forest(context, columns, roots, *leaves)
    kind, transform = node.integer("aggregate_function", 1), node.integer("post_transform", 0)
    if not (0 <= kind < len(AGGREGATES) and 0 <= transform < len(TRANSFORM_NAMES)):
        raise context.malformed(f"aggregate_function {kind}, post_transform {transform}")
    base = np.zeros(0, np.float32)
    return [_targets(context, x, forest, AGGREGATES[kind], TRANSFORM_NAMES[transform], base)]


TREES: Table = {
    (LEARNING, "TreeEnsemble"): _ensemble,
    (LEARNING, "TreeEnsembleClassifier"): _classifier,
    (LEARNING, "TreeEnsembleRegressor"): _regressor,
}
