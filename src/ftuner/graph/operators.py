"""The table of operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module

from ftuner.core import functions
from ftuner.core.caching import cached_attribute
from ftuner.core.expr import expect_composition
from ftuner.core.functions import SCALAR_FUNCTIONS, ScalarFunction
from ftuner.core.index_expr import Nest
from ftuner.errors import ConfigurationError
from ftuner.graph.ir import Node
from ftuner.graph.operator import Operator
from ftuner.graph.schedules import lowering_of

MODULES = (
    *("pointwise", "views", "layout", "indexing", "scattering", "ordering", "reduction"),
    *("contraction", "learning", "text", "trees", "attention", "recurrence", "random_numbers"),
    *("resampling", "suppression", "windows", "control"),
)
"""The modules of `graph.ops` that have operators, in their order."""


class Operators(Mapping[str, Operator]):
    """The operators by name. Their modules are imported when the table is first read, which no
    model that was compiled before does."""

    @cached_attribute
    def rows(self) -> dict[str, Operator]:
        """The table itself."""
        modules = (import_module(f"ftuner.graph.ops.{name}") for name in MODULES)
        found: list[Operator] = [operator for module in modules for operator in module.OPERATORS]
        return {o.name: replace(o, lower=o.lower or lowering_of(o.name)) for o in found}

    def __getitem__(self, name: str) -> Operator:
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


OPERATORS = Operators()


def definition(node: Node) -> Nest | None:
    """The definition of a node; None if its operator has none."""
    define, (given, found) = OPERATORS[node.op].define, (node.inputs, node.outputs)
    return define and define([v.type for v in given], node.attributes, [v.type for v in found])


def register_operator(operator: Operator) -> None:
    """Add an operator from outside ftuner.

    Raises:
        ConfigurationError: another operator has the name.
    """
    if OPERATORS.rows.setdefault(operator.name, operator) is not operator:
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
    OPERATORS.rows[name] = import_module("ftuner.graph.ops.pointwise").pointwise(name)
