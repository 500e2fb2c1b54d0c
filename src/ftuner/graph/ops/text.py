"""Operators on strings, and n-grams of tokens, which a host computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.dim import symbol
from ftuner.core.dtype import BOOL, FLOAT32, INT64, STRING
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import Attributes, Operator, Require
from ftuner.graph.ops.pointwise import broadcast_shape

Types = Sequence[TensorType]


def _expect_strings(types: Types, what: str) -> None:
    if any(t.dtype != STRING for t in types):
        raise GraphError(f"{what} of {', '.join(map(str, types))}; expected strings")


def _infer_joined(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "join")
    return (TensorType(STRING, broadcast_shape([t.shape for t in types], require, "join")),)


def _infer_matches(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "match")
    return (TensorType(BOOL, types[0].shape),)


def _reference_matches(x: Any, pattern: str) -> Any:
    matches = re.compile(pattern).fullmatch
    return np.array([matches(t) is not None for t in x.ravel().tolist()], np.bool_).reshape(x.shape)


def _infer_split(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType, TensorType]:
    _expect_strings(types, "split")
    (x,) = types
    pieces = (*x.shape, symbol(attributes["count"]))
    return TensorType(STRING, pieces), TensorType(INT64, x.shape)


def _padded(rows: Sequence[Sequence[str]], shape: tuple[int, ...], pad: str) -> tuple[Any, Any]:
    """Lists of strings along a new last axis, and their lengths."""
    lengths = [*map(len, rows)]
    most = max(lengths, default=0)
    filled = chain.from_iterable([[*row, *[pad] * (most - n)] if n < most else row
                                  for row, n in zip(rows, lengths, strict=True)])  # fmt: skip
    found = np.array([*filled], object).reshape(*shape, most)
    return found, np.array(lengths, np.int64).reshape(shape)


def _reference_split(x: Any, delimiter: str, most: int, count: str) -> Any:
    rows = [t.split(delimiter or None, most) if t else [] for t in x.ravel().tolist()]
    return _padded(rows, x.shape, "")


def _reference_tokens(
    x: Any, separators: tuple[str, ...], pattern: str, least: int, marks: tuple[str, ...],
    pad: str, count: str,
) -> Any:  # fmt: skip
    find = re.compile(pattern)
    rows = []
    for text in x.ravel().tolist():
        if not pattern:
            found = [text]
            for separator in separators:
                found = [p for t in found for p in (re.split(separator, t) if separator else t)]
        elif find.groups:
            found = [m.group() for m in find.finditer(text)]
        else:
            # Of a pattern with groups, it would give what these match.
            found = find.findall(text)
        kept = filter(None, found) if least <= 1 else [t for t in found if len(t) >= least]
        rows.append([*marks[:1], *kept, *marks[1:]])
    return _padded(rows, x.shape, pad)


def _infer_normalised(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "normalised")
    (x,) = types
    if x.rank not in (1, 2):
        raise ShapeError(f"normalised {x}; expected one or two axes")
    if x.rank == 2:
        require(x.shape[0], 1, f"rows of {x}")
    return (TensorType(STRING, (*x.shape[:-1], symbol(attributes["count"]))),)


_CASES: Mapping[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


def _reference_normalised(
    x: Any, case: str, stopwords: tuple[str, ...], sensitive: bool, count: str
) -> Any:
    kept = x.ravel().tolist()
    if stopwords:
        compared = _CASES["NONE" if sensitive else "LOWER"]
        left_out = {compared(word) for word in stopwords}
        kept = [t for t in kept if compared(t) not in left_out]
    kept = [*map(_CASES[case], kept)] or [""]
    return np.array(kept, object).reshape((*x.shape[:-1], len(kept)))


class _Trie(NamedTuple):
    """The n-grams as a trie. Its node -1 stands for all other sequences."""

    tokens: Array
    """In ascending order. A token's number is its place, or their number if it is none of them."""
    first: Array
    """The node that each number leads to from the root."""
    edges: Array
    """All edges as `node * (tokens + 1) + number`, in ascending order."""
    targets: Array
    """The node that each edge leads to."""
    ends: Array
    """The column of the n-gram that ends at each node, -1 for none."""

    def numbers(self, rows: Array) -> Array:
        count = len(self.tokens)
        if count and self.tokens[0] == 0 and self.tokens[-1] == count - 1:
            # Tokens are their numbers; those below zero become large ones.
            found: Array = np.minimum(rows.view(np.uint64), np.uint64(count)).view(np.int64)
            return found
        place = np.searchsorted(self.tokens, rows)
        known = np.take(self.tokens, place, mode="clip") == rows if count else False
        return np.where(known, place, count)


