"""Pointwise nodes as the epilogue of a matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ftuner.core.expr import Constant, Expr, Operand, OperandKind, applied
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.buffers import View
from ftuner.graph.ir import Node, Value

MAX_EPILOGUE_STEPS = 48
"""Longest epilogue, because each uKernel of a family contains it; what is longer becomes a step of
its own. A bias, a gelu and a residual have six. Assumed."""


@dataclass(frozen=True)
class Epilogue:
    """An expression of a product's elements, and its other operands."""

    expr: Expr
    operands: tuple[View, ...]


def extended(
    epilogue: Epilogue,
    node: Node,
    position: int,
    flat: bool,
    view: Callable[[Value, OperandKind], View],
) -> Epilogue | None:
    """The epilogue followed by a node whose operand at `position` is the product. None if the
    operator cannot be in an epilogue, or if its other operand is broadcast in a way that uKernels
    do not read."""
    row = SCALAR_FUNCTIONS.get(node.op)
    if row is None or not row.epilogue:
        return None
    if row.arity == 1:
        return Epilogue(applied(node.op, epilogue.expr), epilogue.operands)
    other = node.inputs[1 - position]
    operands = epilogue.operands
    value: Expr
    if other.constant is not None and other.constant.size == 1 and other.rank <= node.output.rank:
        number = float(other.constant.reshape(()))
        if np.isnan(number):
            return None
        value = Constant(number)
    else:
        kind = _kind(other, node.output, flat)
        if kind is None:
            return None
        given = view(other, kind)
        operands = (*operands, given)
        value = Operand(f"x{len(operands)}", kind)
    sides = (epilogue.expr, value) if position == 0 else (value, epilogue.expr)
    return Epilogue(applied(node.op, *sides), operands)


def _kind(value: Value, result: Value, flat: bool) -> OperandKind | None:
    """How an operand is broadcast over the product; None if in a way that uKernels do not read."""
    if value.rank >= 1 and value.shape[-1] == result.shape[-1] and value.shape[-1] != 1:
        if all(n == 1 for n in value.shape[:-1]):
            return "column"
        if flat and value.shape == result.shape:
            return "matrix"
    return None
