"""The steps of a model as tables for the terminal. Steps that repeat, as those of equal layers do,
are one row with their number and the sums of their times and work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from rich.table import Table
from rich.text import Text

from ftuner.core.units import capacity, duration, rate
from ftuner.report.model import FusedGroup, ModelExplanation
from ftuner.report.tables import table


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
    repeated = any(len(row.groups) > 1 for row in rows)
    known = [any(g.estimate_s is not None for g in found.groups),
             any(g.measured_s is not None for g in found.groups)]  # fmt: skip
    shown = [column for column, there in zip(("estimate", "measured"), known, strict=True) if there]
    shown += ["ratio"] if all(known) else []

    def line(
        number: str, times: int, step: Text, estimate: float | None, measured: float | None
    ) -> Sequence[str | Text]:
        ratio = measured / estimate if measured is not None and estimate else None
        cells = {
            "estimate": "" if estimate is None else duration(estimate),
            "measured": "" if measured is None else duration(measured),
            "ratio": "" if ratio is None else f"{ratio:.2f}",
        }
        counted = (str(times),) if repeated else ()
        return number, *counted, step, *(cells[column] for column in shown)

    lines: list[Sequence[str | Text] | None] = []
    for row in rows:
        group = row.first
        # As Text, so that rich takes no brackets for markup.
        said = filter(None, (f"{group.kind}: {group.title}", group.shapes, group.plan))
        step = Text("\n".join(said))
        lines.append(line(str(group.number), len(row.groups), step, row.estimate_s, row.measured_s))
    if shown:
        sums = found.estimate_s, found.measured_s
        lines += [None, line("", len(found.groups), Text("sum"), *sums)]
    head = (">#", *([">times"] if repeated else []), "step", *(f">{name}" for name in shown))
    made = table(title, head, lines)
    for column in made.columns:
        column.no_wrap = column.justify == "right"
    return made


def work_table(found: ModelExplanation, rows: Sequence[Row]) -> Table:
    """A line for each row with its known flops and bytes, and their sums."""

    def cells(flops: int, moved: int) -> tuple[str, str, str]:
        return rate(flops, ""), capacity(moved), f"{flops / moved:.3g}" if moved else ""

    lines: list[Sequence[str] | None] = [
        (str(row.first.number), str(len(row.groups)), *cells(row.flops, row.bytes_moved),
         row.bounds)
        for row in rows
        if row.flops is not None and row.bytes_moved is not None
    ]  # fmt: skip
    lines += [None, ("sum", str(len(found.groups)), *cells(found.flops, found.bytes_moved))]
    head = (">#", ">times", ">flop", ">moved", ">flop/byte", "bound by")
    return table("work, by step", head, lines)


_Number = TypeVar("_Number", int, float)


def _sum(values: Iterable[_Number | None]) -> _Number | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
