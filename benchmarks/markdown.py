"""Tables and numbers as the pages of docs write them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence


def number(value: float | None) -> str:
    """With two digits after the point, or a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.2f}"


def both(by_minima: float | None, paired: float | None) -> str:
    """A share by minima and within rounds, or the former alone where rounds do not tell it."""
    known = paired is not None and not math.isnan(paired)
    return f"{number(by_minima)} / {number(paired)}" if known else number(by_minima)


def paragraphs(*texts: str) -> Iterator[str]:
    """Headings and paragraphs as lines, each before an empty one."""
    for text in texts:
        yield from (text, "")


def side_by_side(
    first: str, parts: Sequence[tuple[Sequence[str], Mapping[str, Sequence[str]]]]
) -> Iterator[str]:
    """The lines of a table of several parts: the columns of each, and its cells by the row's label,
    which is in the column `first`. Dashes are where a part has no such row."""
    labels = dict.fromkeys(label for _, cells in parts for label in cells)
    rows = (
        (label, *(x for head, cells in parts for x in cells.get(label, ("–",) * len(head))))
        for label in labels
    )
    yield from table((first, *(name for head, _ in parts for name in head)), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, and an empty one."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
