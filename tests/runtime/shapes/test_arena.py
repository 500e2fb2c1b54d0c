"""Places of buffers: apart while they live."""

from itertools import combinations
from operator import add

from hypothesis import given, settings
from hypothesis import strategies as st

from ftuner.runtime.shapes.layout import Lifetime, first_fit

Layer = list[tuple[int, int, int]]
"""For each buffer: stages after the one before, stages that it lives on for, and its size."""
layers = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=6
)


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
def test_buffers_that_live_together_are_apart(
    before: Layer, layer: Layer, times: int, after: Layer
) -> None:
    lifetimes, sizes = network(before, layer, times, after)
    offsets, total = first_fit(lifetimes, sizes)
    assert total == max(map(add, offsets, sizes))
    buffers = list(zip(lifetimes, offsets, sizes, strict=True))
    for (x, begin, size), (y, other, other_size) in combinations(buffers, 2):
        if x.first <= y.last and y.first <= x.last and size and other_size:
            assert begin + size <= other or other + other_size <= begin


def test_no_buffers() -> None:
    assert first_fit([], []) == ([], 0)
