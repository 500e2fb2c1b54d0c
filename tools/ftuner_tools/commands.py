"""The commands that the tools add to `ftuner`, in the order of its help."""

from __future__ import annotations

import typer

from ftuner_tools import bench, compare
from ftuner_tools.demo import command as demo
from ftuner_tools.report import command as report


def add_to(app: typer.Typer) -> None:
    """Add all commands."""
    app.add_typer(bench.app, name="bench")
    app.command("compare")(compare.compare)
    app.command("demo")(demo.demo)
    app.command("report")(report.report)
