"""A group of commands that takes the path of a model for a command: `explain x.onnx` means
`explain model x.onnx`."""

from __future__ import annotations

import os.path
from typing import Any

from typer.core import TyperGroup

MODEL_COMMAND = "model"


class ModelFiles(TyperGroup):
    """A group whose command `model` may be left out before a path."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        first = args[0]
        if first not in self.commands and (first.endswith(".onnx") or os.path.isfile(first)):
            args = [MODEL_COMMAND, *args]
        return super().resolve_command(ctx, args)
