"""The steps of a model as tables for the terminal. Steps that repeat, as those of equal layers do,
are one row with their number and the sums of their times and work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from ftuner.core.units import capacity, duration, optional, rate
from ftuner.report.model import FusedGroup, ModelExplanation
from ftuner.report.tables import table


class Row(NamedTuple):
    """Steps that are alike: of one kind, with the same operators, shapes and plan."""

    groups: tuple[FusedGroup, ...]

    @property
    def first(self) -> FusedGroup:
        return self.groups[0]

    def sum(self, name: str) -> Any:
        """The sum of what is known of a number of the groups; None if nothing is."""
        known = [x for group in self.groups if (x := getattr(group, name)) is not None]
        return sum(known) if known else None

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
            "estimate": optional(estimate, duration),
            "measured": optional(measured, duration),
            "ratio": optional(ratio, "{:.2f}".format),
        }
        counted = (str(times),) if repeated else ()
        return number, *counted, step, *(cells[column] for column in shown)

    lines: list[Sequence[str | Text] | None] = []
    for row in rows:
        group = row.first
        # As Text, so that rich takes no brackets for markup.
        said = filter(None, (f"{group.kind}: {group.title}", group.shapes, group.plan))
        step = Text("\n".join(said))
        seconds = row.sum("estimate_s"), row.sum("measured_s")
        lines.append(line(str(group.number), len(row.groups), step, *seconds))
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
        (str(row.first.number), str(len(row.groups)), *cells(*work), row.bounds)
        for row in rows
        if None not in (work := (row.sum("flops"), row.sum("bytes_moved")))
    ]
    lines += [None, ("sum", str(len(found.groups)), *cells(found.flops, found.bytes_moved))]
    head = (">#", ">times", ">flop", ">moved", ">flop/byte", "bound by")
    return table("work, by step", head, lines)
