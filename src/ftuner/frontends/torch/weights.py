"""Packed weights, shared by all models that are made of a parameter's memory, and how writes are
noticed that torch does not count: through `.data`, or NumPy.

To compare all elements would take as long as some runs do. A few words of each tensor are compared
instead, which what writes whole parameters, such as the merging of adapters, does not leave alone.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ftuner.core.fork_safety import fork_safe_lock
from ftuner.graph.ir import Array
from ftuner.runtime.shared_weights import SharedWeights

WORDS = 32
"""Words that are compared of each tensor, or all that it has. Measured on a loaded Xeon: those of
BERT-base's 193 parameters take 0.3 ms after a run that has read all weights, and 0.03 ms from the
cache; those of a small module take 1 us."""
_WORD_BYTES = 8


class Fingerprint:
    """Words of tensors in the CPU's memory, as they are when it is made. It does not keep the
    tensors: they have to have the same memory when it is compared."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        rng = np.random.default_rng(0)
        places = [_places(x, rng) for x in tensors]
        self._ends = np.cumsum([_WORD_BYTES * len(found) for found in places]).tolist()
        every = np.concatenate([np.zeros(0, np.int64), *places])
        first, last = (int(every.min()), int(every.max())) if len(every) else (1, 0)
        self._places = every - first
        memory = (ctypes.c_int64 * (last - first + 1)).from_address(first * _WORD_BYTES)
        self._memory: Array = np.ctypeslib.as_array(memory)
        """All memory from the first word to the last one."""
        self.words = self._read()

    def _read(self) -> bytes:
        return self._memory.take(self._places, mode="clip").tobytes()

    def holds(self) -> bool:
        """Whether the words are as they were."""
        return self._read() == self.words

    def changed(self) -> list[bool]:
        """Whether words of each tensor have changed."""
        now = self._read()
        parts = [slice(*ends) for ends in zip([0, *self._ends], self._ends, strict=False)]
        return [now[part] != self.words[part] for part in parts]


def _places(x: torch.Tensor, rng: np.random.Generator) -> Array:
    """The numbers of the words that are compared of a tensor, counted from address 0: one in each
    of as many parts of its memory, at random, so that no block of elements is left out."""
    if x.device.type != "cpu" or not x.numel():
        return np.zeros(0, np.int64)
    elements = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    begin = x.data_ptr()
    end = begin + elements * x.element_size()
    first, last = begin // _WORD_BYTES, -(-end // _WORD_BYTES)
    if x.untyped_storage().nbytes() > end - begin:
        # The first and the last word may be shared with others.
        within = -(-begin // _WORD_BYTES), end // _WORD_BYTES
        first, last = within if within[0] < within[1] else (first, last)
    count = last - first
    parts = min(count, WORDS)
    bounds = np.arange(parts + 1) * count // parts
    return first + rng.integers(bounds[:-1], bounds[1:])


W = TypeVar("W")
_weakly: Any = StorageWeakRef


class StorageWeights(SharedWeights):
    """Weights by the memory that they were made of: all graphs of a parameter share what is packed
    of it, and few of its elements are read to find out. Safe to use from several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = fork_safe_lock()
        self._storages: dict[int, tuple[Any, int]] = {}
        """Living storages by address, each with a number that no other storage has. A weak
        reference keeps its address from being used again."""
        self._numbers = itertools.count()
        self._age = 0

    def get(self, array: Array, form: Hashable, make: Callable[[], W]) -> W:
        with self._lock:
            return super().get(array, form, make)

    def renew(self) -> None:
        """From now on share nothing that was packed before: memory was written that torch did not
        count."""
        with self._lock:
            self._age += 1

    def _digest(self, array: Array) -> bytes:
        owner: object = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if not isinstance(owner, torch.Tensor) or owner.is_inference():
            return super()._digest(array)
        address, strides = array.__array_interface__["data"][0], array.strides
        memory = (self._number(owner.untyped_storage()), owner._version, self._age)
        words = Fingerprint([owner]).words
        return repr((memory, words, address, array.dtype.str, array.shape, strides)).encode()

    def _number(self, storage: torch.UntypedStorage) -> int:
        known = self._storages.get(storage._cdata)
        if known is None or known[0].expired():
            self._storages = {k: v for k, v in self._storages.items() if not v[0].expired()}
            known = self._storages[storage._cdata] = _weakly(storage), next(self._numbers)
        return known[1]


WEIGHTS = StorageWeights()
"""Those of all graphs of `torch.compile`."""
