"""Task mappings: every task exactly once, composition as the paper defines it, named errors."""

from __future__ import annotations

import doctest
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftuner.errors import ShapeError
from ftuner.tasks import mapping as mapping_module
from ftuner.tasks.mapping import TaskMapping, factors, grid, repeat, spatial, split

Table = list[list[tuple[int, ...]]]


def covers_exactly_once(mapping: TaskMapping) -> bool:
    """Whether every task of `mapping.shape` is executed by exactly one worker, exactly once, and
    nothing else is executed."""
    executed = sorted(task for _, task in mapping.enumerate())
    return executed == list(product(*map(range, mapping.shape)))


@st.composite
def single_mappings(draw: st.DrawFn, rank: int) -> TaskMapping:
    extents = draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))
    if draw(st.booleans()):
        ranks = draw(st.permutations(range(rank)))
        return draw(st.sampled_from([repeat, spatial]))(*extents, ranks=ranks)
    parts = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    return grid(extents, parts)


@st.composite
def mapping_triples(draw: st.DrawFn) -> tuple[TaskMapping, TaskMapping, TaskMapping]:
    rank = draw(st.integers(1, 2))
    single = single_mappings(rank)
    return draw(single), draw(single), draw(single)


def table(mapping: TaskMapping) -> Table:
    return [mapping.tasks(worker) for worker in range(mapping.workers)]


def composed(outer: Table, inner: Table, inner_shape: tuple[int, ...]) -> Table:
    """The paper's definition of composition, on tables of tasks."""
    return [
        [
            tuple(a * e + b for a, e, b in zip(first, inner_shape, second, strict=True))
            for first in outer_tasks
            for second in inner_tasks
        ]
        for outer_tasks in outer
        for inner_tasks in inner
    ]


@given(st.integers(1, 3).flatmap(single_mappings))
def test_every_task_is_executed_exactly_once(mapping: TaskMapping) -> None:
    assert covers_exactly_once(mapping)


@given(mapping_triples())
def test_composition_covers_exactly_once(
    triple: tuple[TaskMapping, TaskMapping, TaskMapping],
) -> None:
    a, b, c = triple
    assert covers_exactly_once(a * b * c)


@given(mapping_triples())
def test_composition_is_as_defined_and_associative(
    triple: tuple[TaskMapping, TaskMapping, TaskMapping],
) -> None:
    a, b, c = triple
    left, right = (a * b) * c, a * (b * c)
    bc_shape = tuple(x * y for x, y in zip(b.shape, c.shape, strict=True))
    from_left = composed(composed(table(a), table(b), b.shape), table(c), c.shape)
    from_right = composed(table(a), composed(table(b), table(c), c.shape), bc_shape)
    assert from_left == from_right == table(left) == table(right)
    assert left == right
    assert hash(left) == hash(right)
    assert left.workers == a.workers * b.workers * c.workers
    assert left.shape == tuple(x * y for x, y in zip(a.shape, bc_shape, strict=True))


@given(st.integers(1, 2).flatmap(single_mappings))
def test_composing_with_one_task_changes_nothing(mapping: TaskMapping) -> None:
    one = repeat(*[1] * len(mapping.shape))
    assert table(one * mapping) == table(mapping) == table(mapping * one)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=3))
def test_rectangles_hold_the_tasks_in_row_major_order(axes: list[tuple[int, int]]) -> None:
    extents, parts = zip(*axes, strict=True)
    mapping = grid(extents, parts)
    assert mapping.shape == extents
    assert mapping.workers == prod(parts)
    for worker in range(mapping.workers):
        rectangle = mapping.rectangle(worker)
        tasks = mapping.tasks(worker)
        assert tasks == sorted(tasks)
        assert len(tasks) == prod(end - begin for begin, end in rectangle)
        assert all(b <= i < e for t in tasks for i, (b, e) in zip(t, rectangle, strict=True))


def test_orders() -> None:
    assert repeat(2, 2).tasks(0) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert repeat(2, 2, ranks=(1, 0)).tasks(0) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert repeat(1, 2, 2, ranks=(2, 0, 1)).tasks(0) == repeat(1, 2, 2).tasks(0)
    assert table(spatial(2, 2)) == [[(0, 0)], [(0, 1)], [(1, 0)], [(1, 1)]]
    assert table(spatial(2, 2, ranks=(1, 0))) == [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]]
    assert table(repeat(2, 1) * spatial(2, 2)) == [
        [(0, 0), (2, 0)],
        [(0, 1), (2, 1)],
        [(1, 0), (3, 0)],
        [(1, 1), (3, 1)],
    ]
    assert table(split(7, 3)) == [[(0,), (1,)], [(2,), (3,)], [(4,), (5,), (6,)]]
    assert grid((7, 2), (3, 2)).rectangle(5) == ((4, 7), (1, 2))
    assert list(split(1, 2).enumerate()) == [(1, (0,))]


def test_readable() -> None:
    assert repr(spatial(2, 1) * repeat(6, 2)) == "spatial(2, 1) * repeat(6, 2)"
    assert str(repeat(6, 2, ranks=(1, 0))) == "repeat(6, 2, ranks=(1, 0))"
    assert str(split(7, 3) * repeat(4)) == "split(7, 3) * repeat(4)"
    assert str(grid((7, 5), (3, 2))) == "grid((7, 5), (3, 2))"
    assert doctest.testmod(mapping_module).failed == 0


def test_factors() -> None:
    a, b, c = spatial(2), repeat(3), split(7, 3)
    assert factors(a) == (a,)
    assert factors(a * (b * c)) == (a, b, c)


class _Wrong(TaskMapping):
    """Two workers that execute `executed` between them."""

    shape = (2, 1)
    workers = 2

    def __init__(self, *executed: tuple[int, int]) -> None:
        self.executed = executed

    def tasks(self, worker: int) -> list[tuple[int, ...]]:
        return list(self.executed[worker :: self.workers])


@pytest.mark.parametrize(
    ("executed", "exact"),
    [
        ([(1, 0), (0, 0)], True),
        ([(0, 0)], False),
        ([(0, 0), (0, 0)], False),
        ([(0, 0), (1, 0), (0, 0)], False),
        ([(0, 0), (1, 0), (2, 0)], False),
    ],
)
def test_proof_rejects_what_is_not_a_cover(executed: list[tuple[int, int]], exact: bool) -> None:
    assert covers_exactly_once(_Wrong(*executed)) is exact


@pytest.mark.parametrize(
    "make",
    [
        lambda: repeat(2, -1),
        lambda: spatial(-1),
        lambda: split(-1, 2),
        lambda: split(3, 0),
        lambda: grid((3, 4), (2,)),
        lambda: grid((3, 4), (2, 0)),
        lambda: repeat(2, 3, ranks=(0, 0)),
        lambda: spatial(2, 3, ranks=(0,)),
        lambda: spatial(2) * repeat(2, 3),
        lambda: spatial(2) * repeat(2) * split(3, 2) * repeat(1, 1),
        lambda: repeat(2).tasks(1),
        lambda: spatial(2).tasks(-1),
        lambda: spatial(0).tasks(0),
        lambda: grid((3, 4), (2, 2)).rectangle(4),
        lambda: (spatial(2) * split(4, 3)).tasks(6),
    ],
)
def test_errors_are_named(make) -> None:
    with pytest.raises(ShapeError):
        make()


def test_composing_with_something_else_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        spatial(2) * 3
