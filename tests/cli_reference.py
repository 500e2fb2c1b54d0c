"""`python -m tests.cli_reference`: writes docs/cli.md, the reference of the command line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from ftuner.cli.main import app

PATH = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """\
# Command line

<!-- Written by python -m tests.cli_reference. -->

Each command prints tables, or one JSON document with `--json`. An error is one line on stderr. The
exit code is 2 for wrong options and settings, 1 for failures, and 130 after Ctrl-C.
`python -m ftuner` runs the same commands; `ftuner --install-completion` completes them in a shell.
`bench`, `compare`, `demo`, `report` and the option `--ray` of `tune` need the
[tools](index.md#1-install); without these they say so.

| environment variable | meaning | default |
| --- | --- | --- |
| `FTUNER_CACHE_DIR` | folder of the cache | the user's cache folder |
| `FTUNER_CACHE_MAX_BYTES` | size of the cache folder | 256 MiB |
| `FTUNER_NUM_THREADS` | threads of a call | the usable cores |
| `FTUNER_ISA` | vector instruction set: `sse2`, `avx2`, `avx512`, `neon` | the widest |
| `FTUNER_MAX_TRIPS` | most iterations of a loop in a model | 16777216 |
| `FTUNER_PROGRESS` | bar while something is compiled: `0` never, `1` always | on a terminal |
"""


def page() -> str:
    return "\n".join([HEAD, *_commands(typer.main.get_command(app), "ftuner")])


def _commands(command: Any, name: str) -> Iterator[str]:
    """The lines of a command, or of all commands of a group."""
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            if not inner.hidden:
                yield from _commands(inner, f"{name} {word}")
        return
    yield f"## {name}"
    yield ""
    yield _sentence(command.help)
    yield ""
    shown = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    rows = list(map(_row, shown))
    if rows:
        yield "| argument or option | meaning | default |"
        yield "| --- | --- | --- |"
        yield from rows
        yield ""


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_takes(parameter)}`"
    else:
        names = ", ".join(f"`{option}`" for option in parameter.opts)
        takes = "" if parameter.is_flag else f" `{_takes(parameter)}`"
        name = f"{names}{takes}"
    default = parameter.default
    told = "required" if parameter.required else ""
    if default is not None and not callable(default) and default is not False:
        told = f"`{default}`"
    cells = (name, _sentence(getattr(parameter, "help", None)), told)
    return "| " + " | ".join(cell.replace("<", "&lt;").replace("|", "\\|") for cell in cells) + " |"


def _takes(parameter: Any) -> str:
    """What an option takes: its own word for it, or its name. Releases of typer spell types in
    several ways."""
    return str(parameter.metavar or parameter.name.upper())


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
