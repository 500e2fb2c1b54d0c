"""Index-free scalar expressions: what an epilogue does to one element of a result.

An expression is a value: it names its operands and says nothing of layouts, vectors or loops. It
has three readings: a canonical text (`key`), a NumPy reference (`evaluate`), and machine code, made
by a code generator from `flatten`. Sub-expressions that are equal are one step in all three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ftuner.core import references as activations
from ftuner.errors import ExpressionError

Array = npt.NDArray[Any]

OperandKind = Literal["tile", "column", "row", "matrix"]
"""How an operand spreads over a result of (m, n): the accumulator's own element, one value per
column n (a bias), one value per row m, or one value per (m, n) (a residual)."""
UnaryOp = Literal[
    "neg", "abs", "exp", "expm1", "log", "sqrt", "tanh", "erf", "erfc", "sigmoid", "reciprocal",
    "gelu", "gelu_tanh", "silu", "softplus", "mish",
]  # fmt: skip
BinaryOp = Literal["add", "sub", "mul", "div", "maximum", "minimum", "swish"]
"""`maximum` and `minimum` return NaN if either operand is NaN, as NumPy's do. `swish` is
x sigmoid(y x)."""


class Expr:
    """Base of every expression; Python's arithmetic operators build larger ones, and numbers
    become constants."""

    def __neg__(self) -> Expr:
        return Unary("neg", self)

    def __add__(self, other: Expr | float) -> Expr:
        return Binary("add", self, as_expr(other))

    def __radd__(self, other: float) -> Expr:
        return Binary("add", as_expr(other), self)

    def __sub__(self, other: Expr | float) -> Expr:
        return Binary("sub", self, as_expr(other))

    def __rsub__(self, other: float) -> Expr:
        return Binary("sub", as_expr(other), self)

    def __mul__(self, other: Expr | float) -> Expr:
        return Binary("mul", self, as_expr(other))

    def __rmul__(self, other: float) -> Expr:
        return Binary("mul", as_expr(other), self)

    def __truediv__(self, other: Expr | float) -> Expr:
        return Binary("div", self, as_expr(other))

    def __rtruediv__(self, other: float) -> Expr:
        return Binary("div", as_expr(other), self)


def _expect(value: object, allowed: tuple[object, ...], what: str) -> None:
    if value not in allowed:
        raise ExpressionError(
            f"{what} is {value!r}; expected one of {', '.join(map(str, allowed))}"
        )


def _expect_expr(*values: object) -> None:
    for value in values:
        if not isinstance(value, Expr):
            raise ExpressionError(
                f"argument is a {type(value).__name__}; expected an expression (numbers become one "
                "through as_expr)"
            )


@dataclass(frozen=True)
class Operand(Expr):
    """A named input. Raises ExpressionError if `name` is not an identifier or `kind` unknown."""

    name: str
    kind: OperandKind

    def __post_init__(self) -> None:
        _expect(self.kind, get_args(OperandKind), "operand kind")
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ExpressionError(f"operand name is {self.name!r}; expected an identifier")


@dataclass(frozen=True)
class Constant(Expr):
    """A number, rounded to the element type where it is used. Raises ExpressionError on NaN."""

    value: float
    negative: bool = field(init=False, repr=False)
    """The sign counts where two constants are compared: 0.0 and -0.0 are equal as numbers, and
    divide differently."""

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise ExpressionError("constant is NaN; expected a number or an infinity")
        object.__setattr__(self, "negative", math.copysign(1.0, self.value) < 0)


@dataclass(frozen=True)
class Unary(Expr):
    """`op` of one argument. Raises ExpressionError if `op` is unknown."""

    op: UnaryOp
    x: Expr

    def __post_init__(self) -> None:
        _expect(self.op, get_args(UnaryOp), "unary operation")
        _expect_expr(self.x)


@dataclass(frozen=True)
class Binary(Expr):
    """`op` of two arguments. Raises ExpressionError if `op` is unknown."""

    op: BinaryOp
    x: Expr
    y: Expr

    def __post_init__(self) -> None:
        _expect(self.op, get_args(BinaryOp), "binary operation")
        _expect_expr(self.x, self.y)


ACCUMULATOR = Operand("acc", "tile")
"""The element that a matrix product has just accumulated."""


def as_expr(value: Expr | float) -> Expr:
    """`value` itself, or a number as a Constant; ExpressionError on anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float, np.integer, np.floating)):
        return Constant(float(value))
    raise ExpressionError(f"{type(value).__name__} in an expression; expected Expr or a number")


def identity(x: Expr) -> Expr:
    return x


def relu(x: Expr) -> Expr:
    return Binary("maximum", x, Constant(0.0))


def gelu(x: Expr) -> Expr:
    """x * Phi(x)."""
    return Unary("gelu", x)


def gelu_tanh(x: Expr) -> Expr:
    """Hendrycks and Gimpel's approximation (arXiv 1606.08415), 0.5 x (1 + tanh u) with
    u = sqrt(2/pi) (x + 0.044715 x^3)."""
    return Unary("gelu_tanh", x)


def silu(x: Expr) -> Expr:
    """x * sigmoid(x)."""
    return Unary("silu", x)


def sigmoid(x: Expr) -> Expr:
    return Unary("sigmoid", x)


def tanh(x: Expr) -> Expr:
    return Unary("tanh", x)


