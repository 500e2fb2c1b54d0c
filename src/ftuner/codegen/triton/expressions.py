"""Epilogues as Triton text: what is done to one block of a result, in float32.

An equal sub-expression is one line of text, as it is one step of `core.expr.flatten`. Every
operation is rounded to float32; the block is rounded to the result's dtype when it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ftuner.codegen.triton.vector_math import call, prelude
from ftuner.core.expr import Binary, Constant, Expr, FlatStep, Operand, Unary, flatten
from ftuner.errors import ExpressionError

_FUNCTIONS = {"abs": "absolute", "div": "divide"}
"""Names of `elementary` that differ from those of `core.expr`."""
_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}


class RenderedEpilogue(NamedTuple):
    """The text of an epilogue."""

    lines: tuple[str, ...]
    """One assignment each."""
    value: str
    """The expression of the result, a block of float32."""


def render_epilogue(epilogue: Expr, operands: Mapping[str, str], name: str) -> RenderedEpilogue:
    """`epilogue` of blocks of float32, `operands` being their expressions by operand name, the
    accumulator's too; assigned names begin with `name`.

    Raises ExpressionError if an operand is missing, or if the epilogue has none.
    """
    steps = flatten(epilogue)
    if not any(isinstance(step.node, Operand) for step in steps):
        raise ExpressionError("an epilogue of constants alone; expected one of the accumulator")
    lines: list[str] = []
    values: list[str] = []
    for step in steps:
        if isinstance(step.node, Operand):
            if step.node.name not in operands:
                raise ExpressionError(f"operand {step.node.name!r} was not given")
            values.append(operands[step.node.name])
        elif isinstance(step.node, Constant):
            values.append(_literal(step.node.value))
        else:
            lines.append(f"{name}{len(lines)} = {_expression(step, steps, values)}")
            values.append(f"{name}{len(lines) - 1}")
    return RenderedEpilogue(tuple(lines), values[-1])


def epilogue_prelude(epilogue: Expr) -> str:
    """The functions that stand before a kernel with this epilogue."""
    nodes = [step.node for step in flatten(epilogue)]
    used = {node.op for node in nodes if isinstance(node, (Unary, Binary))}
    return prelude(_FUNCTIONS.get(op, op) for op in used)


def _literal(value: float) -> str:
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    return repr(rounded) if np.isfinite(rounded) else f'float("{rounded}")'


def _expression(step: FlatStep, steps: tuple[FlatStep, ...], values: list[str]) -> str:
    node = step.node
    arguments = [values[i] for i in step.arguments]
    if all(isinstance(steps[i].node, Constant) for i in step.arguments):
        # A number alone would be computed in Python's arithmetic.
        arguments[0] = f"tl.full([1, 1], {arguments[0]}, tl.float32)"
    if isinstance(node, Binary) and node.op in _OPERATORS:
        return f"{arguments[0]} {_OPERATORS[node.op]} {arguments[1]}"
    assert isinstance(node, (Unary, Binary))
    if node.op == "neg":
        return call("negative", *arguments)
    return call(_FUNCTIONS.get(node.op, node.op), *arguments)
