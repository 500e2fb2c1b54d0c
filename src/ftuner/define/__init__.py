"""What the definitions of operators are written in; see docs/own_operators.md."""

from collections.abc import Callable

from ftuner.define.elements import Element
from ftuner.define.functions import (
    all,
    any,
    argmax,
    argmin,
    axis,
    cast,
    max,
    mean,
    min,
    prod,
    scalar_function,
    sum,
    where,
)
from ftuner.define.recurrences import recurrence


def __getattr__(name: str) -> Callable[..., Element]:
    return scalar_function(name)


__all__ = [
    "all", "any", "argmax", "argmin", "axis", "cast", "max", "mean", "min", "prod", "recurrence",
    "sum", "where",
]  # fmt: skip
