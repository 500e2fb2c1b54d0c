"""Ranges of extents: where they begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftuner.core.ranges import EXACT, FINE_BITS, after_fine, coarse_middle, fine_start

EXTENTS = st.integers(0, 1 << 50)


@given(EXTENTS)
def test_an_extent_is_in_its_fine_range(extent: int) -> None:
    start = fine_start(extent)
    assert start <= extent < after_fine(start)
    assert fine_start(after_fine(start)) == after_fine(start)
    assert after_fine(start) - start <= max(1, start >> FINE_BITS)
    assert extent >= EXACT or start == extent


def test_negative_extents_are_as_they_are() -> None:
    assert [fine_start(-3), fine_start(-1000)] == [-3, -1000]


@given(EXTENTS)
def test_a_coarse_range_has_one_middle(extent: int) -> None:
    middle = coarse_middle(extent)
    assert coarse_middle(middle) == middle
    assert 5 * abs(middle - extent) <= max(middle, 1)


def test_usual_resolutions_are_middles() -> None:
    assert [coarse_middle(n) for n in (0, 1, 2, 3, 224, 320, 640)] == [0, 1, 2, 3, 224, 320, 640]
