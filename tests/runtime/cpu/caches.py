"""Operators that return keys and values, and what runs of them are given."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from tests.runtime.cpu import cache_files as files
from tests.runtime.cpu.appending import Feeds, address
from tests.runtime.cpu.cache_files import GROUPS, HEADS, SIZE, floats

from ftuner.inference import load
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.model import Model

LENGTH = 64
"""Rows of a cache of a fixed length."""


class Kind(NamedTuple):
    """An operator that returns keys and values."""

    file: Callable[..., bytes]
    names: Mapping[str, str]
    """The outputs by the inputs that they continue."""
    grows: bool = True
    heads: int = GROUPS

    def empty(self, batch: int, rows: int, dtype: str = "float32") -> dict[str, Array]:
        rng = np.random.default_rng(rows)
        shape = (batch, self.heads, rows, SIZE)
        shape = (2, *shape) if "past" in self.names else shape
        return {name: floats(rng, *shape, dtype=dtype) for name in self.names}

    def new(
        self, seed: int, batch: int, count: int, before: int, dtype: str = "float32"
    ) -> dict[str, Array]:
        """What is given with keys and values of `before` tokens, for `count` more."""
        rng = np.random.default_rng(seed)
        width = HEADS * SIZE
        if self.file is files.stacked:
            constant = np.random.default_rng(0)
            return {
                "x": floats(rng, batch, count, width, dtype=dtype),
                "weight": floats(constant, width, 3 * width, dtype=dtype) / 8,
                "bias": floats(constant, 3 * width, dtype=dtype),
            }
        sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        if self.file is files.grouped:
            found = {n: floats(rng, batch, count, x * SIZE, dtype=dtype) for n, x in sizes.items()}
            found["last"] = np.full(batch, before + count - 1, np.int32)
            return found | {"total": np.array(before + count, np.int32)}
        found = {n: floats(rng, batch, x, count, SIZE, dtype=dtype) for n, x in sizes.items()}
        if self.file is files.scattered:
            found["at"] = np.full(batch, before)
            found["valid"] = np.full(batch, before + count)
        return found

    def continued(self, found: Feeds) -> dict[str, Array]:
        return {past: found[present] for past, present in self.names.items()}

    def begun(self, model: Model, count: int = 1) -> dict[str, Array]:
        """The keys and values of the first tokens, as a model returns them."""
        rows = 0 if self.grows else LENGTH
        return self.continued(model(**self.new(0, 1, count, 0), **self.empty(1, rows)))


PAIRS = {"past_key": "key", "past_value": "value"}
GROUPED = Kind(files.grouped, PAIRS)
SCATTERED = Kind(files.scattered, PAIRS, grows=False)
STACKED = Kind(files.stacked, {"past": "present"}, heads=HEADS)
KINDS = {
    "grouped": GROUPED, "scattered": SCATTERED, "stacked": STACKED,
    "apart": Kind(files.given_apart, PAIRS),
}  # fmt: skip


def both(kind: Kind, dtype: str = "float32", **options: Any) -> tuple[Model, Model]:
    """A model that appends in place, and one that copies."""
    data = kind.file(dtype, **options)
    return load(data, append_in_place=True), load(data)


def is_in_place(kind: Kind, past: Feeds, found: Feeds) -> bool:
    same = [address(found[y]) == address(past[x]) for x, y in kind.names.items()]
    assert len(set(same)) == 1
    return same[0]
