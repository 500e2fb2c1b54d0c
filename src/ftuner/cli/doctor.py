"""`ftuner doctor`: whether everything that ftuner depends on is right, and what to do if not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from ftuner.cli.options import JsonOption
from ftuner.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from ftuner.cli.findings import Finding

EXIT_PROBLEM = 1
_STYLES = {"right": "green", "warning": "yellow", "problem": "bold red"}


def doctor(as_json: JsonOption = False) -> None:
    """Check this installation and machine, and say what to do.

    Versions, cache, hardware model, calibration, threads, limits, GPU. The exit code is 1 if there
    is a problem. Nothing is tuned, compiled or measured.
    """
    from ftuner.cli.checks import checked
    from ftuner.cli.findings import PROBLEM

    found = checked()
    problem = any(finding.state == PROBLEM for finding in found)
    if as_json:
        print_json({"healthy": not problem, "findings": [asdict(finding) for finding in found]})
    else:
        out = console()
        for line in _lines(found):
            out.print(line)
    if problem:
        raise typer.Exit(EXIT_PROBLEM)


def _lines(found: Sequence[Finding]) -> Iterable[Text]:
    """A line for each finding under the name of its part, one for what to do, and a count."""
    from rich.text import Text

    from ftuner.core.units import count

    part = ""
    for finding in found:
        if finding.part != part:
            part = finding.part
            yield Text(part, "bold")
        line = Text(f"  {finding.state:<7}  ", _STYLES[finding.state])
        line.append(finding.text, "default not bold")
        yield line
        if finding.todo:
            yield Text(f"           -> {finding.todo}", "default")
    states = [finding.state for finding in found]
    problems, warnings = states.count("problem"), states.count("warning")
    yield Text(f"{count(problems, 'problem')}, {count(warnings, 'warning')}", "bold")
