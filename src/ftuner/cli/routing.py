"""Groups of commands: one shows its help if no command is given; one takes the path of a model for
a command, so that `explain x.onnx` means `explain model x.onnx`."""

from __future__ import annotations

import os.path
from typing import Any

from typer.core import TyperGroup

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
