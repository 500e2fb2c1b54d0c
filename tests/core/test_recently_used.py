"""Tables keep what is used, and no more than they may."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from tests.at_once import at_once

from ftuner.core.caching import RecentlyUsed


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(2, 20))
def test_what_is_used_again_soon_is_there(keys: list[int], limit: int) -> None:
    """Whatever fewer than half of the limit have been used since."""
    table: RecentlyUsed[int, str] = RecentlyUsed(limit)
    used: list[int] = []
    for key in keys:
        since = set(used[len(used) - used[::-1].index(key) :]) if key in used else None
        found = table.get(key)
        if since is not None and len(since) + 1 < limit // 2:
            assert found == str(key)
        if found is None:
            table.add(key, str(key))
        assert len(table) <= limit
        used.append(key)
    assert all(value in map(str, keys) for value in table.values())


def test_all_of_half_the_limit_in_turn() -> None:
    table: RecentlyUsed[int, str] = RecentlyUsed(20)
    for key in range(10):
        table.add(key, "")
    for _ in range(5):
        assert all(table.get(key) is not None for key in range(10))


def test_one_that_is_used_stays() -> None:
    table: RecentlyUsed[int, str] = RecentlyUsed(8)
    table.add(0, "kept")
    for key in range(1, 1000):
        assert table.get(0) == "kept"
        table.add(key, "")


def test_sizes() -> None:
    table: RecentlyUsed[int, str] = RecentlyUsed(100, size=len)
    for key in range(50):
        table.add(key, "x" * (key % 30))
        assert sum(map(len, table.values())) <= 100
    # What is larger than half of the limit is kept alone.
    table.add(99, "x" * 500)
    table.add(100, "x")
    assert table.get(99) is not None


@given(st.lists(st.integers(0, 12), max_size=100))
def test_what_is_forgotten_is_told_once(keys: list[int]) -> None:
    forgotten: list[object] = []
    table: RecentlyUsed[int, object] = RecentlyUsed(6, forgotten=forgotten.append)
    added: list[object] = []
    for key in keys:
        if table.get(key) is None:
            value = object()
            added.append(value)
            table.add(key, value)
        kept = list(table.values())
        assert len(kept) + len(forgotten) == len(added)
        assert {*map(id, kept), *map(id, forgotten)} == set(map(id, added))
    table.clear()
    assert len(table) == 0
    assert set(map(id, forgotten)) == set(map(id, added))


def test_several_threads() -> None:
    table: RecentlyUsed[int, int] = RecentlyUsed(64)

    def work(seed: int) -> None:
        for turn in range(3000):
            key = (seed * turn) % 150
            found = table.get(key)
            assert found in (None, key)
            if found is None:
                table.add(key, key)
            if turn % 100 == 0:
                assert all(0 <= value < 150 for value in table.values())

    seeds = (1, 7, 11, 13)
    at_once(*(partial(work, seed) for seed in seeds))
    assert len(table) <= 64 + len(seeds)


def test_sizes_count_each_entry_once() -> None:
    table: RecentlyUsed[int, int] = RecentlyUsed(20, size=lambda value: value)
    table.add(0, 4)
    table.add(1, 5)
    table.add(0, 3)
    assert table.size == 8
    table.age()
    assert table.get(0) == 3
    assert table.size == 8
    table.add(1, 6)
    assert table.size == 9
    table.age()
    table.age()
    assert table.size == 0
