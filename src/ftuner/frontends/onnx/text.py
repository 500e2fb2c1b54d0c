"""Operators on strings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ftuner.core.dtype import INT64, STRING
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.ir import Value
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.text import Grams

CASES = ("LOWER", "UPPER", "NONE")
MODES = ("TF", "IDF", "TFIDF")
MOST_TOKENS = 1 << 16
"""Longest n-gram, and most tokens that one may skip."""


def _count(context: Context, node: NodeView) -> str:
    """A new symbol."""
    given = next(filter(None, node.record.outputs), "text")
    return str(context.names.fresh(f"{given}_count"))


def _pattern(context: Context, pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise context.malformed(f"no regular expression: {pattern!r:.80}: {error}") from None
    return pattern


def _concat(context: Context, node: NodeView) -> Sequence[Value]:
    return [context.add("join", node.input(0), node.input(1))]


def _full_match(context: Context, node: NodeView) -> Sequence[Value]:
    pattern = _pattern(context, node.text("pattern"))
    return [context.add("full_match", node.input(0), pattern=pattern)]


def _split(context: Context, node: NodeView) -> Sequence[Value]:
    most = node.integer("maxsplit", -1)
    return context.builder.add_many(
        "split_text", node.input(0), delimiter=node.text("delimiter", ""), most=max(most, -1),
        count=_count(context, node),
    )  # fmt: skip


def _normalizer(context: Context, node: NodeView) -> Sequence[Value]:
    case = node.text("case_change_action", "NONE")
    if case not in CASES:
        raise context.malformed(f"case_change_action {case!r}; expected {', '.join(CASES)}")
    words = node.texts("stopwords") if node.has("stopwords") else ()
    return [context.add(
        "normalised_text", node.input(0), case=case, stopwords=words,
        sensitive=node.flag("is_case_sensitive"), count=_count(context, node),
    )]  # fmt: skip


def _tokenizer(context: Context, node: NodeView) -> Sequence[Value]:
    """onnxruntime's Tokenizer."""
    pattern = _pattern(context, node.text("tokenexp", ""))
    separators = node.texts("separators") if node.has("separators") else ()
    if bool(pattern) == bool(separators):
        raise context.malformed("expected either separators or tokenexp")
    marks = ("\x02", "\x03") if node.flag("mark") else ()
    found, _ = context.builder.add_many(
        "tokens", node.input(0), separators=tuple(_pattern(context, s) for s in separators),
        pattern=pattern, least=node.integer("mincharnum"), marks=marks, pad=node.text("pad_value"),
        count=_count(context, node),
    )  # fmt: skip
    return [found]


def _tf_idf(context: Context, node: NodeView) -> Sequence[Value]:
    x, starts = node.input(0), node.integers("ngram_counts")
    columns = np.array(node.integers("ngram_indexes"), np.int64)
    if x.dtype == STRING:
        words = node.texts("pool_strings")
        numbers: dict[str, int] = {}
        pool = [numbers.setdefault(word, len(numbers)) for word in words]
        table = Words(tuple(numbers), np.arange(len(numbers) + 1))
        x = context.add("translated", x, words=table)
    else:
        pool = list(node.integers("pool_int64s"))
        x = context.cast(x, INT64)
    ends = [*starts[1:], len(pool)]
    grams = []
    for length, (begin, end) in enumerate(zip(starts, ends, strict=True), 1):
        if not 0 <= begin <= end <= len(pool) or (end - begin) % length:
            raise context.malformed(f"ngram_counts {starts} of {len(pool)} tokens")
        grams += [tuple(pool[i : i + length]) for i in range(begin, end, length)]
    weights = np.array(node.numbers("weights") if node.has("weights") else (), np.float32)
    weights = weights if len(weights) else np.ones(len(grams), np.float32)
    least, most, skips = (
        node.integer(name) for name in ("min_gram_length", "max_gram_length", "max_skip_count")
    )
    mode, whole = node.text("mode"), len(grams)
    if len(columns) != whole or len(weights) != whole or len(set(columns.tolist())) != whole:
        raise context.malformed(
            f"{len(columns)} columns, {len(weights)} weights of {whole} n-grams"
        )
    if mode not in MODES or not 1 <= least <= most < MOST_TOKENS or not 0 <= skips < MOST_TOKENS:
        raise context.malformed(f"mode {mode!r}, n-grams of {least} to {most}, {skips} skipped")
    if columns.min(initial=0) < 0 or columns.max(initial=0) >= 1 << 31:
        raise context.malformed("ngram_indexes are out of range")
    lengths = range(least, min(most, len(starts)) + 1)
    found = Grams(grams, columns, weights, lengths, skips, mode)
    return [context.add("n_grams", x, grams=found)]


TEXT: Table = {
    ("", "RegexFullMatch"): _full_match,
    ("", "StringConcat"): _concat,
    ("", "StringNormalizer"): _normalizer,
    ("", "StringSplit"): _split,
    ("", "TfIdfVectorizer"): _tf_idf,
    (MICROSOFT, "Tokenizer"): _tokenizer,
}
