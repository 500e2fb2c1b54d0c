"""Recognises key and value heads that are repeated for the query heads that share them."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.dim import Dim
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.rewrite.surroundings import Surroundings, made

LAST_SWAPPED = (0, 1, 3, 2)


class Shared(NamedTuple):
    """A tensor (batch, groups * times, ., .) that repeats one of (batch, groups, 1, ., .)."""

    source: Value
    groups: Dim
    times: Dim
    swapped: bool
    """Whether the last two axes must be exchanged."""


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


def apart(value: Value, groups: tuple[Dim, Dim]) -> Node:
    """The node that splits the axis of heads into groups and heads of a group; an axis of extent 1
    becomes two."""
    *batch, heads, rows, columns = value.shape
    shape = (*batch, *((1, 1) if heads == 1 else groups), rows, columns)
    return reshaped(value, shape, f"{value.name}_grouped")


def reshaped(value: Value, shape: tuple[Dim, ...], name: str) -> Node:
    return made("reshape", [value], TensorType(value.dtype, shape), name, shape=shape)


def taken(found: Shared) -> tuple[Value, list[Node]]:
    """The shared tensor, and the nodes that compute it."""
    if not found.swapped:
        return found.source, []
    *batch, rows, columns = found.source.shape
    type_ = TensorType(found.source.dtype, (*batch, columns, rows))
    name = f"{found.source.name}_swapped"
    turned = made("transpose", [found.source], type_, name, perm=(0, 1, 2, 4, 3))
    return turned.output, [turned]
