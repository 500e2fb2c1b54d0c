"""Calling the command line in this process."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from ftuner.cli.main import EXIT_FAILURE, EXIT_USAGE, app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def document(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    """What a command prints with --json, which is all that it prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.stderr
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def exit_code_of(error: str) -> int:
    """The exit code of a named error: settings and options that are wrong are wrong usage."""
    usage = ("ConfigurationError", "DTypeError", "ExpressionError")
    return EXIT_USAGE if error in usage else EXIT_FAILURE
