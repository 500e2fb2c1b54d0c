"""Operators on elements."""

from __future__ import annotations

from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.frontends.torch.promotion import promoted
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply
from ftuner.graph.ir import Operand, Value


def _floating(x: Value, op: str) -> Value:
    """A function whose results are floats."""
    return apply(op, *promoted(x, floating=True))


for _name in ("exp", "expm1", "log", "sqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf", "silu"):
    assert _name in SCALAR_FUNCTIONS
    aten(_name, op=_name)(_floating)


@aten("relu")
def _relu(x: Value) -> Value:
    return x.at_least(0)


@aten("gelu")
def _gelu(x: Value, approximate: str = "none") -> Value:
    return apply("gelu_tanh" if approximate == "tanh" else "gelu", x)


@aten("add.Tensor", "add.Scalar")
def _add(x: Operand, y: Operand, alpha: float = 1) -> Value:
    x, y = promoted(x, y)
    return x + y * alpha


@aten("sub.Tensor", "sub.Scalar")
def _subtract(x: Operand, y: Operand, alpha: float = 1) -> Value:
    x, y = promoted(x, y)
    return x - y * alpha


@aten("mul.Tensor", "mul.Scalar")
def _multiply(x: Operand, y: Operand) -> Value:
    x, y = promoted(x, y)
    return x * y


@aten("div.Tensor", "div.Scalar")
def _divide(x: Operand, y: Operand) -> Value:
    x, y = promoted(x, y, floating=True)
    return x / y
