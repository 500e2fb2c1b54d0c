"""Renamed dims have the values of the dims, and equal dims become one."""

from hypothesis import assume, given
from hypothesis import strategies as st

from ftuner.core.dim import Dim, broadcast, maximum, minimum, quotient, remainder, symbol
from ftuner.core.evaluation import Renaming, evaluate

A, B, C = symbol("A"), symbol("B"), symbol("C")
OPERATIONS = (quotient, remainder, maximum, minimum, broadcast)
leaves = st.one_of(st.sampled_from((A, B, C)), st.integers(1, 9))


@st.composite
def dims(draw: st.DrawFn) -> tuple[Dim, list[tuple[Dim, Dim]]]:
    """A dim, and the extents that are broadcast with each other in it."""
    found: Dim = draw(leaves)
    pairs = []
    for _ in range(draw(st.integers(0, 4))):
        kind, other = draw(st.integers(0, 6)), draw(leaves)
        if kind < len(OPERATIONS):
            if OPERATIONS[kind] is broadcast:
                pairs.append((found, other))
            found = OPERATIONS[kind](found, other)
        else:
            found = found + other if kind == len(OPERATIONS) else found * other
    return found, pairs


@given(drawn=dims(), a=st.integers(1, 50), c=st.integers(1, 50))
def test_values_are_the_same(drawn: tuple[Dim, list[tuple[Dim, Dim]]], a: int, c: int) -> None:
    dim, pairs = drawn
    extents = {"A": a, "B": a, "C": c}
    for x, y in ((evaluate(x, extents), evaluate(y, extents)) for x, y in pairs):
        # A constraint has refused the others.
        assume(x == y or 1 in (x, y))
    renamed = Renaming({"B": "A"})(dim)
    assert evaluate(renamed, {"A": a, "C": c}) == evaluate(dim, extents)


def test_equal_dims_become_one() -> None:
    renaming = Renaming({"B": "A"})
    assert renaming(quotient(B + C, 4) * B) == renaming(quotient(A + C, 4) * A)
    assert renaming(C) == C
    assert renaming(7) == 7


def test_a_division_by_what_becomes_zero_stays() -> None:
    dim = quotient(C, A - B)
    assert Renaming({"B": "A"})(dim) == dim
