"""What dims are made of: symbols and their names, and operations."""

import pytest

from ftuner.core.dim import (
    Symbolic,
    atoms_of,
    maximum,
    quotient,
    shares_symbols,
    symbol,
    symbol_name,
    symbols_of,
)

A, B, C = (symbol(name) for name in "ABC")


def test_symbols_in_the_order_of_their_use() -> None:
    assert symbols_of((3, B * 2 + 1, quotient(C, A), B)) == ["B", "C", "A"]
    assert symbols_of((1, 2)) == []


def test_shared_symbols() -> None:
    assert shares_symbols(A * B, quotient(C, B))
    assert not shares_symbols(A, B + C)
    assert not shares_symbols(A, 3)


def test_operations_follow_those_that_they_read() -> None:
    inner = quotient(A, 3)
    outer = maximum(inner * B, quotient(C, inner + 2))
    atoms = atoms_of((inner + 1, outer))
    assert [atom.kind for atom in atoms] == ["quotient", "quotient", "maximum"]
    assert str(Symbolic((((atoms[0],), 1),))) == str(inner)


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("batch", "batch"), ("past seq + 1", "past_seq_1"), ("a/b", "a_b"), ("", "dim"), ("é", "_"),
        ("7", "_7"), (".5", "_.5"), ("1e3", "_1e3"),
    ],
)  # fmt: skip
def test_names_from_files(given_name: str, name: str) -> None:
    """What codes and texts are made of must not read as a number."""
    assert symbol_name(given_name) == name
