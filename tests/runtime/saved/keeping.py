"""Loads with a cache folder of their own, which count what is compiled."""

from pathlib import Path
from typing import Any

import numpy as np
from tests.runtime.saved.files import Arrays

import ftuner
from ftuner.runtime.cache import Cache


class Loads:
    """Loads files with a cache folder of its own, and counts what is compiled."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.compiled = cache, 0

    def __call__(self, path: Path, **options: Any) -> ftuner.Model:
        return ftuner.load(path, **options)

    def is_compiled(self, path: Path, **options: Any) -> bool:
        """Whether a load compiles the file."""
        before = self.compiled
        self(path, **options)
        return self.compiled > before

    @property
    def entry(self) -> Path:
        (path,) = (self.cache.folder / "models").iterdir()
        return path


def written(path: Path, made: Any) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def same(one: ftuner.Model, other: ftuner.Model, feeds: Arrays) -> None:
    assert (one.inputs, one.outputs) == (other.inputs, other.outputs)
    for x, y in zip(one.run(feeds), other.run(feeds), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
