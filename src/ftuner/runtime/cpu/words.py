"""Operators that look up strings, by native code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ftuner.codegen.llvm.native.binding_records import WordEntry, WordTable
from ftuner.core.caching import cached_attribute
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.graph.ir import Node
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.text import byte_classes, normalised, padded
from ftuner.runtime.cpu.arrays import DATA_WORD, LIST_WORD, Array, address_of

FIRST_WORDS, MORE_WORDS = 64, 512
"""Words of each text, and words beside these, for which there is memory. If there are more, a
second call finds them, and later calls expect them."""
MOST_FIRST_WORDS = 1 << 22
"""Words of all texts for which there is memory, unless calls before had more."""
FEW_WORDS = 16
"""Words whose bytes Python reads faster than NumPy reads a byte of each."""
Evaluation = Callable[[Sequence[Array]], list[Array]]
FindWords = Callable[[int, int, int, int, int], int]
"""`NativeRuntime.find_words`."""
_BITS = (1 << 64) - 1
_UTF8 = ctypes.cast(ctypes.pythonapi.PyUnicode_AsUTF8AndSize, ctypes.c_void_p).value or 0


def evaluation(node: Node, reference: Evaluation, find: FindWords) -> Evaluation | None:
    """A function from operands of a node to its results; None if native code does not compute it.
    `reference` computes what has no UTF-8: surrogates that are not in pairs."""
    words, attributes = node.attributes.get("words"), node.attributes
    if words is None:
        return None
    if node.op == "translated":
        return _Translation(node, reference, find)
    cut = byte_classes(attributes["pattern"])
    if not cut[1] or attributes["marks"] or attributes["separators"]:
        return None
    return _Cutting(node, reference, find, cut)


class _Look:
    """Looks up words of strings."""

    def __init__(
        self, node: Node, reference: Evaluation, find: FindWords, cut: tuple[bytes, int] = (b"", 0)
    ) -> None:
        """`cut`: what `byte_classes` gives for the pattern of words within a text."""
        classes, self._most = cut
        words: Words = node.attributes["words"]
        self._attributes, self._words, self._values = node.attributes, words, words.values
        self._reference, self._find = reference, find
        self._are_places = words.values.dtype != np.int64
        self._classes = ctypes.create_string_buffer(classes) if classes else None
        self._lock = fork_safe_lock()
        self._address = 0
        """Of the table of words, which the first call that looks words up makes."""

    def _made(self) -> int:
        """The address of the table of words."""
        with self._lock:
            if not self._address:
                places = self._are_places
                values = np.arange(len(self._values)) if places else self._values
                self._entries, self._texts = entries, texts = _entries(self._words.words, values)
                self._table = np.array(
                    [
                        _UTF8, ctypes.addressof(self._classes) if self._classes else 0,
                        self._attributes.get("least", 0), self._most, len(entries) - 1,
                        address_of(entries), address_of(texts), int(values[-1]),
                    ],
                    np.int64,
                )  # fmt: skip
                self._address = address_of(self._table)
            return self._address

    def _looked_up(self, items: int, count: int, most: int) -> Array:
        """The number of words of each of `count` strings, then the values of all words. `items`:
        where the address of the strings is; `most`: words to expect.

        Raises:
            UnicodeEncodeError: a string without UTF-8.
        """
        out = np.empty(count + most, np.int64)
        table = self._address or self._made()
        total = self._find(table, items, count, id(out) + DATA_WORD, most)
        if total > most:
            return self._looked_up(items, count, total)
        # Results are parts of it, and keep no more memory than they need.
        out.resize(count + total, refcheck=False)
        return out


class _Translation(_Look):
    """`translated`."""

    def __call__(self, operands: Sequence[Array]) -> list[Array]:
        (x,) = operands
        count = x.size
        try:
            found = self._looked_up(id(x) + DATA_WORD, count, count)[count:]
        except UnicodeEncodeError:
            return self._reference(operands)
        return [(self._values.take(found) if self._are_places else found).reshape(x.shape)]


class _Cutting(_Look):
    """`tokens` that are runs of a class of characters, and are looked up."""

    _of_text, _of_all = FIRST_WORDS, MOST_FIRST_WORDS
    """Words to expect of each text, and at most of all."""

    @cached_attribute
    def _pad(self) -> Any:
        return self._words.value(self._attributes["pad"])

    def __call__(self, operands: Sequence[Array]) -> list[Array]:
        (x,) = operands
        count, shape, items = x.size, x.shape, id(x) + DATA_WORD
        normaliser = self._attributes["normaliser"]
        if normaliser is not None:
            texts = normalised(x.ravel().tolist(), *normaliser)
            count = len(texts)
            shape, items = (count,), id(texts) + LIST_WORD
        expected = min(self._of_text * count, self._of_all) + MORE_WORDS
        try:
            out = self._looked_up(items, count, expected)
        except UnicodeEncodeError:
            return self._reference(operands)
        found = out[count:]
        if found.size > expected or self._of_text > FIRST_WORDS:
            # The next calls have room for a quarter more; an outlier is forgotten.
            needed = found.size + found.size // 4
            self._of_text = max(-(-needed // max(count, 1)), FIRST_WORDS, _faded(self._of_text))
            self._of_all = max(needed, MOST_FIRST_WORDS, _faded(self._of_all))
        if self._are_places:
            found = self._values.take(found)
        return [padded(found, out[:count].tolist(), shape, self._pad)]


def _faded(words: int) -> int:
    """Words that are expected, a call later."""
    return words - -(-words // 16)


def _entries(words: Sequence[str], values: Array) -> tuple[Array, Array]:
    """The entries of a table of words, the first of equal ones, and the bytes of all."""
    size = 1 << (2 * len(words)).bit_length()
    # A word that has no UTF-8 is looked up by the reference alone.
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    firsts = dict(zip(reversed(encoded), range(len(words) - 1, -1, -1), strict=True))
    lengths = np.fromiter(map(len, firsts), np.int64, len(firsts))
    begins = np.cumsum(lengths) - lengths
    texts = np.frombuffer(b"".join(firsts) + b"\0", np.uint8)
    digests = _digests(texts, begins, lengths)
    places = (digests & np.uint64(size - 1)).astype(np.int64)
    owners = np.full(size, -1)
    left = np.arange(len(firsts))
    while left.size:
        free = left[owners[places[left]] < 0]
        owners[places[free]] = free
        left = left[owners[places[left]] != left]
        places[left] = places[left] + 1 & size - 1
    entries = np.full((size, WordEntry.SIZE), -1, np.int64)
    values = values[np.fromiter(firsts.values(), np.int64, len(firsts))]
    entries[places] = np.stack([digests.view(np.int64), begins, lengths, values], 1)
    return entries, texts


def _digests(texts: Array, begins: Array, lengths: Array) -> Array:
    """The digests of words: a byte of each after the other, while there are many as long."""
    found = np.full(len(lengths), WordTable.HASH_BASIS, np.uint64)
    factor = np.uint64(WordTable.HASH_FACTOR)
    left, at = np.flatnonzero(lengths), 0
    while left.size > FEW_WORDS:
        found[left] = (found[left] ^ texts[begins[left] + at]) * factor
        at += 1
        left = left[lengths[left] > at]
    for word in left.tolist():
        digest, begin = int(found[word]), int(begins[word])
        for byte in texts[begin + at : begin + int(lengths[word])].tolist():
            digest = (digest ^ byte) * WordTable.HASH_FACTOR & _BITS
        found[word] = digest
    return found
