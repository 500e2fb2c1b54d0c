"""Learned corrections as documents: what is written is read, and nothing else is accepted."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ftuner.cost.cpu.correction import UNKNOWN, Correction, walk
from ftuner.errors import DatasetError
from ftuner.hardware.correction import MAX_NODES, LearnedCorrection, from_document


def trees() -> dict[str, Any]:
    """One tree that asks for feature 0, then for feature 1; another that is one leaf."""
    return {
        "roots": [0, 5],
        "feature": [0, 1, 0, 0, 0, 0],
        "threshold": [0.5, 1.5, 0.0, 0.0, 0.0, 0.0],
        "left": [1, 3, 2, 3, 4, 5],
        "right": [2, 4, 2, 3, 4, 5],
        "value": [0.0, 0.0, 0.3, 0.1, 0.2, 0.01],
    }


def document() -> dict[str, Any]:
    return {
        "kind": "ftuner-correction",
        "schema": 2,
        "fingerprint": "f",
        "workers": [1, 8],
        "kinds": ["low", "tall"],
        "share": {
            "names": ["x", "y"],
            "low": [0.0, 0.0],
            "high": [1.0, 4.0],
            "weights": [[0.1, 0.2], [0.0, 0.5]],
            "intercept": [0.0, 0.1],
            "trees": None,
        },
        "cover": {
            "names": ["rows"],
            "low": [0.0],
            "high": [6.0],
            "weights": [[0.25]],
            "intercept": [0.0],
            "trees": None,
        },
        "bias": 0.05,
        "uncertainty": {
            "coverage": 0.9,
            "mean": [0.5, 2.0],
            "scale": [0.5, 1.0],
            "whitening": [[0.1, 0.0, 0.0], [0.0, 0.1, 0.0], [0.0, 0.0, 0.1]],
            "spread": [0.01, 0.02],
            "limit": [0.1, 0.1],
        },
        "provenance": {"form": "linear"},
    }


def test_documents_are_read_as_they_were_written() -> None:
    given = document()
    given["cover"]["trees"] = trees()
    given["cover"]["names"] = ["x", "y"]
    given["cover"].update(low=[0.0, 0.0], high=[1.0, 2.0], weights=[[0.1], [0.2]])
    found = from_document(given)
    again = from_document(json.loads(json.dumps(found.to_document())))
    assert found.to_document() == given == again.to_document()
    assert found == again
    assert hash(found) == hash(again)
    given["bias"] = 0.06
    assert from_document(given) != found


def test_linear_components() -> None:
    found = Correction(from_document(document()))
    low, tall = found.share_factors((1.0, 2.0))
    assert low == pytest.approx(math.exp(0.1 - 0.05))
    assert tall == pytest.approx(math.exp(0.2 + 1.0 + 0.1 - 0.05))
    assert found.cover_factors([[2.0], [7.0]]) == [pytest.approx(math.exp(0.5)), UNKNOWN]


def test_what_is_beyond_the_range_or_uncertain_is_unknown() -> None:
    found = Correction(from_document(document()))
    assert found.share_factors((1.1, 2.0)) == (UNKNOWN, UNKNOWN)
    uncertain = document()
    uncertain["uncertainty"]["limit"] = [0.1, 0.001]
    low, tall = Correction(from_document(uncertain)).share_factors((1.0, 2.0))
    assert low != UNKNOWN
    assert tall == UNKNOWN
    wild = document()
    wild["share"]["intercept"] = [0.0, 5.0]
    low, tall = Correction(from_document(wild)).share_factors((1.0, 2.0))
    assert low != UNKNOWN
    assert tall == UNKNOWN


def test_trees() -> None:
    given = document()
    # Of the share the kind of cover is one more feature: the first tree asks for it as number 1.
    given["share"].update(names=["x"], low=[0.0], high=[1.0], weights=[[0.0, 0.0]], trees=trees())
    given["uncertainty"].update(mean=[0.0], scale=[1.0], whitening=[[0.1, 0.0], [0.0, 0.1]])
    given["share"]["trees"]["threshold"][1] = 0.5
    given["bias"] = 0.0
    found = from_document(given)
    assert found.share.trees is not None
    assert found.share.trees.depth == 2
    rows = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(walk(found.share.trees, rows), [0.11, 0.21, 0.31])
    low, tall = Correction(found).share_factors((0.0,))
    assert low == pytest.approx(math.exp(0.11))
    assert tall == pytest.approx(math.exp(0.1 + 0.21))


def _set(*path: str | int) -> Callable[[dict[str, Any], Any], None]:
    def change(given: dict[str, Any], value: Any) -> None:
        for key in path[:-1]:
            given = given[key]  # type: ignore[index]
        given[path[-1]] = value  # type: ignore[index]

    return change


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        (_set("kind"), "other", "'other' of schema 2"),
        (_set("schema"), 1, "of schema 1; expected 'ftuner-correction' of schema 2"),
        (_set("more"), 1, "has the entries"),
        (_set("fingerprint"), 5, "not a string"),
        (_set("workers"), [], "workers is not a list of 1 to 4096 integers"),
        (_set("workers"), 2, "workers is not a list"),
        (_set("workers"), [2, 2], "workers has 2; expected an integer from 3"),
        (_set("workers"), [0], "workers has 0; expected an integer from 1"),
        (_set("workers"), [1.0], "workers has 1.0"),
        (_set("workers"), [True], "workers has True"),
        (_set("workers"), [10**10], "workers has 10000000000"),
        (_set("kinds"), [], "share.weights"),
        (_set("kinds"), ["low"], "share.weights"),
        (_set("kinds"), ["low"] * 17, "kinds is not a list"),
        (_set("share"), None, "share is None"),
        (_set("share", "low"), [0.0], "share.low is not a list of 2"),
        (_set("share", "low"), [0.0, "0"], "share.low is '0'"),
        (_set("share", "high"), [1.0, True], "share.high is True"),
        (_set("share", "weights"), [[0.1, 0.2], [0.0]], "share.weights is not a list of 2"),
        (_set("share", "weights", 0), [float("nan"), 0.0], "share.weights is nan"),
        (_set("share", "intercept", 0), float("inf"), "share.intercept is inf"),
        (_set("share", "intercept", 0), 10**400, "share.intercept is 1"),
        (_set("share", "intercept", 0), -1e10, "share.intercept is -1"),
        (_set("share", "names"), ["x"] * 200, "share.names is not a list"),
        (_set("bias"), None, "bias is None"),
        (_set("uncertainty", "scale"), [0.5, 0.0], "scale has entries that are not positive"),
        (_set("uncertainty", "whitening"), [[1.0]], "whitening is not a list of 3"),
        (_set("provenance"), {"form": 1}, "not a string"),
        (_set("provenance"), [], "provenance is"),
    ],
)
def test_documents_are_checked(
    change: Callable[[dict[str, Any], Any], None], value: Any, message: str
) -> None:
    given = document()
    change(given, value)
    with pytest.raises(DatasetError, match=message):
        from_document(given)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("roots", [], "0 roots"),
        ("roots", [6], "roots has an entry that is no index"),
        ("roots", [0.5], "roots has an entry that is no index"),
        ("feature", [2, 0, 0, 0, 0, 0], "feature has an entry that is no index below 2"),
        ("left", [0, 3, 2, 3, 4, 5], "a node before its parent"),
        ("left", [1, 0, 2, 3, 4, 5], "a node before its parent"),
        ("right", [-1, 4, 2, 3, 4, 5], "right has an entry that is no index"),
        ("value", [0.0], "has the lengths"),
        ("value", None, "has the lengths"),
    ],
)
def test_trees_are_checked(name: str, value: Any, message: str) -> None:
    given = document()
    given["share"]["trees"] = {**trees(), name: value}
    # With two kinds of cover, feature 2 is the kind.
    given["share"].update(names=["x"], low=[0.0], high=[1.0], weights=[[0.0, 0.0]])
    with pytest.raises(DatasetError, match=message):
        from_document(given)


def test_trees_are_bounded() -> None:
    given = document()
    count = MAX_NODES + 1
    own = list(range(count))
    zero = [0] * count
    given["cover"]["trees"] = {
        "roots": [0], "feature": zero, "threshold": zero, "left": own, "right": own, "value": zero,
    }  # fmt: skip
    with pytest.raises(DatasetError, match="has the lengths"):
        from_document(given)


@pytest.mark.parametrize("given", [None, [], "x", {"kind": "ftuner-correction"}])
def test_other_documents_are_refused(given: Any) -> None:
    with pytest.raises(DatasetError):
        from_document(given)


def test_damaged_documents_are_refused_or_give_finite_factors() -> None:
    """Each entry in turn is something else."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if isinstance(value, (dict, list)):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield (*path, key)
                yield from places(item, (*path, key))

    accepted = 0
    for path in places(document()):
        for value in (None, [], {}, "x", -1, 1e9, [[]], True):
            given = copy.deepcopy(document())
            _set(*path)(given, value)
            try:
                found: LearnedCorrection = from_document(given)
            except DatasetError:
                continue
            accepted += 1
            factors = Correction(found).share_factors((0.5, 2.0))
            assert all(math.isfinite(factor) for factor in factors)
            assert np.isfinite(Correction(found).cover_factors([[2.0]])).all()
    assert accepted > 10
