"""`ftuner doctor`: whether everything that ftuner depends on is right, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import typer

from ftuner.cli.options import JsonOption
from ftuner.cli.output import console, print_json
from ftuner.core.units import count

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ftuner.cli.checks import Finding

EXIT_PROBLEM = 1
_STYLES = {"right": "green", "warning": "yellow", "problem": "bold red"}


def doctor(as_json: JsonOption = False) -> None:
    """Check this installation and machine, and say what to do.

    Versions, cache, hardware model, calibration, threads, limits, GPU. The exit code is 1 if there
    is a problem. Nothing is tuned, compiled or measured.
    """
    from ftuner.cli.checks import PROBLEM, checked

    found = checked()
    problem = any(finding.state == PROBLEM for finding in found)
    if as_json:
        print_json({"healthy": not problem, "findings": [asdict(finding) for finding in found]})
    else:
        out = console()
        for line in _lines(found):
            out.print(line, highlight=False)
    if problem:
        raise typer.Exit(EXIT_PROBLEM)


def _lines(found: Sequence[Finding]) -> Iterator[Text | Table]:
    """The findings under the names of their parts, each with what to do, and a count."""
    from rich.table import Table
    from rich.text import Text

    from ftuner.cli.checks import PROBLEM, WARNING

    for part, findings in groupby(found, lambda finding: finding.part):
        yield Text(part, "bold")
        # Long texts go on in their column.
        grid = Table.grid(padding=(0, 1), pad_edge=True)
        grid.add_column(min_width=len(WARNING))
        grid.add_column()
        for finding in findings:
            grid.add_row(Text(finding.state, _STYLES[finding.state]), Text(finding.text))
            if finding.todo:
                grid.add_row("", Text(f"-> {finding.todo}"))
        yield grid
    states = [finding.state for finding in found]
    problems, warnings = states.count(PROBLEM), states.count(WARNING)
    yield Text(f"{count(problems, 'problem')}, {count(warnings, 'warning')}", "bold")
