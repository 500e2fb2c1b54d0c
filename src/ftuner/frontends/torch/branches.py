"""Branches that a module took on extents while it was traced.

A program holds for extents that take the same branches. torch compares extents in its own code,
too, where programs hold on both sides: what counts are the comparisons of anyone else's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sympy
import torch
from torch.export import ExportedProgram

from ftuner.core.dim import Dim, maximum, minimum

_LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
"""Where torch and ftuner compare extents."""
MOST_TEXT = 100
"""Characters of a line of code in a message."""


class Branch(NamedTuple):
    """A condition on extents that the module found true."""

    condition: sympy.Basic
    what: str
    """Where, for error messages."""


def branches_of(program: ExportedProgram) -> list[Branch]:
    """The branches that a program has been traced along, as far as torch kept them."""
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        mode = getattr(value, "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            return [
                Branch(g.expr, _where(g.sloc.framework_loc)) for g in _of_module(mode.shape_env)
            ]
    return []


def _of_module(environment: Any) -> Iterator[Any]:
    for guard in environment.guards:
        place = guard.sloc.framework_loc
        if hasattr(place, "filename") and not place.filename.startswith(_LIBRARIES):
            yield guard


def _where(place: Any) -> str:
    line = (place.line or "").strip()[:MOST_TEXT]
    return (
        f"a branch on extents, {Path(place.filename).name}:{place.lineno} ({line}), of which the "
        "program has the side of the example inputs alone; compile with others, or use "
        "torch.compile(module, backend='ftuner')"
    )


def equality(condition: sympy.Basic, dim: Callable[[sympy.Expr], Dim]) -> tuple[Dim, Dim] | None:
    """Two dims that are equal if the condition holds and else not; None if there are none such.
    `dim`: of an expression."""
    made = _RELATIONS.get(type(condition))
    return None if made is None else made(*(dim(x) for x in condition.args))


def _at_least(x: Dim, y: Dim) -> tuple[Dim, Dim]:
    return minimum(x - y, 0), 0


_RELATIONS: Mapping[type, Callable[[Dim, Dim], tuple[Dim, Dim]]] = {
    sympy.Eq: lambda x, y: (x, y),
    sympy.Ne: lambda x, y: (minimum(maximum(x - y, y - x), 1), 1),
    sympy.Ge: _at_least,
    sympy.Gt: lambda x, y: _at_least(x - 1, y),
    sympy.Le: lambda x, y: _at_least(y, x),
    sympy.Lt: lambda x, y: _at_least(y - 1, x),
}