@dataclass(frozen=True, eq=False)
class Grams:
    """The n-grams that are counted, as sequences of tokens, and the column of each."""

    grams: Sequence[tuple[int, ...]]
    columns: Array
    weights: Array
    lengths: range
    """Of the n-grams that are counted."""
    skips: int
    """Most tokens between two of an n-gram."""
    mode: str
    """`TF` counts, `IDF` gives the weight of what occurs, `TFIDF` their product."""

    @cached_property
    def width(self) -> int:
        return int(self.columns.max(initial=-1)) + 1

    @cached_property
    def trie(self) -> _Trie:
        tokens = np.unique(np.array([t for gram in self.grams for t in gram], np.int64))
        edges: dict[tuple[int, int], int] = {}
        ends = [-1]
        for gram, column in zip(self.grams, self.columns.tolist(), strict=True):
            node = 0
            for token in np.searchsorted(tokens, gram).tolist():
                node = edges.setdefault((node, token), len(ends))
                if node == len(ends):
                    ends.append(-1)
            ends[node] = column
        first = [edges.get((0, token), -1) for token in range(len(tokens) + 1)]
        codes = np.array([n * (len(tokens) + 1) + t for n, t in edges], np.int64)
        order = np.argsort(codes)
        targets = np.array([*edges.values()], np.int64)[order]
        return _Trie(tokens, np.array(first), codes[order], targets, np.array([*ends, -1]))

    def __repr__(self) -> str:
        return f"{len(self.grams)} n-grams"


def _infer_grams(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    if x.dtype != INT64 or x.rank not in (1, 2):
        raise GraphError(f"n-grams of {x}; expected one or two axes of int64")
    return (TensorType(FLOAT32, (*x.shape[:-1], attributes["grams"].width)),)


_ONCE = np.ones(1, np.float32)


def _reference_grams(x: Any, grams: Grams) -> Any:
    trie, width = grams.trie, grams.width
    numbers = trie.numbers(x if x.ndim == 2 else x[None])
    made = np.zeros((len(numbers), width), np.float32)
    begins = np.arange(0, made.size, max(width, 1))[:, None]
    for length in grams.lengths:
        for step in range(1, 2 if length == 1 else grams.skips + 2):
            starts = numbers.shape[1] - (length - 1) * step
            if starts <= 0 or not len(trie.edges):
                continue
            node = trie.first[numbers[:, :starts]]
            for number in range(1, length):
                here = numbers[:, number * step : number * step + starts]
                code = node * (len(trie.tokens) + 1) + here
                edge = np.minimum(np.searchsorted(trie.edges, code), len(trie.edges) - 1)
                node = np.where(trie.edges[edge] == code, trie.targets[edge], -1)
            column = trie.ends[node]
            np.add.at(made.reshape(-1), (begins + column)[column >= 0], _ONCE)
    if grams.mode != "TF":
        counts = made[:, grams.columns]
        counts = np.minimum(counts, 1) if grams.mode == "IDF" else counts
        with np.errstate(over="ignore", invalid="ignore"):
            made[:, grams.columns] = counts * grams.weights
    return made.reshape(*x.shape[:-1], width)


TEXT = (
    Operator("join", _infer_joined, np.add),
    Operator("full_match", _infer_matches, _reference_matches, plain=True),
    Operator("split_text", _infer_split, _reference_split, plain=True),
    Operator("tokens", _infer_split, _reference_tokens, plain=True),
    Operator("normalised_text", _infer_normalised, _reference_normalised, plain=True),
    Operator("n_grams", _infer_grams, _reference_grams, plain=True),
)
"""`join` appends strings to strings, with broadcasting. `full_match` gives whether a regular
expression matches the whole of each. `split_text` and `tokens` give the pieces of each string along
a new last axis, whose data-dependent extent is that of the most pieces, and their number; others
are filled up. `normalised_text` changes the case of strings along the last axis and leaves out
stopwords; where none is left it gives an empty string. `n_grams` gives how often sequences of
tokens occur in each row."""
