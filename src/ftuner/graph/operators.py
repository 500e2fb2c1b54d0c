"""The table of operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ftuner.core import functions
from ftuner.core.expr import expect_composition
from ftuner.core.functions import SCALAR_FUNCTIONS, ScalarFunction
from ftuner.errors import ConfigurationError
from ftuner.graph.operator import Operator
from ftuner.graph.ops.attention import ATTENTION
from ftuner.graph.ops.contraction import CONTRACTIONS
from ftuner.graph.ops.control import CONTROL
from ftuner.graph.ops.experts import EXPERTS
from ftuner.graph.ops.indexing import INDEXING
from ftuner.graph.ops.layout import LAYOUT
from ftuner.graph.ops.learning import LEARNING
from ftuner.graph.ops.ordering import ORDERING
from ftuner.graph.ops.pointwise import POINTWISE, pointwise
from ftuner.graph.ops.random_numbers import RANDOM_NUMBERS
from ftuner.graph.ops.reading import READING
from ftuner.graph.ops.recurrence import RECURRENCE
from ftuner.graph.ops.reduction import REDUCTIONS
from ftuner.graph.ops.resampling import RESAMPLING
from ftuner.graph.ops.scattering import SCATTERING
from ftuner.graph.ops.suppression import SUPPRESSION
from ftuner.graph.ops.text import TEXT
from ftuner.graph.ops.trees import TREES
from ftuner.graph.ops.views import VIEWS
from ftuner.graph.ops.windows import WINDOWS
from ftuner.graph.schedules import lowering_of

_TABLE: dict[str, Operator] = {
    o.name: replace(o, lower=o.lower or lowering_of(o.name))
    for o in (
        *POINTWISE,
        *VIEWS,
        *LAYOUT,
        *INDEXING,
        *READING,
        *SCATTERING,
        *ORDERING,
        *REDUCTIONS,
        *CONTRACTIONS,
        *LEARNING,
        *TEXT,
        *TREES,
        *EXPERTS,
        *ATTENTION,
        *RECURRENCE,
        *RANDOM_NUMBERS,
        *RESAMPLING,
        *SUPPRESSION,
        *WINDOWS,
        *CONTROL,
    )
}
OPERATORS: Mapping[str, Operator] = _TABLE


def register_operator(operator: Operator) -> None:
    """Add an operator from outside ftuner.

    Raises:
        ConfigurationError: another operator has the name.
    """
    if _TABLE.setdefault(operator.name, operator) is not operator:
        raise ConfigurationError(f"another operator is called {operator.name!r}; choose a name")


def register_function(name: str, row: ScalarFunction) -> None:
    """Add a scalar function from outside ftuner, and the operator that applies it to elements.

    Raises:
        ConfigurationError: another function or operator has the name, or the row cannot be
            compiled.
        ExpressionError: its composition uses unknown functions, or is not of their arguments.
    """
    if name in OPERATORS and name not in SCALAR_FUNCTIONS:
        raise ConfigurationError(f"another operator is called {name!r}; choose a name")
    expect_composition(row)
    functions.register(name, row)
    _TABLE[name] = pointwise(name)
