"""A learned correction of the estimate as data: a document of numbers, checked entry by entry.

The model is additive in two components, of which each is a linear function and regression trees:
`log(measured / estimated) = share(features of a candidate) + cover(features of its row tiles)`.
The first component has one output for each kind of cover. `ftuner.learn` makes a model,
`ftuner.cost.cpu.correction` evaluates it. Nothing in a document is executed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.frozen import dataclass
from ftuner.errors import DatasetError

Array = npt.NDArray[Any]

KIND = "ftuner-correction"
SCHEMA = 2
"""Changes when features or terms of the estimate do: models of other schemas are not read."""
MAX_FEATURES = 128
MAX_KINDS = 16
MAX_COUNTS = 1 << 12
"""Of numbers of workers."""
MAX_NODES = 1 << 14
"""Of the trees of one component."""
MAX_MAGNITUDE = 1e9
"""Of any number of a model: sums of products of them are then finite."""


@dataclass(frozen=True, eq=False)
class Trees:
    """Regression trees, whose values are summed. A leaf is its own left and right node."""

    roots: Array
    feature: Array
    threshold: Array
    """A sample goes to the left if its feature is not larger."""
    left: Array
    right: Array
    value: Array
    """Of leaves."""
    depth: int


@dataclass(frozen=True, eq=False)
class Component:
    """One of the two components. Features are compared with the range of training as they are."""

    names: tuple[str, ...]
    low: Array
    """Of each feature: the least value that the model is used for."""
    high: Array
    weights: Array
    """(features, outputs)"""
    intercept: Array
    """One for each output."""
    trees: Trees | None
    """Where the component has several outputs, the index of the output is one more feature."""


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Half the width of the interval that holds `coverage` of the errors of log(measured):
    `spread * sqrt(1 + h)`, where the leverage h is the squared length of
    `whitening @ ((features - mean) / scale, 1)`."""

    coverage: float
    mean: Array
    scale: Array
    whitening: Array
    """(features + 1, features + 1)"""
    spread: Array
    """One for each kind of cover."""
    limit: Array
    """One for each kind of cover: beyond it the estimate is not corrected."""