def clip(x: Expr, lo: float, hi: float) -> Expr:
    """`x` limited to [lo, hi], NaN kept. Raises ExpressionError unless lo <= hi."""
    if not lo <= hi:
        raise ExpressionError(f"clip to [{lo}, {hi}]; expected lo <= hi")
    return Binary("minimum", Binary("maximum", x, Constant(lo)), Constant(hi))


def hard_swish(x: Expr) -> Expr:
    """x clip(x + 3, 0, 6) / 6 (Howard and others, arXiv 1905.02244). The clipped sum is what is
    divided, so that the product overflows nowhere; x itself is limited to where the sum is not
    negative, so that minus infinity gives a zero."""
    above = Binary("maximum", x, Constant(-3.0))
    return above * (Binary("minimum", above + 3.0, Constant(6.0)) * (1.0 / 6.0))


ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "identity": identity,
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "hard_swish": hard_swish,
    "sigmoid": sigmoid,
    "tanh": tanh,
}


@dataclass(frozen=True)
class FlatStep:
    """One distinct sub-expression: its node and, for each argument, the index of its step."""

    node: Expr
    arguments: tuple[int, ...]


def flatten(expr: Expr) -> tuple[FlatStep, ...]:
    """The distinct sub-expressions of `expr`, arguments before their users, the root last.

    Arguments are visited left to right. Linear in the number of node objects, however often they
    are shared.
    """
    _expect_expr(expr)
    steps: list[FlatStep] = []
    by_identity: dict[int, int] = {}
    by_structure: dict[tuple[object, ...], int] = {}

    def visit(node: Expr) -> int:
        if id(node) in by_identity:
            return by_identity[id(node)]
        arguments = tuple(visit(a) for a in _arguments(node))
        structure = (_head(node), arguments)
        if structure not in by_structure:
            by_structure[structure] = len(steps)
            steps.append(FlatStep(node, arguments))
        by_identity[id(node)] = by_structure[structure]
        return by_identity[id(node)]

    visit(expr)
    return tuple(steps)


def _arguments(node: Expr) -> tuple[Expr, ...]:
    if isinstance(node, Unary):
        return (node.x,)
    if isinstance(node, Binary):
        return (node.x, node.y)
    return ()


def _head(node: Expr) -> str:
    """A node without its arguments, as text; the sign of a zero constant counts."""
    if isinstance(node, Operand):
        return f"{node.name}:{node.kind}"
    if isinstance(node, Constant):
        return float(node.value).hex()
    assert isinstance(node, (Unary, Binary))
    return node.op


def operands(expr: Expr) -> tuple[Operand, ...]:
    """The operands of `expr` in the order of their first use, without those of kind "tile".

    Raises ExpressionError if one name is used with two kinds.
    """
    found: dict[str, Operand] = {}
    for step in flatten(expr):
        if isinstance(step.node, Operand):
            first = found.setdefault(step.node.name, step.node)
            if first.kind != step.node.kind:
                raise ExpressionError(
                    f"operand {first.name!r} is used as {first.kind} and as {step.node.kind}; "
                    "expected one kind for one name"
                )
    return tuple(o for o in found.values() if o.kind != "tile")


def key(expr: Expr) -> str:
    """A canonical text: equal for expressions that are equal node by node, different for others,
    and the same in every process.

    One entry a step of `flatten`, separated by "|"; arguments are indices of earlier entries and
    constants are hexadecimal, as in `acc:tile|0x0.0p+0|maximum(0,1)`.
    """
    entries = (
        _head(step.node) + (f"({','.join(map(str, step.arguments))})" if step.arguments else "")
        for step in flatten(expr)
    )
    return "|".join(entries)


def evaluate(expr: Expr, env: Mapping[str, Array]) -> Array:
    """The NumPy reference: `expr` on the arrays of `env`, by operand name.

    Takes tile and matrix operands of shape (..., m, n), column operands of (n,) and row operands of
    (m,); a row operand of another rank is broadcast as it is. Every operation is rounded to the
    common floating dtype of the operands (float64 if there is none), which the result has too.
    Raises ExpressionError if an operand is missing or is used with two kinds.
    """
    operands(expr)
    steps = flatten(expr)
    given = {s.node.name: _operand_value(s.node, env) for s in steps if isinstance(s.node, Operand)}
    dtype = np.result_type(*given.values()) if given else np.dtype(np.float64)
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for step in steps:
            node = step.node
            arguments = [values[i] for i in step.arguments]
            if isinstance(node, Operand):
                values.append(given[node.name])
            elif isinstance(node, Constant):
                values.append(np.asarray(node.value, dtype))
            elif isinstance(node, Unary):
                values.append(_NUMPY_UNARY[node.op](arguments[0]))
            else:
                assert isinstance(node, Binary)
                values.append(_NUMPY_BINARY[node.op](*arguments))
    return np.asarray(values[-1])


def _operand_value(operand: Operand, env: Mapping[str, Array]) -> Array:
    if operand.name not in env:
        raise ExpressionError(
            f"operand {operand.name!r} ({operand.kind}) was not given; got {sorted(env)}"
        )
    value = np.asarray(env[operand.name])
    return value[:, None] if operand.kind == "row" and value.ndim == 1 else value


_NUMPY_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": np.abs,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "erf": activations.erf,
    "erfc": activations.erfc,
    "sigmoid": activations.sigmoid,
    "reciprocal": lambda x: np.divide(1.0, x),
    "gelu": activations.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "silu": activations.silu,
    "softplus": activations.softplus,
    "mish": activations.mish,
}
_NUMPY_BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "swish": activations.swish,
}
