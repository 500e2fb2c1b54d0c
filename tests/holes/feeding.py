"""Holes in what a model is given: extents of zero, indices beyond tables, masks that hide all."""

from collections.abc import Callable
from random import Random

import numpy as np
from tests.holes.bases import Array, Feeds

FeedHole = Callable[[Feeds, Random], None]
INDICES = ("ids", "input_ids", "positions", "target", "decoder_input_ids")
MASKS = ("mask", "attention_mask", "lengths")


def _changed(feeds: Feeds, names: tuple[str, ...], change: Callable[[Array], Array]) -> None:
    for name in set(names) & set(feeds):
        feeds[name] = change(feeds[name].copy())


def nothing(_: Feeds, __: Random) -> None:
    """As it should be."""


def no_key_is_seen(feeds: Feeds, _: Random) -> None:
    _changed(feeds, MASKS, np.zeros_like)


def no_key_of_the_first_is_seen(feeds: Feeds, _: Random) -> None:
    def hidden(mask: Array) -> Array:
        mask[:1] = 0
        return mask

    _changed(feeds, MASKS, hidden)


def odd_masks(feeds: Feeds, _: Random) -> None:
    """Neither zero nor one."""
    _changed(feeds, MASKS, lambda mask: mask * 7 - 3)


def _first_index(feeds: Feeds, index: int) -> None:
    def changed(x: Array) -> Array:
        x.reshape(-1)[:1] = index
        return x

    _changed(feeds, INDICES, changed)


def indices_from_the_end(feeds: Feeds, _: Random) -> None:
    """Which a Gather of ONNX takes."""
    _first_index(feeds, -1)


def indices_beyond(feeds: Feeds, random: Random) -> None:
    _first_index(feeds, random.choice((100_000, 2**31, 2**63 - 1)))


def indices_before(feeds: Feeds, random: Random) -> None:
    _first_index(feeds, random.choice((-100_000, -(2**31) - 1, -(2**63))))


def longer_than_positions(feeds: Feeds, _: Random) -> None:
    """Every extent but the first is three times as long, which positions may not reach."""

    def longer(x: Array) -> Array:
        return np.concatenate([x] * 3, axis=1)

    _changed(feeds, (*INDICES, *MASKS[:2]), longer)


def no_batch(feeds: Feeds, _: Random) -> None:
    for name, x in feeds.items():
        feeds[name] = x[:0]


def no_length(feeds: Feeds, _: Random) -> None:
    _changed(feeds, (*INDICES, *MASKS[:2], "rows", "sound"), lambda x: x[:, :0])


def no_past(feeds: Feeds, _: Random) -> None:
    for name, x in feeds.items():
        if name.startswith("past"):
            feeds[name] = x[:, :, :0]


def one_input_without_batch(feeds: Feeds, random: Random) -> None:
    name = random.choice(sorted(feeds))
    feeds[name] = feeds[name][:0]


def one_input_is_longer(feeds: Feeds, random: Random) -> None:
    name = random.choice(sorted(feeds))
    feeds[name] = np.concatenate([feeds[name]] * 2, axis=-1)


def another_rank(feeds: Feeds, random: Random) -> None:
    name = random.choice(sorted(feeds))
    feeds[name] = random.choice((feeds[name][None], feeds[name].reshape(-1)))


def another_dtype(feeds: Feeds, random: Random) -> None:
    name = random.choice(sorted(feeds))
    feeds[name] = feeds[name].astype(random.choice(("int32", "float64", "bool", "complex64")))


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


FEED_HOLES: tuple[FeedHole, ...] = (
    nothing, no_key_is_seen, no_key_of_the_first_is_seen, odd_masks, indices_from_the_end,
    indices_beyond, indices_before, longer_than_positions, no_batch, no_length, no_past,
    one_input_without_batch, one_input_is_longer, another_rank, another_dtype, strides,
    not_numbers, an_input_is_missing, an_input_more,
)  # fmt: skip