@dataclass(frozen=True, eq=False)
class LearnedCorrection:
    """A correction of the estimates of one machine."""

    fingerprint: str
    """Of the machine."""
    workers: tuple[int, ...]
    """Numbers of workers that a product is planned for with the correction: those with which it
    chose better plans than the estimate. With others the estimate stays as it is."""
    kinds: tuple[str, ...]
    """The kinds of cover, which are the outputs of `share`."""
    share: Component
    cover: Component
    bias: float
    """The typical log(measured / estimated), which factors leave out: it changes no decision
    between plans, and estimates that are not corrected stay comparable."""
    uncertainty: Uncertainty
    provenance: Mapping[str, str]
    """What it was learned from, and how: for people."""
    digest: str = ""
    """Of the document: two models are equal if their documents are."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LearnedCorrection) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_document(self) -> dict[str, Any]:
        """The model as nested dicts and lists, which JSON can hold."""
        return {"kind": KIND, "schema": SCHEMA, **_plain(self)}


_DERIVED = frozenset({"digest", "depth"})
"""Fields that follow from the others."""


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        kept = (f.name for f in fields(value) if f.name not in _DERIVED)
        return {name: _plain(getattr(value, name)) for name in kept}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def from_document(document: Any) -> LearnedCorrection:
    """The inverse of `LearnedCorrection.to_document`.

    Raises:
        DatasetError: something is missing, unknown, of a wrong type, shape or schema, or not
            finite; the message names the entry.
    """
    entries = _table(
        document, "correction", "kind", "schema", "fingerprint", "workers", "kinds", "share",
        "cover", "bias", "uncertainty", "provenance",
    )  # fmt: skip
    if entries["kind"] != KIND or entries["schema"] != SCHEMA:
        raise DatasetError(
            f"correction is {entries['kind']!r:.40} of schema {entries['schema']!r:.40}; expected "
            f"{KIND!r} of schema {SCHEMA}"
        )
    kinds = _texts(entries["kinds"], MAX_KINDS, "correction.kinds")
    provenance = entries["provenance"]
    if not isinstance(provenance, dict):
        raise DatasetError(f"correction.provenance is {provenance!r:.60}; expected an object")
    _texts([*provenance, *provenance.values()], 2 * MAX_FEATURES, "correction.provenance")
    share = _component(entries["share"], len(kinds), "correction.share")
    found = LearnedCorrection(
        fingerprint=_texts([entries["fingerprint"]], 1, "correction.fingerprint")[0],
        workers=_counts(entries["workers"], MAX_COUNTS, "correction.workers"),
        kinds=kinds,
        share=share,
        cover=_component(entries["cover"], 1, "correction.cover"),
        bias=float(_array(entries["bias"], (), "correction.bias")),
        uncertainty=_uncertainty(entries["uncertainty"], len(share.names), len(kinds)),
        provenance=dict(provenance),
    )
    written = json.dumps(found.to_document(), sort_keys=True)
    return replace(found, digest=hashlib.sha256(written.encode()).hexdigest()[:16])


def _component(document: Any, outputs: int, where: str) -> Component:
    entries = _table(document, where, "names", "low", "high", "weights", "intercept", "trees")
    names = _texts(entries["names"], MAX_FEATURES, f"{where}.names")
    n, trees = len(names), entries["trees"]
    shapes = {"low": (n,), "high": (n,), "weights": (n, outputs), "intercept": (outputs,)}
    known = None if trees is None else _trees(trees, n + (outputs > 1), f"{where}.trees")
    return Component(names=names, trees=known, **_arrays(entries, shapes, where))


def _trees(document: Any, features: int, where: str) -> Trees:
    entries = _table(document, where, "roots", "feature", "threshold", "left", "right", "value")
    lengths = {name: len(v) if isinstance(v, list) else -1 for name, v in entries.items()}
    roots = lengths.pop("roots")
    count = lengths["value"]
    if set(lengths.values()) != {count} or not 0 < roots <= count <= MAX_NODES:
        raise DatasetError(f"{where} has the lengths {lengths}, {roots} roots")
    numbers = {
        name: _array(value, (roots if name == "roots" else count,), f"{where}.{name}")
        for name, value in entries.items()
    }
    indices = {
        name: numbers[name].astype(np.int64) for name in ("roots", "feature", "left", "right")
    }
    for name, found in indices.items():
        limit = features if name == "feature" else count
        if np.any(found != numbers[name]) or np.any(found < 0) or np.any(found >= limit):
            raise DatasetError(f"{where}.{name} has an entry that is no index below {limit}")
    left, right = indices["left"], indices["right"]
    # Nodes come after their parents, so a walk ends. A leaf leads to itself.
    own = np.arange(count)
    leaf = (left == own) & (right == own)
    if np.any(~leaf & ((left <= own) | (right <= own))):
        raise DatasetError(f"{where} has a node before its parent")
    levels = np.zeros(count, np.int64)
    for node in range(count - 1, -1, -1):
        if not leaf[node]:
            levels[node] = 1 + max(levels[left[node]], levels[right[node]])
    return Trees(
        roots=indices["roots"], feature=indices["feature"], threshold=numbers["threshold"],
        left=left, right=right, value=numbers["value"], depth=int(levels.max()),
    )  # fmt: skip


def _uncertainty(document: Any, features: int, kinds: int) -> Uncertainty:
    where = "correction.uncertainty"
    entries = _table(document, where, "coverage", "mean", "scale", "whitening", "spread", "limit")
    shapes = {
        "scale": (features,), "mean": (features,), "whitening": (features + 1,) * 2,
        "spread": (kinds,), "limit": (kinds,),
    }  # fmt: skip
    arrays = _arrays(entries, shapes, where)
    if np.any(arrays["scale"] <= 0):
        raise DatasetError(f"{where}.scale has entries that are not positive")
    return Uncertainty(float(_array(entries["coverage"], (), f"{where}.coverage")), **arrays)


def _table(value: Any, where: str, *names: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DatasetError(f"{where} is {value!r:.60}; expected an object")
    if value.keys() != set(names):
        raise DatasetError(f"{where} has the entries {sorted(value)}; expected {sorted(names)}")
    return value


def _texts(values: Any, most: int, where: str) -> tuple[str, ...]:
    if not isinstance(values, list) or len(values) > most:
        raise DatasetError(f"{where} is not a list of at most {most} strings")
    if not all(isinstance(value, str) for value in values):
        raise DatasetError(f"{where} has an entry that is not a string")
    return tuple(values)


def _counts(values: Any, most: int, where: str) -> tuple[int, ...]:
    """Positive integers, each larger than the one before."""
    if not isinstance(values, list) or not 0 < len(values) <= most:
        raise DatasetError(f"{where} is not a list of 1 to {most} integers")
    least = 1
    for value in values:
        if type(value) is not int or not least <= value <= MAX_MAGNITUDE:
            raise DatasetError(f"{where} has {value!r:.60}; expected an integer from {least}")
        least = value + 1
    return tuple(values)


def _arrays(
    entries: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str
) -> dict[str, Array]:
    """The entries that are arrays, by name."""
    return {name: _array(entries[name], n, f"{where}.{name}") for name, n in shapes.items()}


def _array(value: Any, shape: Sequence[int], where: str) -> Array:
    """Finite numbers of exactly this shape."""
    if not shape:
        # In Python a boolean is an integer; in a document it is a mistake.
        valid = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not valid or not -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE:
            raise DatasetError(f"{where} is {value!r:.60}; expected a finite number")
        return np.array(float(value))
    if not isinstance(value, list) or len(value) != shape[0]:
        raise DatasetError(f"{where} is not a list of {shape[0]} entries")
    items = [_array(item, shape[1:], where) for item in value]
    return np.array(items, np.float64).reshape(tuple(shape))
