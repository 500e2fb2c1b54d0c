"""Sequences of matrices at the boundary."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner.errors import OperandError, ShapeError
from ftuner.runtime.ops.operands import Range, crossing, matched, product_extents

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda r: (r[0], r[0] + r[1])), max_size=8
)


def crossing_by_pairs(written: Sequence[Range], read: Sequence[Range]) -> list[bool]:
    def shared(x: Range, y: Range) -> bool:
        return max(x[0], y[0]) < min(x[1], y[1])

    return [
        any(shared(w, r) for r in read)
        or any(shared(w, other) for j, other in enumerate(written) if i != j)
        for i, w in enumerate(written)
    ]


@given(written=RANGES, read=RANGES)
def test_crossing_is_what_pairs_say(written: list[Range], read: list[Range]) -> None:
    assert crossing(written, read) == crossing_by_pairs(written, read)


def test_what_is_a_sequence() -> None:
    array = np.ones((2, 3, 4))
    groups = matched(array, (array[0], array[1]), None)
    assert [np.shape(x) for x in groups.a] == [(3, 4), (3, 4)]
    assert groups.out is None
    assert len(groups.members) == 4
    for wrong in (3, None, np.array(1.0)):
        with pytest.raises(OperandError, match="expected a sequence of matrices"):
            matched(wrong, [], None)
    with pytest.raises(ShapeError, match="a has 2 matrices, b 3"):
        matched([1, 2], [1, 2, 3], None)
    with pytest.raises(ShapeError, match="out has 0 matrices, a and b 1"):
        matched([1], [1], [])


def test_extents() -> None:
    assert product_extents(0, (3, 4), (4, 0), (3, 0)) == (3, 0)
    with pytest.raises(ShapeError, match=r"a\[5\] is \(3,\)"):
        product_extents(5, (3,), (3, 4))
    with pytest.raises(ShapeError, match=r"group 5: .* a has 4 columns, b 3 rows"):
        product_extents(5, (3, 4), (3, 4))
    with pytest.raises(ShapeError, match=r"out\[5\] is \(3, 4\)"):
        product_extents(5, (3, 4), (4, 5), (3, 4))
