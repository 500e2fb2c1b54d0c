"""Boosted corrections: gradient boosting (Friedman, 2001) whose trees take turns between the
features of the share and those of the cover, so that the sum stays additive in the two. As linear
ones, they are fitted robustly (Huber weights).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ftuner.cost.cpu.correction_features import COVER_FEATURES, KINDS, SHARE_FEATURES
from ftuner.errors import ConfigurationError
from ftuner.hardware.correction import Array, Trees
from ftuner.learn.features import Table
from ftuner.learn.training import HUBER, LINEAR, Additive, Form, component

STAGES, RATE, DEPTH = 60, 0.15, 3
"""Of boosting: stages of one tree for each component, what of a tree is added, and its depth."""
LEAST_LEAF = 8
"""Samples of a leaf."""


def fit_boosted(table: Table, target: Array, penalty: float = 0.0) -> Additive:
    """Boosted trees of `target`, which take turns between the two components; no penalty changes
    them.

    Raises:
        ConfigurationError: the extra `learn` is not installed.
    """
    try:
        from sklearn.tree import DecisionTreeRegressor  # Only here: most processes never train.
    except ImportError as error:
        raise ConfigurationError(
            f"{error}; install the extra: pip install 'ftuner-tools[learn]'"
        ) from None
    share = np.hstack([table.share, table.kind[:, None]])
    start = float(np.median(target))
    left = target - start
    of_cover: list[Any] = []
    of_share: list[Any] = []
    leaf = min(LEAST_LEAF, max(len(table) // 8, 1))
    for stage in range(STAGES):
        size = np.abs(left)
        scale = 1.4826 * float(np.median(size)) or 1.0
        weight = table.weight * np.minimum(1.0, HUBER * scale / np.maximum(size, 1e-12))
        for trees, rows in ((of_cover, table.cover), (of_share, share)):
            tree = DecisionTreeRegressor(max_depth=DEPTH, min_samples_leaf=leaf, random_state=stage)
            tree.fit(rows, left, sample_weight=weight)
            left = left - RATE * tree.predict(rows)
            trees.append(tree.tree_)
    flat = fit_constant(table, start)
    return Additive(
        replace(flat.share, trees=_exported(of_share)),
        replace(flat.cover, trees=_exported(of_cover)),
    )


def fit_constant(table: Table, value: float) -> Additive:
    """The model that is one number, with the ranges of a table."""
    share = np.zeros((len(SHARE_FEATURES), len(KINDS)))
    cover = np.zeros((len(COVER_FEATURES), 1))
    return Additive(
        component(SHARE_FEATURES, table.share, share, np.full(len(KINDS), value)),
        component(COVER_FEATURES, table.cover, cover, np.zeros(1)),
    )


def _exported(grown: Sequence[Any]) -> Trees:
    """scikit-learn's trees as plain arrays; leaves there have no children (-1) nor a feature."""
    feature, threshold, left, right, value, roots = [], [], [], [], [], []
    count, depth = 0, 0
    for tree in grown:
        own = np.arange(count, count + tree.node_count)
        leaf = tree.children_left < 0
        roots.append(count)
        feature.append(np.where(leaf, 0, tree.feature))
        threshold.append(np.where(leaf, 0.0, tree.threshold))
        left.append(np.where(leaf, own, tree.children_left + count))
        right.append(np.where(leaf, own, tree.children_right + count))
        value.append(np.where(leaf, RATE * tree.value[:, 0, 0], 0.0))
        count += tree.node_count
        depth = max(depth, tree.max_depth)
    return Trees(
        np.array(roots), np.concatenate(feature), np.concatenate(threshold), np.concatenate(left),
        np.concatenate(right), np.concatenate(value), depth,
    )  # fmt: skip


FORMS: Mapping[str, Form] = {**LINEAR, "boosted": Form(fit_boosted, (0.0,))}
"""All forms of model."""
