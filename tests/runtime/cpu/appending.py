"""A decoder that appends in place, and what its runs are compared with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tests.runtime.cpu.decoders import Decoder

from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

PLAIN = Decoder()
Feeds = Mapping[str, Array]


def compiled(decoder: Decoder, backend: CpuBackend, append: bool, **options: Any) -> Model:
    return from_file(decoder.file(), backend, append, **options)


def from_file(data: bytes, backend: CpuBackend, append: bool, **options: Any) -> Model:
    graph = optimised(import_model(data).graph, halves=False)
    return Model(graph, backend, Options(append_in_place=append, **options))


def tokens(seed: int, batch: int = 1, new: int = 1) -> Array:
    return np.random.default_rng(seed).integers(0, PLAIN.words, (batch, new))


def address(x: Array) -> int:
    return int(x.ctypes.data)


def copied(feeds: Feeds) -> dict[str, Array]:
    return {name: x.copy() for name, x in feeds.items()}


def assert_same(found: Feeds, wanted: Feeds, where: object = "") -> None:
    for name, x in wanted.items():
        assert found[name].shape == x.shape
        assert found[name].tobytes() == x.tobytes(), f"{name} {where}"


def in_place(decoder: Decoder, past: Feeds, found: Feeds) -> list[bool]:
    """Whether each output is where its past was."""
    return [address(found[present]) == address(past[name]) for name, present in decoder.names]
