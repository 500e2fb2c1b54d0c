"""A hash table of decisions that native code looks up."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from ftuner.codegen.llvm.native.binding_records import Entry
from ftuner.codegen.llvm.native.records import SLOT_BYTES
from ftuner.core.fork_safety import fork_safe_lock

KEPT = 256
"""Decisions that are kept where a table is full. Derived: those of four shapes of most networks,
which are copied in less than a millisecond."""
BLOCK_WORDS = 8192
"""Words of a block of entries. They are side by side: each of scattered ones would be on a page of
its own, whose address is translated anew."""


class _Entries:
    """The entries of a table. What a look-up finds is valid as long as these are kept."""

    def __init__(self, places: int) -> None:
        self.entries: list[memoryview] = []
        self.owners: list[Any] = [()]
        self.places = array("q", bytes(SLOT_BYTES * (1 + places)))
        self.places[0] = places - 1
        self.address = self.places.buffer_info()[0]
        self._left = 0
        """Words of the last block that are left."""

    def add(self, words: array[int] | memoryview, owner: Any) -> None:
        size = len(words)
        if size > self._left:
            block = array("q", bytes(SLOT_BYTES * max(size, BLOCK_WORDS)))
            self._block, self._begin = memoryview(block), block.buffer_info()[0]
            self._left = len(block)
        first = len(self._block) - self._left
        self._left -= size
        entry = self._block[first : first + size]
        entry[:] = words
        # Most tasks have no plans that are to be kept.
        entry[Entry.OWNER] = len(self.owners) if owner else 0
        if owner:
            self.owners.append(owner)
        self.entries.append(entry)
        last = self.places[0]
        at = entry[Entry.DIGEST] & last
        while self.places[1 + at]:
            at = at + 1 & last
        # Last: native code may look it up at once.
        self.places[1 + at] = self._begin + first * SLOT_BYTES


class DecisionTable:
    """Keeps decisions with what owns their plans. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        """`limit`: on the number of decisions. Where it is reached, those that look-ups have found
        again since it was reached before are kept, up to `KEPT` of them."""
        self._limit, self._lock = limit, fork_safe_lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        # At least half of the places are free.
        self.now = self._empty()

    def _empty(self) -> _Entries:
        return _Entries(1 << (2 * self._limit - 1).bit_length())

    def __len__(self) -> int:
        return len(self.now.entries)

    def add(
        self, digest: int, key: array[int], holds: int, summary: Iterable[int],
        words: Iterable[int], owner: Any,
    ) -> None:  # fmt: skip
        """Keep a decision: an `Entry` with its words, and its owner."""
        entry = array("q", (digest, len(key), 0, 0, holds, *summary, *key, *words))
        with self._lock:
            now = self.now
            if len(now.entries) >= self._limit:
                # Copies: another thread may have found the others.
                used = sorted([x for x in now.entries if x[Entry.USES] > 1], key=_uses)[-KEPT:]
                before, now = now, self._empty()
                for known in used:
                    now.add(known, before.owners[known[Entry.OWNER]])
                    now.entries[-1][Entry.USES] = 0
                self.now = now
            now.add(entry, owner)


def _uses(entry: memoryview) -> int:
    found: int = entry[Entry.USES]
    return found
