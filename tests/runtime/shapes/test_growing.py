"""Places for ranges of extents: always large enough, kept while a text grows, never much larger."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from ftuner.errors import ShapeError
from ftuner.runtime.shapes.arena import Lifetime, first_fit
from ftuner.runtime.shapes.growing import MAX_BYTES, MAX_SHARE, RANGE, GrowingPlaces

ROW_BYTES = 64


def growing(row_bytes: int = ROW_BYTES) -> GrowingPlaces:
    """Places of three buffers: one of as many rows as the second symbol says, twice, and a row."""
    places = partial(first_fit, [Lifetime(0, 1), Lifetime(0, 1), Lifetime(1, 2)])
    return GrowingPlaces(places, [0, 1, 0], lambda symbols: [row_bytes * symbols[1], row_bytes])


def test_a_text_that_grows_keeps_its_places() -> None:
    places = growing()
    ends = []
    for rows in range(1, 3 * RANGE + 1):
        sizes = [ROW_BYTES * rows, ROW_BYTES]
        end = places.upper_end([1, rows])
        found = places(sizes, end, ())
        assert found.hold(sizes)
        ends.append(end)
    # The first shape is no text that grows yet.
    assert ends[0] == (1, 1)
    assert len(set(ends[1:])) == 3
    assert all(one == other or other[1] - one[1] == RANGE for one, other in pairwise(ends[1:]))


def test_places_for_a_range_are_apart() -> None:
    places = growing()
    places.upper_end([1, 1])
    sizes = [2 * ROW_BYTES, ROW_BYTES]
    found = places(sizes, places.upper_end([1, 2]), ())
    assert found.sizes == [RANGE * ROW_BYTES, ROW_BYTES]
    first, second, third = found.offsets
    assert sorted([first, second, third]) == [0, RANGE * ROW_BYTES, (RANGE + 1) * ROW_BYTES]
    assert found.total == (2 * RANGE + 1) * ROW_BYTES
    assert not found.hold([(RANGE + 1) * ROW_BYTES, ROW_BYTES])


def test_what_is_absent_has_no_bytes() -> None:
    places = growing()
    assert places([ROW_BYTES, ROW_BYTES], (1, 1), ()).total == 3 * ROW_BYTES
    assert places([ROW_BYTES, ROW_BYTES], (1, 1), [0, 2]).total == ROW_BYTES


@pytest.mark.parametrize("rows", [2, 30, 65, 1000])
def test_a_range_takes_little_more_than_a_shape(rows: int) -> None:
    row_bytes = 100_000
    places = growing(row_bytes)
    places.upper_end([1, rows - 1])
    sizes = [row_bytes * rows, row_bytes]
    needed = 2 * sizes[0] + sizes[1]
    total = places(sizes, places.upper_end([1, rows]), ()).total
    assert needed <= total <= needed + max(MAX_SHARE * needed, MAX_BYTES)


@pytest.mark.parametrize("error", [ShapeError, ZeroDivisionError])
def test_an_upper_end_that_no_input_has(error: type[Exception]) -> None:
    def refused(symbols: object) -> list[int]:
        raise error

    places = GrowingPlaces(partial(first_fit, [Lifetime(0, 0)]), [0], refused)
    assert places([64], (64,), ()) == ([64], [0], 64)


def test_sizes_that_shrink_as_an_extent_grows() -> None:
    """Places are never smaller than the shape at hand needs."""
    places = GrowingPlaces(
        partial(first_fit, [Lifetime(0, 0)]), [0], lambda symbols: [6400 - symbols[0]]
    )
    places.upper_end([9])
    assert places([6390], places.upper_end([10]), ()).sizes == [6390]
