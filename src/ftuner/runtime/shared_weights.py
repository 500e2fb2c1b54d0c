"""Weights in the form in which a device reads them, shared by models made of the same constants."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Hashable
from typing import TypeVar

import numpy as np

from ftuner.graph.ir import Array

W = TypeVar("W")


class SharedWeights:
    """Weights by the elements they were made of and the form they were brought to. A weight lives
    as long as a model that reads it: this table does not keep it. For one thread at a time."""

    def __init__(self) -> None:
        self._made: weakref.WeakValueDictionary[Hashable, object] = weakref.WeakValueDictionary()
        self._digests: dict[int, tuple[weakref.ref[Array], bytes]] = {}
        """Digests of living arrays by identity: those of a file are the same for each model."""

    def get(self, array: Array, form: Hashable, make: Callable[[], W]) -> W:
        """The weight made of such elements in this form: one that lives, or a new one by `make`.
        `form` names everything else that decides the result, which has weak references."""
        key = (self._digest(array), form)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found  # type: ignore[return-value]

    def _digest(self, array: Array) -> bytes:
        key = id(array)
        known = self._digests.get(key)
        if known is not None and known[0]() is array:
            return known[1]
        digest = hashlib.sha256(repr((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        digests = self._digests
        gone = weakref.ref(array, lambda _: digests.pop(key, None))
        digests[key] = gone, digest.digest()
        return digests[key][1]
