"""Mappings of tasks: every task exactly once, composition as the paper defines it."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner.tasks.interpret import tasks_of
from ftuner.tasks.program import Factor

Tasks = list[tuple[int, ...]]


def tasks(*factors: Factor) -> Tasks:
    return [*tasks_of(factors, {})]


def repeat(*extents: int, ranks: tuple[int, ...] = ()) -> Factor:
    return Factor("repeat", extents, ranks=ranks or tuple(range(len(extents))))


def spatial(*extents: int, ranks: tuple[int, ...] = ()) -> Factor:
    return Factor("spatial", extents, ranks=ranks or tuple(range(len(extents))))


def grid(extents: tuple[int, ...], parts: tuple[int, ...]) -> Factor:
    return Factor("partition", extents, parts)


def split_by_worker(factor: Factor) -> list[Tasks]:
    """The tasks of each worker: those of the workers of an inner mapping of one task follow each
    other, and a mapping to one worker has all of them."""
    if factor.kind == "repeat":
        return [tasks(factor)]
    if factor.kind == "spatial":
        return [[task] for task in tasks(factor)]
    found, each = tasks(factor), list[Tasks]()
    for block in product(*(range(int(p)) for p in factor.parts)):
        places = zip(factor.extents, factor.parts, block, strict=True)
        size = prod(n * (i + 1) // p - n * i // p for n, p, i in places)
        each.append(found[:size])
        found = found[size:]
    assert not found
    return each


@st.composite
def mappings(draw: st.DrawFn, rank: int) -> Factor:
    extents = tuple(draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank)))
    if draw(st.booleans()):
        ranks = tuple(draw(st.permutations(range(rank))))
        return draw(st.sampled_from([repeat, spatial]))(*extents, ranks=ranks)
    return grid(extents, tuple(draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))))


@given(st.integers(1, 2).flatmap(lambda rank: st.lists(mappings(rank), min_size=1, max_size=3)))
def test_every_task_is_executed_exactly_once(factors: list[Factor]) -> None:
    shape = [prod(extents) for extents in zip(*(f.extents for f in factors), strict=True)]
    assert sorted(tasks(*factors)) == [*product(*map(range, shape))]


@given(st.integers(1, 2).flatmap(lambda rank: st.tuples(mappings(rank), mappings(rank))))
def test_composition_is_as_defined(pair: tuple[Factor, Factor]) -> None:
    """A whole inner mapping at each task of the outer one, for each pair of workers."""
    outer, inner = pair
    assert tasks(outer, inner) == [
        tuple(a * n + b for a, n, b in zip(first, inner.extents, second, strict=True))
        for one, other in product(split_by_worker(outer), split_by_worker(inner))
        for first in one
        for second in other
    ]


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ([repeat(2, 2)], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([repeat(2, 2, ranks=(1, 0))], [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ([repeat(1, 2, 2, ranks=(2, 0, 1))], [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]),
        ([spatial(2, 2)], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([spatial(2, 2, ranks=(1, 0))], [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ([repeat(2, 1), spatial(1, 2)], [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ([spatial(2, 1), repeat(1, 2)], [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([grid((3, 2), (2, 2))], [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (2, 1)]),
        ([grid((1,), (2,))], [(0,)]),
    ],
)
def test_orders(factors: list[Factor], expected: Tasks) -> None:
    assert tasks(*factors) == expected
