"""The definition of a schedule: its source, and the candidates of its tile parameters."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ftuner.core.frozen import dataclass
from ftuner.errors import ScheduleError, UnsupportedStatementError


@dataclass(frozen=True)
class Source:
    """The definition of a schedule."""

    node: ast.FunctionDef
    file: str
    globals: Mapping[str, Any]

    def error(self, kind: type[ScheduleError], line: int, message: str) -> ScheduleError:
        return kind(f"{self.file}:{line}: schedule {self.node.name!r}: {message}")


def source_of(function: Callable[..., Any]) -> Source:
    """The source of a function.

    Raises:
        ScheduleError: it has none, as what is typed into Python's prompt.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "?"
    except (OSError, TypeError) as error:
        raise ScheduleError(f"no source of {function!r}: write it into a file") from error
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    (node,) = tree.body
    if not isinstance(node, ast.FunctionDef):
        raise ScheduleError(f"{file}:{first}: expected a function")
    closed = inspect.getclosurevars(function).nonlocals
    return Source(node, file, {**function.__globals__, **closed})


def tile_parameters(source: Source) -> dict[str, tuple[int, ...]]:
    """The candidates of each tile parameter."""
    arguments = source.node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        what = "plain parameters are expected"
        raise source.error(UnsupportedStatementError, source.node.lineno, what)
    found = {}
    given = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    for argument, default in zip(given, arguments.defaults, strict=True):
        values = _candidates(default)
        if not values or last_name(argument.annotation) != "Tile":
            wanted = f"`{argument.arg}: Tile = candidates(1, 2)` with positive integers"
            what = f"parameter {argument.arg!r} has a default; only {wanted} has one"
            raise source.error(UnsupportedStatementError, argument.lineno, what)
        found[argument.arg] = values
    return found


def _candidates(node: ast.expr) -> tuple[int, ...]:
    match node:
        case ast.Call(func, [*values], []) if last_name(func) == "candidates":
            found = tuple(getattr(v, "value", None) for v in values)
            if all(type(v) is int and v > 0 for v in found):
                return found  # type: ignore[return-value]
    return ()


def last_name(node: ast.expr | None) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""
