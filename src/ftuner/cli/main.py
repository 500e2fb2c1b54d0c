"""`ftuner`: the command line. Each command has a file; this one lists them, and
`routing` adds those that are in a distribution of their own.

So that help is quick, a command imports what it needs beyond its options when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer

import ftuner
from ftuner.cli import cache, doctor, explain, hardware, quantize, run, save, tune
from ftuner.cli.routing import Commands, add_commands
from ftuner.errors import ConfigurationError, DTypeError, ExpressionError, FTunerError

EXIT_FAILURE = 1
EXIT_USAGE = 2
"""The exit code of options and settings that are wrong."""
EXIT_INTERRUPTED = 130
"""As of a process that SIGINT ended: 128 + 2."""
_OF_OPTIONS = (ConfigurationError, DTypeError, ExpressionError)
"""Errors in settings, and in the options `--dtype` and `--activation`."""
_SHOWN_BY_TYPER: type[Any] = typer.BadParameter.__mro__[2]
"""The base of errors in options and arguments, for which typer has no public name."""


class OneLineErrors(Commands):
    """A group of commands that prints a named error, or a wrong option, as one line on stderr."""

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None,
        complete_var: str | None = None, standalone_mode: bool = True,
        windows_expand_args: bool = True, **extra: Any,
    ) -> Any:  # fmt: skip
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # A terminal may lack characters of names and of tables.
                stream.reconfigure(errors="replace")
        try:
            code = super().main(
                args, prog_name, complete_var, False, windows_expand_args, **extra
            )  # fmt: skip
            if not standalone_mode:
                return code
            sys.exit(code)
        except _SHOWN_BY_TYPER as error:
            context = getattr(error, "ctx", None)
            help_ = "" if context is None else f"; see {context.command_path} --help"
            _say(f"UsageError: {error.format_message().rstrip('.')}{help_}")
            sys.exit(EXIT_USAGE)
        except OSError as error:
            _say(f"{error.filename or 'the output'}: {error.strerror or error}")
            # What is left in the buffer would fail again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_FAILURE)
        except typer.Abort:
            _say("nothing was done")
            sys.exit(EXIT_FAILURE)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FTunerError as error:
            _say(f"{type(error).__name__}: {error}")
            code = EXIT_USAGE if isinstance(error, _OF_OPTIONS) else EXIT_FAILURE
            raise typer.Exit(code) from error
        except KeyboardInterrupt as error:
            _say("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from error


def _say(message: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"ftuner: {' '.join(message.split())}", err=True)


app = typer.Typer(
    cls=OneLineErrors,
    # Plain help is quicker than rich's, and leaves brackets in texts as they are.
    rich_markup_mode=None,
    help="Tensor programs with dynamic shapes, tuned once per machine by arithmetic.",
)
app.command("tune")(tune.tune)
app.command("doctor")(doctor.doctor)
app.command("hardware")(hardware.hardware)
app.command("cache")(cache.cache)
app.add_typer(explain.app, name="explain")
app.command("run")(run.run)
app.command("save")(save.save)
app.command("quantize")(quantize.quantize)
add_commands(app)


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
