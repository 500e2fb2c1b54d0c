"""Recognises key and value heads that are repeated for the query heads that share them."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.dim import Dim
from ftuner.graph.ir import Value
from ftuner.graph.rewrite.surroundings import Surroundings

LAST_SWAPPED = (0, 1, 3, 2)


class Shared(NamedTuple):
    """A tensor (batch, groups * times, ., .) that repeats one of (batch, groups, 1, ., .)."""

    source: Value
    groups: Dim
    times: Dim
    swapped: bool
    """Whether the last two axes must be exchanged."""

    def value(self) -> Value:
        return self.source.swapped() if self.swapped else self.source


def shared(around: Surroundings, value: Value) -> Shared | None:
    """The tensor that `value` repeats along an axis of extent 1, merged with the axis before."""
    turned = around.producer(value, "transpose")
    swapped = turned is not None and turned.attributes["perm"] == LAST_SWAPPED
    if turned is not None and swapped:
        value = turned.inputs[0]
    merged = around.producer(value, "reshape")
    repeated = None if merged is None else merged.inputs[0]
    wide = repeated and (
        around.producer(repeated, "broadcast") or around.producer(repeated, "tile")
    )
    if not wide or wide.output.rank != 5 or value.rank != 4:
        return None
    source = wide.inputs[0]
    batch, groups, times, *matrix = wide.output.shape
    if value.shape != (batch, groups * times, *matrix):
        return None
    if source.shape != (batch, groups, 1, *matrix):
        return None
    return Shared(source, groups, times, swapped)


def apart(value: Value, groups: Dim, times: Dim) -> Value:
    """The value with the axis of heads split into groups and heads of a group; an axis of extent 1
    becomes two."""
    if value.rank <= 2:
        return value
    *batch, heads, rows, columns = value.shape
    return value.reshape((*batch, *((1, 1) if heads == 1 else (groups, times)), rows, columns))
