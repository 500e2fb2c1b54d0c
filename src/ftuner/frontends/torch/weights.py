"""Packed weights, shared by all models that are made of a parameter's memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ftuner.core.fork_safety import fork_safe_lock
from ftuner.frontends.torch.fingerprints import Fingerprint
from ftuner.graph.ir import Array
from ftuner.runtime.shared_weights import SharedWeights

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
