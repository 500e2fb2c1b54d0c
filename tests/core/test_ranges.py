"""Ranges of extents, and of tasks: where they begin."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner.core.ranges import (
    COARSE_BITS,
    EXACT,
    FEW,
    FINE_BITS,
    MANY,
    after_coarse,
    after_fine,
    bounds,
    coarse_middle,
    coarse_start,
    fine_start,
    middle,
)
from ftuner.errors import ShapeError

EXTENTS = st.integers(0, 1 << 50)


@given(EXTENTS)
def test_an_extent_is_in_its_fine_range(extent: int) -> None:
    start = fine_start(extent)
    assert start <= extent < after_fine(start)
    assert fine_start(after_fine(start)) == after_fine(start)
    bits = FINE_BITS if extent < MANY else COARSE_BITS
    assert after_fine(start) - start <= max(1, start >> bits)
    assert extent >= EXACT or start == extent


def test_negative_extents_are_as_they_are() -> None:
    assert [fine_start(-3), fine_start(-1000)] == [-3, -1000]


@given(EXTENTS)
def test_a_coarse_range_has_one_middle(extent: int) -> None:
    found = coarse_middle(extent)
    assert coarse_middle(found) == found
    assert 5 * abs(found - extent) <= max(found, 1)
    assert middle(extent) == (extent if extent < FEW else found)
    start, end = coarse_start(extent), after_coarse(extent)
    assert start <= extent < end == after_coarse(middle(extent))
    assert coarse_start(middle(extent)) == start == after_coarse(start - 1)
    assert middle(end - 1) == middle(extent) < middle(end)


def test_usual_resolutions_are_middles() -> None:
    assert [coarse_middle(n) for n in (0, 1, 2, 3, 224, 320, 640)] == [0, 1, 2, 3, 224, 320, 640]


@given(extent=st.integers(0, 10**6), parts=st.integers(1, 300))
def test_bounds_partition_the_extent_near_evenly(extent: int, parts: int) -> None:
    ranges = [bounds(extent, parts, worker) for worker in range(parts)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == extent
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    sizes = [end - begin for begin, end in ranges]
    assert min(sizes) >= 0
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("extent", "parts", "worker"), [(-1, 1, 0), (4, 0, 0), (4, 2, 2), (4, 2, -1)]
)
def test_bounds_of_nothing_are_refused(extent: int, parts: int, worker: int) -> None:
    with pytest.raises(ShapeError, match=rf"worker {worker} of {parts} parts of {extent} tasks"):
        bounds(extent, parts, worker)
