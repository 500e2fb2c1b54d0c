"""Pointwise nodes as the epilogue of a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ftuner.core.expr import Binary, Constant, Expr, Operand, OperandKind, Unary, UnaryOp
from ftuner.core.functions import COMPOSED
from ftuner.graph.buffers import View
from ftuner.graph.ir import Node, Value

MAX_EPILOGUE_STEPS = 48
"""Longer expressions are computed by a step of their own: each uKernel of a family has the
epilogue. A bias, a gelu and a residual have six."""


@dataclass(frozen=True)
class Epilogue:
    """An expression of a product's elements, and what else it reads."""

    expr: Expr
    operands: tuple[View, ...]


_SAME_NAME: tuple[UnaryOp, ...] = (
    "exp", "expm1", "log", "sqrt", "tanh", "erf", "erfc", "sigmoid", "gelu", "gelu_tanh", "silu",
    "softplus", "mish",
)  # fmt: skip
_UNARY: Mapping[str, Callable[[Expr], Expr]] = {
    "negative": lambda x: Unary("neg", x),
    "absolute": lambda x: Unary("abs", x),
    **{name: partial(Unary, name) for name in _SAME_NAME},
    **COMPOSED,
}
_BINARY: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda x, y: Binary("add", x, y),
    "subtract": lambda x, y: Binary("sub", x, y),
    "multiply": lambda x, y: Binary("mul", x, y),
    "divide": lambda x, y: Binary("div", x, y),
    "maximum": lambda x, y: Binary("maximum", x, y),
    "minimum": lambda x, y: Binary("minimum", x, y),
    "swish": lambda x, y: Binary("swish", x, y),
}


def extended(
    epilogue: Epilogue,
    node: Node,
    position: int,
    flat: bool,
    view: Callable[[Value, OperandKind], View],
) -> Epilogue | None:
    """The epilogue followed by a node whose operand at `position` is the product; None if it
    cannot be: another operator, or an operand that spreads over the product in another way."""
    if node.op in _UNARY:
        return Epilogue(_UNARY[node.op](epilogue.expr), epilogue.operands)
    if node.op not in _BINARY:
        return None
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
    return Epilogue(_BINARY[node.op](*sides), operands)


def _kind(value: Value, result: Value, flat: bool) -> OperandKind | None:
    """How an operand spreads over the product."""
    if value.rank >= 1 and value.shape[-1] == result.shape[-1] and value.shape[-1] != 1:
        if all(n == 1 for n in value.shape[:-1]):
            return "column"
        if flat and value.shape == result.shape:
            return "matrix"
    return None
