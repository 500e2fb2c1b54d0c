"""Epilogues as Triton text: float32 expressions of one block of a result.

Equal sub-expressions are one line of text, as they are one step of `core.expr.flatten`. Every
operation is rounded to float32; the block is rounded to the result's dtype when it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from ftuner.codegen.triton.functions import Functions, literal
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import Apply, Constant, Expr, FlatStep, Operand, flatten
from ftuner.errors import ExpressionError


class RenderedEpilogue(NamedTuple):
    """The text of an epilogue."""

    lines: tuple[str, ...]
    """One assignment each."""
    value: str
    """The expression of the result, a block of float32."""


def render_epilogue(epilogue: Expr, operands: Mapping[str, str], name: str) -> RenderedEpilogue:
    """Returns the text of `epilogue` on blocks of float32.

    Args:
        operands: expressions of the blocks by operand name, including the accumulator.
        name: prefix of the names that the text assigns.

    Raises:
        ExpressionError: an operand is missing, or the epilogue has none.
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


def epilogue_prelude(*epilogues: Expr, used: Functions | None = None) -> str:
    """Returns the functions that a kernel with these epilogues calls, and those that it has `used`
    before."""
    functions = used or Functions()
    for step in chain.from_iterable(map(flatten, epilogues)):
        if isinstance(step.node, Apply):
            functions.apply(step.node.function, ["x"] * len(step.arguments), FLOAT32)
    return functions.prelude()


def _literal(value: float) -> str:
    with np.errstate(over="ignore"):
        return literal(float(np.float32(value)), FLOAT32)


def _expression(step: FlatStep, steps: tuple[FlatStep, ...], values: list[str]) -> str:
    node = step.node
    arguments = [values[i] for i in step.arguments]
    if all(isinstance(steps[i].node, Constant) for i in step.arguments):
        # Python would compute literals in float64.
        arguments[0] = f"tl.full([1, 1], {arguments[0]}, tl.float32)"
    assert isinstance(node, Apply)
    return Functions().apply(node.function, arguments, FLOAT32)
