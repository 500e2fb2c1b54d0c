"""The epilogue that most products with a weight have in common, so that they share uKernels.

To compile a family takes longest of all that a model needs, and the k loop is most of it. A sum
with a bias and a residual, limited or not, is therefore one epilogue of several stages: a uKernel
skips a stage whose first operand is missing (null).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ftuner.core.expr import (
    ACCUMULATOR,
    Apply,
    Constant,
    Expr,
    Operand,
    OperandKind,
    applied,
    operands,
)
from ftuner.core.product import ProductTypes

_KINDS: tuple[OperandKind, ...] = ("column", "matrix", "row", "row")
_ADDED, _RESIDUAL, _LOWER, _UPPER = (Operand(f"x{i}", kind) for i, kind in enumerate(_KINDS, 1))


def _limited() -> Expr:
    """The accumulator within limits that are no NaN: of a maximum, LLVM asks whether they are."""
    raised = applied("where", applied("less", ACCUMULATOR, _LOWER), _LOWER, ACCUMULATOR)
    return applied("where", applied("less", _UPPER, raised), _UPPER, raised)


COMMON = applied("minimum", applied("maximum", ACCUMULATOR + _ADDED + _RESIDUAL, _LOWER), _UPPER)
_STAGES = (ACCUMULATOR + _ADDED, ACCUMULATOR + _RESIDUAL, _limited())
LIMITS = 2
"""The place of the lower limit among the operands of `COMMON`; that of the upper one follows."""


def stages(epilogue: Expr) -> tuple[Expr, ...]:
    """The stages of `COMMON`; none of another epilogue."""
    return _STAGES if epilogue == COMMON else ()


def has_shared_code(types: ProductTypes, epilogue: Expr) -> bool:
    """Whether a product with an epilogue runs the uKernels that products without one run, too: they
    apply `COMMON`, and a function of its own applies any other epilogue to the sums that they have
    stored, which C must hold exactly."""
    exact = types.accumulator == types.finished == types.c
    return exact or epilogue in (ACCUMULATOR, COMMON)


class Shared(NamedTuple):
    """An epilogue as one that others share."""

    epilogue: Expr
    """What the uKernels apply: `COMMON`, or the epilogue itself."""
    places: tuple[int, ...]
    """For each operand, in the order of its first use, its place among the operands of
    `epilogue`."""
    limits: tuple[float, ...] = ()
    """The lower and the upper one, if results are limited."""

    def placed(self, values: Sequence[int]) -> tuple[int, ...]:
        """Values of operands by their places; 0 elsewhere."""
        found = [0] * (max(self.places, default=-1) + 1)
        for place, value in zip(self.places, values, strict=True):
            found[place] = value
        return tuple(found)


def unshared(epilogue: Expr) -> Shared:
    """An epilogue of which all operands are there."""
    return Shared(epilogue, tuple(range(len(operands(epilogue)))))


@lru_cache(maxsize=256)
def shared(epilogue: Expr) -> Shared:
    """An epilogue as `COMMON`, if it is one with the same results."""
    summed, limits = _without_limits(epilogue)
    if _added(summed) is None:
        return unshared(epilogue)
    return Shared(COMMON, tuple(_KINDS.index(x.kind) for x in operands(summed)), limits)


def _without_limits(expr: Expr) -> tuple[Expr, tuple[float, ...]]:
    """The expression that is limited, and its limits."""
    lower, upper = -math.inf, math.inf
    found = expr
    match found:
        case Apply("minimum", (x, Constant(number))):
            found, upper = x, number
    match found:
        case Apply("maximum", (x, Constant(number))):
            found, lower = x, number
    return found, () if found is expr else (lower, upper)


def _added(expr: Expr) -> tuple[str, ...] | None:
    """The kinds of what is added to the accumulator, each at most once, a column before a matrix;
    None for another expression."""
    if expr == ACCUMULATOR:
        return ()
    if not isinstance(expr, Apply) or expr.function != "add":
        return None
    for other, rest in (expr.arguments, expr.arguments[::-1]):
        if isinstance(other, Operand) and other.kind in ("column", "matrix"):
            before = _added(rest)
            if before in ((), ("column",)) and other.kind not in before:
                return (*before, other.kind)
    return None
