"""Views of rows: what may be walked as one axis, by the addresses of all elements."""

from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.core.evaluation import evaluate
from ftuner.core.index_expr import Operand
from ftuner.graph.buffers import Buffer, View, as_rows, reshaped

B, S, T = symbol("B"), symbol("S"), symbol("T")


def view(shape: tuple[object, ...], strides: tuple[object, ...], offset: int = 0) -> View:
    layout = Operand(FLOAT32, shape, strides, offset)  # type: ignore[arg-type]
    return View(Buffer("arena", FLOAT32, 0), layout)


def addresses(x: View, **symbols: int) -> list[int]:
    """Of all elements, in row-major order."""
    shape, strides = (
        [evaluate(d, symbols) for d in dims] for dims in (x.layout.shape, x.layout.strides)
    )
    begin = evaluate(x.layout.offset, symbols)
    return [begin + int(np.dot(at, strides)) for at in product(*map(range, shape))]


extents = st.sampled_from((1, 1, 2, 3))
steps = st.integers(-6, 6)


@settings(max_examples=500)
@given(st.lists(st.tuples(extents, steps), min_size=1, max_size=5), st.integers(0, 3))
def test_rows_have_the_addresses_of_the_view(axes: list[tuple[int, int]], offset: int) -> None:
    shape, strides = zip(*axes, strict=True)
    x = view(shape, strides, offset)
    rows = as_rows(x)
    whole = addresses(x)
    count = len(whole) // shape[-1]
    firsts = whole[:: shape[-1]]
    evenly = len({b - a for a, b in pairwise(firsts)}) <= 1
    assert (rows is not None) == evenly
    if rows is not None:
        assert rows.shape == (count, shape[-1])
        assert addresses(rows) == whole


@settings(max_examples=500)
@given(st.lists(st.tuples(extents, steps), min_size=1, max_size=4), st.data())
def test_other_shapes_have_the_addresses_of_the_view(
    axes: list[tuple[int, int]], data: st.DataObject
) -> None:
    shape, strides = zip(*axes, strict=True)
    x = view(shape, strides)
    left, other = int(np.prod(shape)), []
    while left > 1:
        divisors = [d for d in range(2, left + 1) if left % d == 0]
        other.append(data.draw(st.sampled_from(divisors)))
        left //= other[-1]
    for _ in range(data.draw(st.integers(0, 2))):
        other.insert(data.draw(st.integers(0, len(other))), 1)
    found = reshaped(x, tuple(other))
    if found is not None:
        assert found.shape == tuple(other)
        assert addresses(found) == addresses(x)


def test_axes_that_one_stride_walks_are_merged_and_split() -> None:
    """Rows of a part of the channels."""
    x = view((B, S, T, 8), (S * T * 20, T * 20, 20, 1), 4)
    for shape in ((B * S * T, 8), (B, S * T, 8), (B, S, T, 2, 4), (B * S, T, 8)):
        found = reshaped(x, shape)
        assert found is not None
        assert addresses(found, B=2, S=3, T=5) == addresses(x, B=2, S=3, T=5)
    assert reshaped(x, (B, S, T * 8)) is None


def test_rows_at_extents_of_run_time() -> None:
    """An axis that may have one element is not left out: its stride has to fit."""
    whole = view((B, S, T, 8), (S * T * 8, T * 8, 8, 1))
    rows = as_rows(whole)
    assert rows is not None
    assert rows.shape == (B * S * T, 8)
    for extent in (0, 1, 2, 5):
        assert addresses(rows, B=2, S=extent, T=3) == addresses(whole, B=2, S=extent, T=3)
    assert as_rows(view((B, S, T, 8), (S * T * 8, T * 8 + 8, 8, 1))) is None
    # One row of each of several batches.
    assert as_rows(view((B, 1, 8), (S * 8, 8, 1))).layout.strides == (S * 8, 1)  # type: ignore[union-attr]
    # An axis of one element hides nothing.
    assert as_rows(view((B, 1, T, 8), (S * 8, S * 8, 8, 1))) is None
    one = as_rows(view((1, 1, 8), (77, 5, 1)))
    assert one is not None
    assert one.shape == (1, 8)
