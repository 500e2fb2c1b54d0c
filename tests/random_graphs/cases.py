"""A model with inputs to run it on, in memory and as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from tests.random_graphs.tensors import Array

from ftuner.graph.ir import Graph, RandomKey

Feeds = Mapping[str, Array]
SAVED = Path(__file__).parent / "saved"


@dataclass(frozen=True, eq=False)
class Case:
    """A model, and inputs by name for each run."""

    model: bytes
    runs: tuple[Feeds, ...]
    seed: int = 0
    """Of the order of runs, and of the noise in tolerances."""
    wild: int = 0
    """How many of the last runs have extents that the model was not made for."""

    @property
    def proto(self) -> onnx.ModelProto:
        return onnx.ModelProto.FromString(self.model)

    def key(self, number: int) -> Array:
        """The key of the random numbers that a run draws."""
        return np.array([self.seed, number], np.uint64)

    def operands(self, graph: Graph, number: int) -> Feeds:
        """What the inputs of a graph hold in a run, by name: the key as well if it draws."""
        keys = {v.name: self.key(number) for v in graph.inputs if isinstance(v, RandomKey)}
        return {**self.runs[number], **keys}

    def write(self, folder: Path, name: str, note: str = "") -> Path:
        """Save the model, with what it is about, and its inputs. Returns the path of the model."""
        proto = self.proto
        proto.doc_string = note
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())
        arrays = {f"{i}/{key}": x for i, feeds in enumerate(self.runs) for key, x in feeds.items()}
        numbers = np.array([len(self.runs), self.seed, self.wild], np.int64)
        np.savez_compressed(folder / f"{name}.npz", numbers=numbers, **arrays)
        return folder / f"{name}.onnx"


def read_case(path: Path) -> Case:
    """A case that was saved as `path`, a model, and the inputs beside it."""
    with np.load(path.with_suffix(".npz")) as arrays:
        count, seed, wild = map(int, arrays["numbers"])
        runs: list[dict[str, Array]] = [{} for _ in range(count)]
        for key in arrays.files:
            number, slash, name = key.partition("/")
            if slash:
                runs[int(number)][name] = arrays[key]
    return Case(path.read_bytes(), tuple(runs), seed, wild)
