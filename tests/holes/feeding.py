"""Holes in what a model is given: extents of zero, indices beyond tables, masks that hide all."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from tests.holes.bases import Array, Feeds

FeedHole = Callable[[Feeds, Random], None]
INDICES = ("ids", "input_ids", "positions", "target", "decoder_input_ids")
MASKS = ("mask", "attention_mask", "lengths")
LONG = (*INDICES, *MASKS[:2])
"""Those with an axis of positions."""


def _changing(names: tuple[str, ...], change: Callable[[Array, Random], Array]) -> FeedHole:
    """Those of some inputs that there are."""

    def changed(feeds: Feeds, random: Random) -> None:
        for name in set(names) & set(feeds):
            feeds[name] = change(feeds[name].copy(), random)

    return changed


def _first(*values: int) -> Callable[[Array, Random], Array]:
    """The first element is one of some values."""

    def changed(x: Array, random: Random) -> Array:
        x.reshape(-1)[:1] = values[0] if len(values) == 1 else random.choice(values)
        return x

    return changed


def _one(change: Callable[[Array, Random], Any]) -> FeedHole:
    """Any of the inputs."""

    def changed(feeds: Feeds, random: Random) -> None:
        name = random.choice(sorted(feeds))
        feeds[name] = change(feeds[name], random)

    return changed


def _hidden(mask: Array, _: Random) -> Array:
    mask[:1] = 0
    return mask


def nothing(_: Feeds, __: Random) -> None:
    """As it should be."""


no_key_is_seen = _changing(MASKS, lambda mask, _: np.zeros_like(mask))
no_key_of_the_first_is_seen = _changing(MASKS, _hidden)
# Neither zero nor one.
odd_masks = _changing(MASKS, lambda mask, _: mask * 7 - 3)
# Which a Gather of ONNX takes.
indices_from_the_end = _changing(INDICES, _first(-1))
indices_beyond = _changing(INDICES, _first(100_000, 2**31, 2**63 - 1))
indices_before = _changing(INDICES, _first(-100_000, -(2**31) - 1, -(2**63)))
# Every extent but the first is three times as long, which positions may not reach.
longer_than_positions = _changing(LONG, lambda x, _: np.concatenate([x] * 3, axis=1))
no_length = _changing((*LONG, "rows", "sound"), lambda x, _: x[:, :0])
one_input_without_batch = _one(lambda x, _: x[:0])
one_input_is_longer = _one(lambda x, _: np.concatenate([x] * 2, axis=-1))
another_rank = _one(lambda x, random: random.choice((x[None], x.reshape(-1))))
another_dtype = _one(
    lambda x, random: x.astype(random.choice(("int32", "float64", "bool", "complex64")))
)


def no_batch(feeds: Feeds, _: Random) -> None:
    for name, x in feeds.items():
        feeds[name] = x[:0]


def no_past(feeds: Feeds, _: Random) -> None:
    for name, x in feeds.items():
        if name.startswith("past"):
            feeds[name] = x[:, :, :0]


def strides(feeds: Feeds, _: Random) -> None:
    """Views that are not contiguous, and read-only."""
    for name, x in feeds.items():
        wide = np.repeat(x, 2, axis=-1)[..., ::2]
        wide.flags.writeable = False
        feeds[name] = wide


def not_numbers(feeds: Feeds, random: Random) -> None:
    """In one input: values that keys of NaN hide are not read, which is no NaN."""
    floats = sorted(name for name, x in feeds.items() if x.dtype.kind == "f")
    if floats:
        name = random.choice(floats)
        feeds[name] = np.full_like(feeds[name], np.nan)


def an_input_is_missing(feeds: Feeds, random: Random) -> None:
    del feeds[random.choice(sorted(feeds))]


def an_input_more(feeds: Feeds, _: Random) -> None:
    feeds["nothing of the name"] = np.zeros(3, np.float32)
