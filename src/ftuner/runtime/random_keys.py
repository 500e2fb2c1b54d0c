"""The keys of random numbers: each run of a model has its own."""

from __future__ import annotations

import os
from typing import SupportsIndex

import numpy as np

from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.given import checked_integer
from ftuner.errors import ConfigurationError
from ftuner.graph.ir import Array

_SEED_BYTES = 8


class RandomKeys:
    """The keys of one model's runs, one after the other. Safe to use from several threads."""

    def __init__(self, seed: SupportsIndex | None) -> None:
        """Without a seed each key has random bits of the system, so that two models, two processes
        and the child of a fork have different keys. With one, the n-th key is always the same.

        Raises:
            ConfigurationError: the seed is not an integer from 0 below 2 ** 64.
        """
        self._seed = None if seed is None else checked_integer(
            seed, "random_seed", 0, 1 << 64, ConfigurationError,
            "None or an integer from 0 below 2 ** 64",
        )  # fmt: skip
        self._runs = 0
        self._lock = fork_safe_lock()

    def next(self) -> Array:
        """The key of the next run."""
        with self._lock:
            run = self._runs
            self._runs += 1
        return self._key(run)

    def coming(self) -> Array:
        """The key that the next run will have, if there is a seed; else another."""
        return self._key(self._runs)

    def _key(self, run: int) -> Array:
        origin = self._seed
        if origin is None:
            origin = int.from_bytes(os.urandom(_SEED_BYTES), "little")
        return np.array([origin, run], np.uint64)
