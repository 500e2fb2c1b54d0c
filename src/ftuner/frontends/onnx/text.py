"""Operators on strings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ftuner.core.dim import minimum, product
from ftuner.core.dtype import INT64, STRING
from ftuner.frontends.onnx.categories import place
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import Positive, onnx
from ftuner.graph.algebra import apply, concat, constant, counted, equal, gather, iota, where
from ftuner.graph.checks import malformed, origin
from ftuner.graph.ir import Array, Value
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.text import expression

MOST_TOKENS = 1 << 16
"""Longest n-gram, and most tokens that one may skip."""


def _count(context: Context, node: NodeView) -> str:
    """A new symbol."""
    given = next(filter(None, node.record.outputs), "text")
    return str(context.names.fresh(f"{given}_count"))


def _pattern(pattern: str) -> str:
    try:
        expression(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise malformed(f"no regular expression: {pattern!r:.80}: {error}") from None
    return pattern


@onnx("RegexFullMatch")
def _full_match(x: Value, pattern: str) -> Value:
    return apply("full_match", x, pattern=_pattern(pattern))


@onnx("StringSplit")
def _split(
    context: Context, node: NodeView, x: Value, delimiter: str = "", maxsplit: int = -1
) -> Sequence[Value]:
    most, count = max(maxsplit, -1), _count(context, node)
    return context.builder.add_many("split_text", x, delimiter=delimiter, most=most, count=count)


@onnx("StringNormalizer")
def _normalizer(
    context: Context, node: NodeView, x: Value,
    case_change_action: Literal["LOWER", "UPPER", "NONE"] = "NONE",
    is_case_sensitive: bool = False, stopwords: tuple[str, ...] = (),
) -> Value:  # fmt: skip
    normaliser = case_change_action, stopwords, is_case_sensitive
    return apply("normalised_text", x, count=_count(context, node), normaliser=normaliser)


@onnx("Tokenizer", domain=MICROSOFT)
def _tokenizer(
    context: Context, node: NodeView, x: Value, mincharnum: int, pad_value: str,
    mark: bool = False, separators: tuple[str, ...] = (), tokenexp: str = "",
) -> Value:  # fmt: skip
    pattern, normaliser = _pattern(tokenexp), None
    if bool(pattern) == bool(separators):
        raise malformed("expected either separators or tokenexp")
    marks = ("\x02", "\x03") if mark else ()
    counts: tuple[str, ...] = (_count(context, node),)
    before = context.builder.producer(x)
    if before is not None and before.op == "normalised_text" and x.rank == 1:
        # One node of the host normalises and cuts; what is before has one axis for it alone.
        counts, normaliser = (_count(context, node), *counts), before.attributes["normaliser"]
        x = before.inputs[0]
        flat = context.builder.producer(x)
        x = flat.inputs[0] if flat is not None and flat.op == "reshape" else x
    return apply(
        "tokens", x, separators=tuple(map(_pattern, separators)), pattern=pattern, words=None,
        least=mincharnum, marks=marks, pad=pad_value, counts=counts, normaliser=normaliser,
    )  # fmt: skip


@onnx("TfIdfVectorizer")
def _tf_idf(
    context: Context, node: NodeView, x: Value, mode: Literal["TF", "IDF", "TFIDF"],
    min_gram_length: Positive,
    max_gram_length: int, max_skip_count: int, ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...], weights: tuple[float, ...] = (),
) -> Value:  # fmt: skip
    starts, columns = ngram_counts, np.array(ngram_indexes, np.int64)
    least, most, skips = min_gram_length, max_gram_length, max_skip_count
    words = node.texts if x.dtype == STRING else node.integers
    pool: Sequence[Any] = words("pool_strings" if x.dtype == STRING else "pool_int64s")
    tokens = {token: number for number, token in enumerate(dict.fromkeys(pool))}
    if not starts:
        raise malformed("there are no ngram_counts")
    ends = [*starts[1:], len(pool)]
    grams: list[tuple[int, ...]] = []
    for length, (begin, end) in enumerate(zip(starts, ends, strict=True), 1):
        if not 0 <= begin <= end <= len(pool) or (end - begin) % length:
            raise malformed(f"ngram_counts {starts} of {len(pool)} tokens")
        numbers = [tokens[token] for token in pool[begin:end]]
        grams += zip(*[iter(numbers)] * length, strict=True)
    whole = len(grams)
    factors = np.array(weights, np.float32) if weights else np.ones(whole, np.float32)
    if len(columns) != whole or len(factors) != whole or len(set(columns.tolist())) != whole:
        raise malformed(f"{len(columns)} columns, {len(factors)} weights of {whole} n-grams")
    if not least <= most < MOST_TOKENS or not 0 <= skips < MOST_TOKENS:
        raise malformed(f"n-grams of {least} to {most}, {skips} skipped")
    if columns.min(initial=0) < 0 or columns.max(initial=0) >= 1 << 31:
        raise malformed("ngram_indexes are out of range")
    if x.rank not in (1, 2):
        raise malformed(f"n-grams of {x.type}; expected one or two axes")
    lengths = range(least, min(most, len(starts)) + 1)
    given = _numbered(context, node, x, tokens)
    matrix, width = given.reshape((1, *given.shape)[-2:]), int(columns.max(initial=-1)) + 1
    counts = _counts(matrix, len(tokens) + 1, grams, columns, width, lengths, skips)
    if mode != "TF":
        of = np.ones(width, np.float32)
        of[columns] = factors
        occurs = where(equal(counts, 0), 0.0, counts.like(1))
        counts = (occurs if mode == "IDF" else counts) * constant(of)
    return counts.reshape((*given.shape[:-1], width))


def _numbered(context: Context, node: NodeView, x: Value, tokens: Mapping[Any, int]) -> Value:
    """The number of each token; their count for others."""
    if not tokens:
        return constant(np.zeros(1, np.int64)).broadcast(x.shape)
    if x.dtype != STRING:
        return place(x.cast(INT64), np.array([*tokens]))
    cut = context.builder.producer(x)
    words = Words(tuple(tokens), np.arange(len(tokens) + 1))
    if cut is None or cut.op != "tokens":
        return apply("translated", x, words=words)
    # No string is made of what is only looked up.
    counts = tuple(_count(context, node) for _ in cut.binds)
    return apply("tokens", *cut.inputs, **{**cut.attributes, "words": words, "counts": counts})


def _counts(
    x: Value, base: int, grams: Sequence[tuple[int, ...]], columns: Array, width: int,
    lengths: range, skips: int,
) -> Value:  # fmt: skip
    """How often n-grams of some lengths occur in each row of tokens, which are below `base`: those
    of an n-gram below `base - 1`.

    An n-gram is looked up token by token. It is the node of a trie; `node * base + token` leads to
    the next one. The last node of each length stands for all other sequences.
    """
    rows, count = x.shape
    nodes = {gram[:1]: gram[0] for gram in grams}
    found = []

    def add(node: Value, length: int, size: int) -> None:
        """Note the columns of n-grams that end at some nodes; that of others is left out."""
        ends = np.full(size + 1, width)
        for gram, column in zip(grams, columns.tolist(), strict=True):
            if len(gram) == length:
                ends[nodes[gram]] = column
        found.append(gather(constant(ends), node).reshape((rows, product(node.shape[1:]))))

    if 1 in lengths:
        add(x, 1, base - 1)
    longest = max((len(gram) for gram in grams if len(gram) in lengths), default=1)
    # An n-gram skips as many tokens between any two of its tokens. `base - 1` is past the last.
    apart = (iota(minimum(skips + 1, count)) + 1).unsqueeze([1])
    beyond = constant(np.full((1, 1), base - 1)).broadcast((rows, 1))
    tokens, node = concat([x, beyond], 1), x.unsqueeze([1])
    for length in range(2, longest + 1):
        at = apply("minimum", iota(count) + apart * (length - 1), counted((count,), INT64))
        edges: dict[int, int] = {}
        for gram in grams:
            if len(gram) >= length:
                edge = nodes[gram[: length - 1]] * base + gram[length - 1]
                nodes[gram[:length]] = edges.setdefault(edge, len(edges))
        node = place(node * base + gather(tokens, at, 1), np.array([*edges]))
        if length in lengths:
            add(node, length, len(edges))
    zeros = constant(np.zeros((1, 1), np.float32)).broadcast((rows, width + 1))
    if not found:
        return zeros.slice(1, 0, width)
    columns_of = concat(found, 1)
    once = constant(np.ones((1, 1), np.float32)).broadcast(columns_of.shape)
    counts = apply("scatter_elements", zeros, columns_of, once, axis=1, kind="add", node=origin())
    return counts.slice(1, 0, width)
