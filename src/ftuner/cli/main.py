"""`ftuner`: the command line. Each command has a file; this one lists them.

So that help is quick, a command imports what it needs beyond its options when it runs.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import ftuner
from ftuner.cli import bench, cache, compare, demo, explain, hardware, report, run, tune
from ftuner.errors import FTunerError

EXIT_NAMED_ERROR = 2
"""The exit code of an error that ftuner raises on purpose, and of a wrong option."""


class NamedErrors(TyperGroup):
    """A group of commands that prints a named error of ftuner as one line on stderr."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FTunerError as error:
            message = " ".join(str(error).split())
            typer.echo(f"ftuner: {type(error).__name__}: {message}", err=True)
            raise typer.Exit(EXIT_NAMED_ERROR) from error


app = typer.Typer(
    cls=NamedErrors,
    no_args_is_help=True,
    add_completion=False,
    help="Tensor programs with dynamic shapes, tuned once per machine by arithmetic.",
)
app.command("hardware")(hardware.hardware)
app.command("tune")(tune.tune)
app.command("report")(report.report)
app.command("cache")(cache.cache)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("demo")(demo.demo)
app.add_typer(explain.app, name="explain")
app.add_typer(bench.app, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ftuner {ftuner.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Tensor programs with dynamic shapes, tuned once per machine by arithmetic."""


if __name__ == "__main__":
    app()
