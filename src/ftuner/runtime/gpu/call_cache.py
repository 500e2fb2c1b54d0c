"""Launches of calls seen before, which skip checks, plans and the making of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

import torch

from ftuner.core.caching import RecentlyUsed
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.runtime.gpu.arrays import Tensor, address_range, allows_tf32
from ftuner.runtime.gpu.kernels import BoundKernel

MAX_CALLS = 4096
"""Calls that are kept, at about 2 KiB of the host's memory each."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_Places = tuple[int, ...]


class Key(NamedTuple):
    """Everything that decides the launches of a call."""

    layout: tuple[object, ...]
    """Options, and everything about tensors except their addresses."""
    places: _Places
    """Addresses of tensors."""


class _Layout(NamedTuple):
    """Calls that differ in addresses alone."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    """Shape, dtype and device are those of the result."""
    sizes: tuple[int, ...]
    """Bytes from the first to the last of each tensor, the result last."""
    places: _Places
    launches: Sequence[BoundKernel]
    """The launches of a call whose tensors were at `places`."""


class CallCache:
    """Launches of calls by layouts and addresses. Nothing refers to a tensor: a launch is valid for
    whatever is at its addresses. Safe to use from several threads."""

    def __init__(self, limit: int = MAX_CALLS) -> None:
        self._layouts: RecentlyUsed[tuple[object, ...], _Layout] = RecentlyUsed(limit)
        self._launches: RecentlyUsed[_Places, Sequence[BoundKernel]] = RecentlyUsed(limit)
        """By the number of the layout, and addresses."""
        self._numbers = count()

    def again(self, key: Key | None, out: Any = None) -> Tensor | None:
        """Launches a call like one that was kept; returns its result, or None if there is none.

        Args:
            out: the result, if the caller gave one. It is then the last tensor of the key.
        """
        layout = None if key is None else self._layouts.get(key.layout)
        if key is None or layout is None:
            return None
        places, result = key.places, out
        if out is None:
            result = torch.empty(layout.shape, dtype=layout.dtype, device=layout.device)
            places = (*places, result.data_ptr())
        numbered = (layout.number, *places)
        launches = self._launches.get(numbered)
        if launches is None:
            if not (_apart(places, layout.sizes) and _apart(layout.places, layout.sizes)):
                return None
            launches = _moved(layout, places)
            self._launches.add(numbered, launches)
        for bound in launches:
            bound.launch()
        found: Tensor = result
        return found

    def keep(
        self, key: Key | None, tensors: Sequence[object], result: Tensor,
        launches: Sequence[BoundKernel] | None,
    ) -> None:  # fmt: skip
        """Keeps the launches of a call.

        Args:
            tensors: those of the key.
            launches: None if they cannot be repeated. Those of interpreted kernels are not kept,
                because they refer to tensors.
        """
        if key is None or launches is None or any(x.kernel.interpreted for x in launches):
            return
        given = tensors if tensors[-1] is result else (*tensors, result)
        spans = [address_range(x) for x in given if isinstance(x, torch.Tensor)]
        places = tuple(begin for begin, _ in spans)
        layout = self._layouts.get(key.layout)
        if layout is None or not _apart(layout.places, layout.sizes):
            layout = _Layout(
                next(self._numbers), tuple(result.shape), result.dtype, result.device,
                tuple(end - begin for begin, end in spans), places, launches,
            )  # fmt: skip
            self._layouts.add(key.layout, layout)
        self._launches.add((layout.number, *places), launches)


def call_key(options: tuple[object, ...], tensors: Sequence[Any]) -> Key | None:
    """Returns the key of a call; None for tensors that need checks each time. The first one is
    multiplied."""
    layout, places = [*options], []
    for x in tensors:
        if type(x) not in _PLAIN or x.layout is not torch.strided or x.is_neg():
            return None
        if x.requires_grad and torch.is_grad_enabled():
            return None
        place = x.data_ptr()
        places.append(place)
        layout += (x.shape, x.stride(), x.dtype, x.get_device(), place % ALIGNMENT_BYTES)
    if tensors[0].dtype is torch.float32:
        layout.append(allows_tf32())
    return Key(tuple(layout), tuple(places))


def _apart(places: _Places, sizes: Sequence[int]) -> bool:
    """Whether tensors at some addresses do not overlap. Where they do, a call may copy some."""
    spans = sorted(zip(places, sizes, strict=True))
    return all(begin + size <= after for (begin, size), (after, _) in pairwise(spans))


def _moved(layout: _Layout, places: _Places) -> list[BoundKernel]:
    """Returns the launches for tensors at other addresses. Each address of the kept launches that
    is within a tensor moves with it: tensors do not overlap, here or there."""
    found = list(zip(layout.places, layout.sizes, places, strict=True))

    def moved(address: int) -> int:
        for before, size, now in found:
            if before <= address < before + size:
                return address - before + now
        return address

    return [bound.moved(moved) for bound in layout.launches]
