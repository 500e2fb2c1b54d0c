"""The table of decisions is bounded, and keeps what is used."""

from array import array
from typing import Any

from ftuner.codegen.llvm.native.binding_records import Entry, Summary
from ftuner.runtime.cpu.task_groups import KEPT, DecisionTable


def add(table: DecisionTable, number: int) -> None:
    table.add(number * 0x9E37, array("q", [number]), 0, (0,) * Summary.SIZE, (), (number,))


def numbers(table: DecisionTable) -> list[int]:
    return [entry[Entry.KEY] for entry in table.now.entries]


def owners(entries: Any) -> list[Any]:
    return [entries.owners[entry[Entry.OWNER]] for entry in entries.entries]


def test_places_are_free() -> None:
    table = DecisionTable(600)
    for number in range(600):
        add(table, number)
    assert numbers(table) == [*range(600)]
    assert owners(table.now) == [(number,) for number in range(600)]
    places = [place for place in table.now.places[1:] if place]
    assert len({*places}) == 600
    # A look-up ends at a free place.
    assert 2 * len(places) <= len(table.now.places)


def test_what_is_not_used_again_is_forgotten() -> None:
    table = DecisionTable(8)
    for number in range(8):
        add(table, number)
    before = table.now
    for number, entry in enumerate(before.entries):
        # Binding looks up once what was added.
        entry[Entry.USES] = 2 if number in (1, 6) else 1
    for number in range(8, 13):
        add(table, number)
    assert numbers(table) == [1, 6, 8, 9, 10, 11, 12]
    assert owners(table.now) == [(number,) for number in numbers(table)]
    # What another thread found there is still kept.
    assert owners(before) == [(number,) for number in range(8)]
    add(table, 13)
    add(table, 14)
    assert numbers(table) == [14]
    table.clear()
    assert len(table) == 0


def test_few_are_kept() -> None:
    table = DecisionTable(4 * KEPT)
    for number in range(4 * KEPT):
        add(table, number)
        table.now.entries[-1][Entry.USES] = 5
    add(table, -1)
    assert numbers(table) == [*range(3 * KEPT, 4 * KEPT), -1]
