"""What a row of the zoo is: an architecture of `transformers`, and how its inputs are made."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Extents = Mapping[str, int]
Fields = dict[str, Any]

SHAPES = 8
"""Shapes at which an architecture is compared."""

EXTENTS: Mapping[str, tuple[int, ...]] = {
    "batch": (1, 2, 1, 4, 1, 3, 2, 1),
    "length": (7, 16, 33, 12, 64, 25, 1, 128),
    "past": (5, 31, 16, 1, 40, 64, 12, 100),
    "new": (1, 1, 4, 1, 1, 3, 1, 1),
    "target": (3, 9, 16, 1, 24, 12, 5, 40),
    "height": (64, 96, 128, 64, 160, 96, 192, 224),
    "width": (64, 64, 160, 128, 96, 96, 128, 224),
    "samples": (4000, 6400, 8123, 5000, 12000, 4800, 7000, 16000),
    "frames": (64, 100, 128, 80, 200, 96, 72, 256),
}
"""The extents of each dynamic dim, by shape. Batches and lengths in no order; some are one."""

KEPT = -1
"""The index of the shape that a file is exported with."""
EXPORTED: Extents = {
    "batch": 2, "length": 20, "past": 9, "new": 3, "target": 11, "height": 96, "width": 128,
    "samples": 5000, "frames": 112,
}  # fmt: skip
"""Extents while exporting: all differ, and none is one, which an exporter would keep as it is."""


@dataclass(frozen=True)
class Size:
    """How wide and deep a network is made."""

    name: str
    hidden: int
    layers: int = 2
    vocabulary: int = 1024
    depth: int = 64
    """Of a head."""

    @property
    def heads(self) -> int:
        return self.hidden // self.depth

    @property
    def shared(self) -> int:
        """Heads of keys and values, where several heads of queries share them."""
        return self.heads // 3

    @property
    def inner(self) -> int:
        return 4 * self.hidden


SIZES = {size.name: size for size in (Size("small", 192), Size("base", 768))}


@dataclass(frozen=True)
class Input:
    """One input: its dims are numbers, names of `EXTENTS`, or sums of such names."""

    dims: tuple[int | str, ...]
    kind: str
    """`tokens`, `mask`, `ones`, `zeros`, `normal` or `boxes`; with `float` before it in float32."""
    below: int = 1000
    """Tokens are less than this."""

    def shape(self, extents: Extents) -> tuple[int, ...]:
        return tuple(_extent(dim, extents) for dim in self.dims)

    def array(self, extents: Extents, rng: np.random.Generator) -> Array:
        if self.kind.startswith("float "):
            integers = replace(self, kind=self.kind.removeprefix("float "))
            return integers.array(extents, rng).astype(np.float32)
        shape = self.shape(extents)
        if self.kind == "normal":
            return rng.standard_normal(shape, np.float32)
        if self.kind == "tokens":
            return rng.integers(min(4, self.below - 1), self.below, shape)
        if self.kind == "boxes":
            corners = rng.integers(0, 500, (*shape[:-1], 2))
            return np.concatenate([corners, corners + rng.integers(0, 500, corners.shape)], -1)
        if self.kind == "zeros":
            return np.zeros(shape, np.int64)
        mask = np.ones(shape, np.int64)
        if self.kind == "mask":
            mask[1::2, (shape[-1] + 2) // 2 :] = 0
        return mask


def _extent(dim: int | str, extents: Extents) -> int:
    if isinstance(dim, int):
        return dim
    return sum(extents[name] for name in dim.split("+"))


@dataclass(frozen=True)
class Architecture:
    """A row: a network of `transformers`, built from a configuration."""

    name: str
    kind: str
    """`encoder`, `decoder`, `encoder-decoder`, `vision`, `audio`, `multimodal` or `series`."""
    model: str
    """The class."""
    config: str
    """The class of its configuration."""
    fields: Callable[[Size], Fields]
    """Of the configuration."""
    inputs: Mapping[str, Input]
    """By the name of the argument."""
    outputs: tuple[str, ...]
    """Fields of the result that are outputs of the file."""
    past: bool = False
    """Keys and values of earlier tokens are inputs and outputs, too."""
    given: Fields = field(default_factory=dict)
    """Arguments that are no tensors."""
    least: Extents = field(default_factory=dict)
    """The least extent of a dim, where the network itself fails below it."""
    held_out: bool = False
    """Nothing in ftuner was written or tuned for it: it was taken when all was done."""

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of dynamic dims, in the order in which they come."""
        dims = [d for i in self.inputs.values() for d in i.dims if isinstance(d, str)]
        parts = [part for dim in dims for part in dim.split("+")]
        return tuple(dict.fromkeys([*parts, "past"] if self.past else parts))

    def extents(self, shape: int) -> Extents:
        """Of one of the shapes; of the one that files are exported with for `KEPT`."""
        if shape == KEPT:
            return {dim: EXPORTED[dim] for dim in self.dims}
        return {dim: max(EXTENTS[dim][shape], self.least.get(dim, 1)) for dim in self.dims}

    def feeds(self, extents: Extents, seed: int) -> Feeds:
        """Inputs without keys and values of earlier tokens."""
        rng = np.random.default_rng(seed)
        return {name: given.array(extents, rng) for name, given in self.inputs.items()}

    def digest(self, size: Size, versions: Mapping[str, str]) -> str:
        """What an exported file depends on, in a few letters."""
        said = (self.model, self.config, self.fields(size), sorted(self.inputs.items()),
                self.outputs, self.past, self.given, sorted(self.least.items()),
                sorted(versions.items()), EXTENTS, EXPORTED)  # fmt: skip
        return hashlib.sha256(repr(said).encode()).hexdigest()[:12]
