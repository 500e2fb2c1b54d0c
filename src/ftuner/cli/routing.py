"""Groups of commands, and the commands that the distribution `ftuner-tools` adds.

One group shows its help if no command is given; one takes the path of a model for a command, so
that `explain x.onnx` means `explain model x.onnx`.
"""

from __future__ import annotations

import os.path
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperGroup

from ftuner.errors import ConfigurationError

MODEL_COMMAND = "model"


class Commands(TyperGroup):
    """A group that shows its help if it is called alone, and lists commands in their order."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            args = ["--help"]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


class ModelFiles(Commands):
    """A group whose command `model` may be left out before a path."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        first = args[0]
        if first not in self.commands and (first.endswith(".onnx") or os.path.exists(first)):
            args = [MODEL_COMMAND, *args]
        return super().resolve_command(ctx, args)


PACKAGE = "ftuner_tools"
COMMANDS = ("bench", "compare", "demo", "report")


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the tools; without them, each is one that says how to get them."""
    if find_spec(PACKAGE) is not None:
        import_module(f"{PACKAGE}.commands").add_to(app)
        return
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for name in COMMANDS:
        # Hidden: help lists what there is.
        app.command(name, hidden=True, context_settings=anything)(_absent)


def tool(module: str, what: str) -> Any:
    """Returns a module of the tools. `what`: the command or option that needs it.

    Raises:
        ConfigurationError: the tools are not installed.
    """
    if find_spec(PACKAGE) is None:
        raise _missing(what)
    return import_module(f"{PACKAGE}.{module}")


def _absent(context: typer.Context) -> None:
    raise _missing(str(context.info_name))


def _missing(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is one of ftuner's tools; install them with: pip install ftuner-tools (in a clone "
        "of ftuner: pip install ./tools)"
    )
