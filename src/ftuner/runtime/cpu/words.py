"""Operators that look up strings, by native code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from ftuner.codegen.llvm.native.binding_records import WordEntry, WordTable
from ftuner.graph.ir import Node
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.text import byte_classes, normalised, padded
from ftuner.runtime.cpu.arrays import DATA_WORD, LIST_WORD, Array, address_of

FIRST_WORDS, MORE_WORDS = 64, 512
"""Words of each text, and words beside these, for which there is memory. If there are more, a
second call finds them, and later calls expect them."""
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
        return _Translation(words, reference, find)
    classes, most = byte_classes(attributes["pattern"])
    if not most or attributes["marks"] or attributes["separators"]:
        return None
    return _Cutting(words, reference, find, classes, most, node)


class _Look:
    """Looks up words of strings."""

    def __init__(
        self, words: Words, reference: Evaluation, find: FindWords, classes: bytes = b"",
        least: int = 0, most: int = 0,
    ) -> None:  # fmt: skip
        self._reference, self._find, self._values = reference, find, words.values
        is_int64 = words.values.dtype == np.int64
        values = words.values if is_int64 else np.arange(len(words.values))
        self._other = int(values[-1])
        self._are_places = not is_int64
        self._classes = ctypes.create_string_buffer(classes) if classes else None
        self._entries, self._texts = _entries(words.words, values)
        self._table = np.array(
            [
                _UTF8, ctypes.addressof(self._classes) if self._classes else 0, least,
                most, len(self._entries) - 1, address_of(self._entries), address_of(self._texts),
                self._other,
            ],
            np.int64,
        )  # fmt: skip
        self._address = address_of(self._table)

    def _looked_up(self, items: int, count: int, most: int) -> Array:
        """The number of words of each of `count` strings, then the values of all words. `items`:
        where the address of the strings is; `most`: words to expect.

        Raises:
            UnicodeEncodeError: a string without UTF-8.
        """
        out = np.empty(count + most, np.int64)
        total = self._find(self._address, items, count, id(out) + DATA_WORD, most)
        return out[: count + total] if total <= most else self._looked_up(items, count, total)


class _Translation(_Look):
    """`translated`."""

    def __call__(self, operands: Sequence[Array]) -> list[Array]:
        (x,) = operands
        count = x.size
        try:
            found = self._looked_up(id(x) + DATA_WORD, count, count)[count:].reshape(x.shape)
        except UnicodeEncodeError:
            return self._reference(operands)
        return [self._values.take(found) if self._are_places else found]


class _Cutting(_Look):
    """`tokens` that are runs of a class of characters, and are looked up."""

    def __init__(
        self, words: Words, reference: Evaluation, find: FindWords, classes: bytes, most: int,
        node: Node,
    ) -> None:  # fmt: skip
        super().__init__(words, reference, find, classes, node.attributes["least"], most)
        self._expected = FIRST_WORDS
        self._normaliser = node.attributes["normaliser"]
        self._pad = words.value(node.attributes["pad"])

    def __call__(self, operands: Sequence[Array]) -> list[Array]:
        (x,) = operands
        count, shape, items = x.size, x.shape, id(x) + DATA_WORD
        if self._normaliser is not None:
            texts = normalised(x.ravel().tolist(), *self._normaliser)
            count = len(texts)
            shape, items = (count,), id(texts) + LIST_WORD
        try:
            out = self._looked_up(items, count, self._expected * count + MORE_WORDS)
        except UnicodeEncodeError:
            return self._reference(operands)
        found = out[count:]
        if found.size > self._expected * count + MORE_WORDS:
            self._expected = -(-found.size // count)
        if self._are_places:
            found = self._values.take(found)
        return [padded(found, out[:count].tolist(), shape, self._pad)]


def _entries(words: Sequence[str], values: Array) -> tuple[Array, Array]:
    """The entries of a table of words, the first of equal ones, and the bytes of all."""
    size = 1 << (2 * len(words)).bit_length()
    entries = np.full((size, WordEntry.SIZE), -1, np.int64)
    texts = bytearray()
    known: set[bytes] = set()
    # A word that has no UTF-8 is looked up by the reference alone.
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    for text, value in zip(encoded, values.tolist(), strict=False):
        if text in known:
            continue
        known.add(text)
        digest = WordTable.HASH_BASIS
        for byte in text:
            digest = (digest ^ byte) * WordTable.HASH_FACTOR & _BITS
        place = digest & size - 1
        while entries[place, WordEntry.BYTES] >= 0:
            place = place + 1 & size - 1
        signed = digest - (digest >> 63 << 64)
        entries[place] = signed, len(texts), len(text), value
        texts += text
    return entries, np.frombuffer(bytes(texts) + b"\0", np.uint8)
