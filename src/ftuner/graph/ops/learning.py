"""Operators of classical learning that a host computes: values of strings, rows as maps,
probabilities of classes from those of pairs."""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import Any

import numpy as np

from ftuner.core.caching import cached_attribute
from ftuner.core.dtype import STRING, TENSOR_DTYPES, DType, map_dtype
from ftuner.core.frozen import dataclass
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import Attributes, Operator, Require, Types

MOST_ROUNDS = 100
"""Most rounds in which probabilities of pairs become those of classes, as in libsvm."""
CONVERGED = 0.005
"""The largest error, times the number of classes, at which they end."""


class _Known(dict[str, Any]):
    """The values of strings; other strings have one value."""

    other: Any

    def __missing__(self, word: str) -> Any:
        return self.other


@dataclass(frozen=True, eq=False)
class Words:
    """Strings that have values, the first one of equal strings."""

    words: tuple[str, ...]
    values: Array
    """One for each string, and one for all others."""

    @property
    def dtype(self) -> DType:
        return STRING if self.values.dtype.hasobject else TENSOR_DTYPES[self.values.dtype.name]

    @cached_attribute
    def _known(self) -> _Known:
        *values, other = self.values.tolist()
        known = _Known(reversed([*zip(self.words, values, strict=True)]))
        known.other = other
        return known

    def value(self, word: str) -> Any:
        return self._known[word]

    def of(self, words: Iterable[str], count: int) -> Array:
        """The value of each of `count` strings."""
        return np.fromiter(map(self._known.__getitem__, words), self.values.dtype, count)

    def __repr__(self) -> str:
        return f"{len(self.words)} words"


def _infer_translated(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    if x.dtype != STRING:
        raise GraphError(f"translated {x}; expected strings")
    return (TensorType(attributes["words"].dtype, x.shape),)


def _reference_translated(x: Any, words: Words) -> Any:
    return words.of(x.ravel().tolist(), x.size).reshape(x.shape)


def _infer_maps(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    x, keys = types
    if x.rank != 2 or keys.rank != 1:
        raise ShapeError(f"maps of {x} by {keys}")
    require(x.shape[1], keys.shape[0], f"numbers of {x} for keys {keys}")
    return (TensorType(map_dtype(keys.dtype, x.dtype), x.shape[:1]),)


def _reference_maps(x: Any, keys: Any) -> Any:
    names = keys.tolist()
    ordered = sorted(names)
    if names != ordered:
        names, x = ordered, x[:, sorted(range(len(names)), key=names.__getitem__)]
    found = np.empty(len(x), object)
    found[:] = [dict(zip(names, row, strict=True)) for row in x.tolist()]
    return found


def _infer_coupled(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    if x.dtype.kind != "float":
        raise GraphError(f"coupled probabilities of {x}; expected floats")
    if x.rank != 2 or not isinstance(x.shape[1], int):
        raise ShapeError(f"coupled probabilities of {x}")
    return (TensorType(x.dtype, (x.shape[0], _classes(x.shape[1]))),)


def _classes(pairs: int) -> int:
    return (1 + isqrt(1 + 8 * pairs)) // 2


def _reference_coupled(x: Any) -> Any:
    """The second approach of Wu, Lin and Weng, "Probability Estimates for Multi-class
    Classification by Pairwise Coupling" (2004), by the iteration of libsvm. Rows that have
    converged stay as they are."""
    count = _classes(x.shape[1])
    r = np.zeros((len(x), count, count), x.dtype)
    first, second = np.triu_indices(count, 1)
    r[:, first, second], r[:, second, first] = x, 1 - x
    q = -np.swapaxes(r, 1, 2) * r
    each = np.arange(count)
    q[:, each, each] = (r * r).sum(1)
    p = np.full((len(x), count), 1 / count, x.dtype)
    left = np.arange(len(x))
    for _ in range(MOST_ROUNDS):
        qp = np.einsum("nij,nj->ni", q[left], p[left])
        total = (p[left] * qp).sum(1, keepdims=True)
        going = np.abs(qp - total).max(1, initial=0) >= CONVERGED / count
        left, qp, total = left[going], qp[going], total[going, 0]
        if not len(left):
            break
        of = p[left]
        for i in range(count):
            here = q[left, i, i]
            step = (total - qp[:, i]) / here
            of[:, i] += step
            total = (total + step * (step * here + 2 * qp[:, i])) / (1 + step) / (1 + step)
            qp = (qp + step[:, None] * q[left, i]) / (1 + step)[:, None]
            of /= (1 + step)[:, None]
        p[left] = of
    return p


OPERATORS = (
    Operator("translated", _infer_translated, _reference_translated, plain=True),
    Operator("maps", _infer_maps, _reference_maps, plain=True),
    Operator("coupled_probabilities", _infer_coupled, _reference_coupled),
    Operator("couple", _infer_coupled, _reference_coupled),
)
"""`translated` gives the values of strings.

`maps` gives a map for each row of a matrix, from keys, a string or an integer for each column, to
its numbers. Keys are in ascending order, as in onnxruntime.

`coupled_probabilities` gives the probability of each class, of those that the first class of a pair
is the right one; pairs are in the order (0, 1), (0, 2), ..., (1, 2), ... `couple` is the same,
computed by a step."""
