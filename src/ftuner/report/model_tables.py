"""The steps of a model as tables for the terminal. Steps that repeat, as those of equal layers do,
are one row with their number and the sums of their times and work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from rich.table import Table
from rich.text import Text

from ftuner.core.units import capacity, duration, rate
from ftuner.report.model import FusedGroup, ModelExplanation


class Row(NamedTuple):
    """Steps that are alike: of one kind, with the same operators, shapes and plan."""

    groups: tuple[FusedGroup, ...]

    @property
    def first(self) -> FusedGroup:
        return self.groups[0]

    @property
    def estimate_s(self) -> float | None:
        return _sum(group.estimate_s for group in self.groups)

    @property
    def measured_s(self) -> float | None:
        return _sum(group.measured_s for group in self.groups)

    @property
    def flops(self) -> int | None:
        return _sum(group.flops for group in self.groups)

    @property
    def bytes_moved(self) -> int | None:
        return _sum(group.bytes_moved for group in self.groups)

    @property
    def bounds(self) -> str:
        """The bounds of the estimates, each once."""
        return ", ".join(dict.fromkeys(group.bound for group in self.groups if group.bound))


def rows_of(found: ModelExplanation, every_step: bool = False) -> list[Row]:
    """The steps, alike ones in one row at the place of the first; `every_step`: a row each."""
    if every_step:
        return [Row((group,)) for group in found.groups]
    alike: dict[tuple[str | None, ...], list[FusedGroup]] = {}
    for group in found.groups:
        alike.setdefault((group.kind, group.title, group.shapes, group.plan), []).append(group)
    return [Row(tuple(groups)) for groups in alike.values()]


def model_table(found: ModelExplanation, rows: Sequence[Row], title: str) -> Table:
    """A line for each row with its known times, and their sums."""
    table = Table(title=title, title_justify="left")
    table.add_column("#", justify="right")
    repeated = any(len(row.groups) > 1 for row in rows)
    if repeated:
        table.add_column("times", justify="right")
    table.add_column("step", overflow="fold")
    known = [any(g.estimate_s is not None for g in found.groups),
             any(g.measured_s is not None for g in found.groups)]  # fmt: skip
    shown = [column for column, there in zip(("estimate", "measured"), known, strict=True) if there]
    shown += ["ratio"] if all(known) else []
    for column in shown:
        table.add_column(column, justify="right", no_wrap=True)

    def add(number: str, times: str, step: Text, estimate: float | None, measured: float | None,
            ) -> None:  # fmt: skip
        ratio = measured / estimate if measured is not None and estimate else None
        cells = {
            "estimate": "" if estimate is None else duration(estimate),
            "measured": "" if measured is None else duration(measured),
            "ratio": "" if ratio is None else f"{ratio:.2f}",
        }
        counted = (times,) if repeated else ()
        table.add_row(number, *counted, step, *(cells[column] for column in shown))

    for row in rows:
        group = row.first
        lines = (f"{group.kind}: {group.title}", group.shapes, group.plan)
        # As Text, so that rich takes no brackets for markup.
        step = Text("\n".join(filter(None, lines)))
        add(str(group.number), str(len(row.groups)), step, row.estimate_s, row.measured_s)
    if shown:
        table.add_section()
        add("", str(len(found.groups)), Text("sum"), found.estimate_s, found.measured_s)
    return table


def work_table(found: ModelExplanation, rows: Sequence[Row]) -> Table:
    """A line for each row with its known flops and bytes, and their sums."""
    table = Table(title="work, by step", title_justify="left")
    for column in ("#", "times", "flop", "moved", "flop/byte"):
        table.add_column(column, justify="right")
    table.add_column("bound by")

    def cells(flops: int, moved: int) -> tuple[str, str, str]:
        return rate(flops, ""), capacity(moved), f"{flops / moved:.3g}" if moved else ""

    for row in rows:
        if row.flops is not None and row.bytes_moved is not None:
            work = cells(row.flops, row.bytes_moved)
            table.add_row(str(row.first.number), str(len(row.groups)), *work, row.bounds)
    table.add_section()
    table.add_row("sum", str(len(found.groups)), *cells(found.flops, found.bytes_moved))
    return table


_Number = TypeVar("_Number", int, float)


def _sum(values: Iterable[_Number | None]) -> _Number | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
