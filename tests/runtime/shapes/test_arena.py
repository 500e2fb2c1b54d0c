"""Places of buffers: apart while they live, and the same whether or not layers repeat."""

from __future__ import annotations

from bisect import insort
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftuner.runtime.shapes.arena import (
    ArenaPlaces,
    Lifetime,
    Repetition,
    _Placing,
    repetitions,
)

Layer = list[tuple[int, int, int]]
"""For each buffer: stages after the one before, stages that it lives on for, and its size."""
layers = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=6
)


def first_fit(lifetimes: list[Lifetime], sizes: list[int]) -> tuple[list[int], int]:
    """Each buffer as low as those before it leave it, one after the other."""
    offsets: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        first = lifetimes[number].first
        offset = 0
        taken: list[tuple[int, int]] = []
        for i in range(number):
            if lifetimes[i].last >= first:
                insort(taken, (offsets[i], offsets[i] + sizes[i]))
        for begin, end in taken:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        offsets.append(offset)
        total = max(total, offset + size)
    return offsets, total


def network(
    before: Layer, layer: Layer, times: int, after: Layer
) -> tuple[list[Lifetime], list[int]]:
    """The buffers of layers one after the other, beside one that lives throughout."""
    rows = [*before, *layer * times, *after]
    stage = 0
    lifetimes, sizes = [], []
    for later, lives, size in rows:
        stage += later
        lifetimes.append(Lifetime(stage, stage + lives))
        sizes.append(64 * size)
    return [Lifetime(0, stage), *lifetimes], [128, *sizes]


@settings(max_examples=300)
@given(layers, layers, st.integers(1, 12), layers)
def test_offsets_are_those_of_one_buffer_after_the_other(
    before: Layer, layer: Layer, times: int, after: Layer
) -> None:
    lifetimes, sizes = network(before, layer, times, after)
    offsets, total = ArenaPlaces(lifetimes)(sizes)
    assert (offsets, total) == first_fit(lifetimes, sizes)
    buffers = list(zip(lifetimes, offsets, sizes, strict=True))
    for (x, begin, size), (y, other, other_size) in combinations(buffers, 2):
        if x.first <= y.last and y.first <= x.last and size and other_size:
            assert begin + size <= other or other + other_size <= begin


@settings(max_examples=100)
@given(layers, st.integers(4, 9), st.data())
def test_layers_of_other_sizes(layer: Layer, times: int, data: st.DataObject) -> None:
    lifetimes, sizes = network([], layer, times, [])
    number = data.draw(st.integers(0, len(sizes) - 1))
    sizes[number] += 64
    assert ArenaPlaces(lifetimes)(sizes) == first_fit(lifetimes, sizes)


def test_no_buffers() -> None:
    assert ArenaPlaces([])([]) == ([], 0)


LAYER = [(1, 1, 3), (1, 2, 5), (0, 1, 1), (1, 1, 3)]


def test_two_stacks_of_layers_repeat() -> None:
    """As an encoder and a decoder have them."""
    lifetimes, _ = network([], LAYER * 6, 1, [(1, 3, 2), (1, 1, 1)] * 6)
    assert repetitions(lifetimes) == [Repetition(5, 4, 21), Repetition(26, 2, 35)]


@pytest.mark.parametrize("layers", [6, 12, 48])
def test_alike_layers_are_placed_once(monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    """The number of buffers that are placed one by one does not depend on the layers."""
    placed: list[int] = []
    place = _Placing.place

    def counted(self: _Placing, end: int) -> None:
        placed.append(end - len(self.offsets))
        place(self, end)

    monkeypatch.setattr(_Placing, "place", counted)
    lifetimes, sizes = network([(1, 1, 2)], LAYER, layers, [(1, 1, 2)])
    assert ArenaPlaces(lifetimes)(sizes) == first_fit(lifetimes, sizes)
    assert sum(placed) == 19
