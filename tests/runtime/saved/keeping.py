"""Loads with a cache folder of their own, which count what is compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
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


def outside(path: Path) -> Path:
    """Move the constants of a file out of it; returns where they are."""
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="data", size_threshold=0)
    return path.with_name("data")


def saved_alike(one: ftuner.Model, other: ftuner.Model, folder: Path) -> None:
    paths = folder / "one.ftuner", folder / "other.ftuner"
    for model, path in zip((one, other), paths, strict=True):
        ftuner.save(model, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def same(one: ftuner.Model, other: ftuner.Model, feeds: Arrays) -> None:
    assert (one.inputs, one.outputs) == (other.inputs, other.outputs)
    for x, y in zip(one.run(feeds), other.run(feeds), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
