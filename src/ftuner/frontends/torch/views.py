"""Shapes and views."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import Dim, product, quotient
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import concat
from ftuner.graph.ir import Value


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + max(rank, 1) if axis < 0 else axis


@aten("view", "reshape", "_unsafe_view")
def _view(x: Value, size: Sequence[Dim]) -> Value:
    given = list(size)
    if -1 in given:
        rest = product(n for n in given if n != -1)
        given[given.index(-1)] = quotient(product(x.shape), rest)
    return x.reshape(tuple(given))


@aten("permute")
def _permute(x: Value, dims: Sequence[int]) -> Value:
    return x.transpose([axis_of(a, x.rank) for a in dims])


@aten("transpose.int")
def _transpose(x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.rank))
    first, second = axis_of(dim0, x.rank), axis_of(dim1, x.rank)
    if x.rank:
        order[first], order[second] = order[second], order[first]
    return x.transpose(order)


@aten("t")
def _swapped(x: Value) -> Value:
    return x.swapped() if x.rank == 2 else x


@aten("unsqueeze")
def _unsqueeze(x: Value, dim: int) -> Value:
    return x.unsqueeze([dim + x.rank + 1 if dim < 0 else dim])


@aten("cat")
def _concatenated(tensors: Sequence[Value], dim: int = 0) -> Value:
    return concat(tensors, axis_of(dim, tensors[0].rank))


@aten("clone", "contiguous", "detach", "detach_", "alias", "lift_fresh_copy")
def _same(x: Value) -> Value:
    return x
