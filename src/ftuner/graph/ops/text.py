"""Operators on strings, which a host computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np

from ftuner.core.dim import symbol
from ftuner.core.dtype import BOOL, INT64, STRING
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import Array, TensorType
from ftuner.graph.operator import Attributes, Operator, Require, Types
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.pointwise import broadcast_shape


def _expect_strings(types: Types, what: str) -> None:
    if any(t.dtype != STRING for t in types):
        raise GraphError(f"{what} of {', '.join(map(str, types))}; expected strings")


def _infer_joined(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "join")
    return (TensorType(STRING, broadcast_shape([t.shape for t in types], require, "join")),)


def _infer_matches(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "match")
    return (TensorType(BOOL, types[0].shape),)


def expression(pattern: str) -> re.Pattern[str]:
    """A regular expression, whose classes such as `\\w` have characters of ASCII alone, as RE2's;
    where letters beyond ASCII match those of another case, Python has both or neither. Raises what
    `re.compile` raises."""
    folds = not pattern.isascii() and re.search(r"\(\?[a-zA-Z]*i", pattern)
    return re.compile(pattern, 0 if folds else re.ASCII)


def _reference_matches(x: Any, pattern: str) -> Any:
    matches = expression(pattern).fullmatch
    return np.array([matches(t) is not None for t in x.ravel().tolist()], np.bool_).reshape(x.shape)


def _infer_split(
    types: Types, attributes: Attributes, require: Require
) -> tuple[TensorType, TensorType]:
    _expect_strings(types, "split")
    (x,) = types
    pieces = TensorType(STRING, (*x.shape, symbol(attributes["count"])))
    return pieces, TensorType(INT64, x.shape)


def padded(flat: Array, lengths: Sequence[int], shape: tuple[int, ...], pad: Any) -> Array:
    """Pieces along a new last axis, filled up."""
    most = max(lengths, default=0)
    found = flat
    if len(flat) != len(lengths) * most:
        found = np.full((len(lengths), most), pad, flat.dtype)
        found[np.arange(most) < np.array(lengths)[:, None]] = flat
    return found.reshape(*shape, most)


def _reference_split(x: Any, delimiter: str, most: int, count: str) -> Any:
    rows = [t.split(delimiter or None, most) if t else [] for t in x.ravel().tolist()]
    flat, lengths = np.fromiter(chain.from_iterable(rows), object), [*map(len, rows)]
    return padded(flat, lengths, x.shape, ""), np.array(lengths, np.int64).reshape(x.shape)


def _infer_tokens(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "tokens")
    words, counts = attributes["words"], tuple(map(symbol, attributes["counts"]))
    shape = types[0].shape if attributes["normaliser"] is None else ()
    return (TensorType(STRING if words is None else words.dtype, (*shape, *counts)),)


class _Spaces(dict[int, int]):
    """For `str.translate`: characters that a class does not match become spaces."""

    def __init__(self, matches: Callable[[str], object]) -> None:
        self._matches = matches

    def __missing__(self, code: int) -> int:
        found = self[code] = code if self._matches(chr(code)) else ord(" ")
        return found


_RUNS = re.compile(r"(\[\^?(?:[^\[\]\\^]|\\[wWdDsS.,:;_-])+\])\+")
"""A pattern of one class of characters, once or more."""


def byte_classes(pattern: str) -> tuple[bytes, int]:
    """For each byte of UTF-8 whether it is in matches of a pattern, and the most characters of a
    match. Matches are characters, or runs of a class of them; there are 0 of other patterns, and of
    classes of some characters beyond ASCII."""
    if pattern == ".":
        return bytes([1]) * 256, 1
    runs = _RUNS.fullmatch(pattern)
    if runs is None or not pattern.isascii():
        return b"", 0
    matches = expression(runs[1]).match
    # Classes that name characters of ASCII alone have all others, or none.
    return bytes([matches(chr(min(code, 128))) is not None for code in range(256)]), 1 << 62


BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
BLANKS += "".join(map(chr, range(0x2000, 0x200B)))
"""The characters that `str.split` cuts at."""


@lru_cache(64)
def _cut(pattern: str, separators: tuple[str, ...]) -> Callable[[str], list[str]]:
    """What lists the matches of a pattern in a text, or else what is between separators. The most
    frequent patterns are spared the search, which takes longer. A point alone matches line feeds,
    too, as in onnxruntime."""
    if separators:
        return partial(_between, separators=separators)
    if pattern == ".":
        return list
    runs = _RUNS.fullmatch(pattern)
    if runs and not any(map(matches := expression(runs[1]).match, BLANKS)):
        spaces = _Spaces(matches)
        return lambda text: text.translate(spaces).split()
    find = expression(pattern)
    if find.groups:
        # `findall` would give what these match.
        return lambda text: [*filter(None, (m.group() for m in find.finditer(text)))]
    return lambda text: [*filter(None, find.findall(text))]


def _between(text: str, separators: tuple[str, ...]) -> list[str]:
    found = [text]
    for separator in separators:
        found = [p for t in found for p in (expression(separator).split(t) if separator else t)]
    return [*filter(None, found)]


def _reference_tokens(
    x: Any, separators: tuple[str, ...], pattern: str, least: int, marks: tuple[str, ...],
    pad: str, counts: tuple[str, ...], words: Words | None, normaliser: tuple[Any, ...] | None,
) -> Any:  # fmt: skip
    texts, shape = x.ravel().tolist(), x.shape
    if normaliser is not None:
        texts = normalised(texts, *normaliser)
        shape = (len(texts),)
    rows = [*map(_cut(pattern, separators), texts)]
    if least > 1:
        rows = [[t for t in row if len(t) >= least] for row in rows]
    if marks:
        rows = [[*marks[:1], *row, *marks[1:]] for row in rows]
    lengths, flat = [*map(len, rows)], chain.from_iterable(rows)
    if words is None:
        return padded(np.fromiter(flat, object, sum(lengths)), lengths, shape, pad)
    return padded(words.of(flat, sum(lengths)), lengths, shape, words.value(pad))


def _infer_normalised(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    _expect_strings(types, "normalised")
    (x,) = types
    if x.rank not in (1, 2):
        raise ShapeError(f"normalised {x}; expected one or two axes")
    if x.rank == 2:
        require(x.shape[0], 1, f"rows of {x}")
    return (TensorType(STRING, (*x.shape[:-1], symbol(attributes["count"]))),)


_CASES: Mapping[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


def normalised(
    texts: list[str], case: str, stopwords: tuple[str, ...], sensitive: bool
) -> list[str]:
    if stopwords:
        compared = _CASES["NONE" if sensitive else "LOWER"]
        left_out = {compared(word) for word in stopwords}
        texts = [t for t in texts if compared(t) not in left_out]
    return (texts if case == "NONE" else [*map(_CASES[case], texts)]) or [""]


def _reference_normalised(x: Any, normaliser: tuple[Any, ...], count: str) -> Any:
    kept = normalised(x.ravel().tolist(), *normaliser)
    return np.array(kept, object).reshape((*x.shape[:-1], len(kept)))


OPERATORS = (
    Operator("join", _infer_joined, np.add),
    Operator("full_match", _infer_matches, _reference_matches, plain=True),
    Operator("split_text", _infer_split, _reference_split, plain=True),
    Operator("tokens", _infer_tokens, _reference_tokens, plain=True),
    Operator("normalised_text", _infer_normalised, _reference_normalised, plain=True),
)
"""`join` appends strings to strings, with broadcasting. `full_match` gives whether a regular
expression matches the whole of each. `split_text` and `tokens` give the pieces of each string along
a new last axis, whose data-dependent extent is that of the most pieces; others are filled up.
`split_text` also gives their number. `normalised_text` changes the case of strings along the last
axis and leaves out stopwords; where none is left it gives an empty string. `tokens` with a
`normaliser`, which is what `normalised_text` does, are those of all strings as one axis after
it."""
