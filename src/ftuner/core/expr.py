"""Index-free scalar expressions: what an epilogue does to one element of a result.

An expression is a value: it names its operands and says nothing of layouts, vectors or loops. It
has three readings: a canonical text (`key`), a NumPy reference (`expr_values`), and machine code,
made by a code generator from `flatten`. Sub-expressions that are equal are one step in all three.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, partial
from numbers import Real
from typing import Any, Literal, get_args

from ftuner.core.frozen import dataclass
from ftuner.core.functions import SCALAR_FUNCTIONS, Instructions, ScalarFunction
from ftuner.errors import ExpressionError

OperandKind = Literal["tile", "column", "row", "matrix"]
"""How an operand spreads over a result of (m, n): the accumulator's own element, one value per
column n (a bias), one value per row m, or one value per (m, n) (a residual)."""
MAX_REPEATED_STEPS = 8
"""Longest nest that each of several consumers computes again."""


Method = Callable[["Expr", "Expr | float"], "Expr"]


def _methods(function: str) -> tuple[Method, Method]:
    """The methods of an operator, with the expression before and after the other operand."""
    return (
        lambda x, other: Apply(function, (x, as_expr(other))),
        lambda x, other: Apply(function, (as_expr(other), x)),
    )


class Expr:
    """Base of every expression; Python's arithmetic operators build larger ones, and numbers
    become constants."""

    __add__, __radd__ = _methods("add")
    __sub__, __rsub__ = _methods("subtract")
    __mul__, __rmul__ = _methods("multiply")
    __truediv__, __rtruediv__ = _methods("divide")

    def __neg__(self) -> Expr:
        return Apply("negative", (self,))


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
class Apply(Expr):
    """A row of `SCALAR_FUNCTIONS` without a composition, or `where`, of arguments.

    Raises ExpressionError if the name is unknown or not a function of floats, or if an argument is
    a condition in place of a number, or a number in place of a condition.
    """

    function: str
    arguments: tuple[Expr, ...]

    def __post_init__(self) -> None:
        row = SCALAR_FUNCTIONS.get(self.function)
        if self.function != "where" and (
            row is None or row.composition is not None or "float" not in row.kinds
        ):
            known = (n for n, f in SCALAR_FUNCTIONS.items() if "float" in f.kinds)
            raise ExpressionError(
                f"function is {self.function!r}; expected where or one of {', '.join(known)}"
            )
        _expect_expr(*self.arguments)
        arity = 3 if row is None else row.arity
        if len(self.arguments) != arity:
            raise ExpressionError(
                f"{self.function} of {len(self.arguments)} arguments; expected {arity}"
            )
        for at, argument in enumerate(self.arguments):
            if is_condition(argument) != (self.function == "where" and at == 0):
                given = "condition" if is_condition(argument) else "number"
                raise ExpressionError(f"argument {at} of {self.function} is a {given}")


def is_condition(expr: Expr) -> bool:
    """Whether the elements of an expression are bool."""
    if not isinstance(expr, Apply) or expr.function == "where":
        return False
    return SCALAR_FUNCTIONS[expr.function].result == "bool"


def applied(function: str, *arguments: Expr | float) -> Expr:
    """A function of the table, or `where`, of expressions and numbers. A composed function becomes
    its composition. Raises ExpressionError as `Apply` does."""
    given = tuple(map(as_expr, arguments))
    row = SCALAR_FUNCTIONS.get(function)
    if row is None or row.composition is None:
        return Apply(function, given)
    if len(given) != row.arity:
        raise ExpressionError(f"{function} of {len(given)} arguments; expected {row.arity}")
    return as_expr(_composed(row.composition, dict(zip("xy", given, strict=False))))


def composition(function: str) -> Expr:
    """The composition of a function, of the operands `x` and `y` (of kind matrix)."""
    return applied(function, *_arguments_of(SCALAR_FUNCTIONS[function]))


def expect_composition(row: ScalarFunction) -> None:
    """Raise ExpressionError unless the composition of a row can be compiled."""
    if row.composition is not None:
        value = _composed(row.composition, dict(zip("xy", _arguments_of(row), strict=False)))
        if is_condition(as_expr(value)):
            raise ExpressionError(f"composition {row.composition!r} is a condition, not a number")


def _arguments_of(row: ScalarFunction) -> tuple[Expr, ...]:
    return tuple(Operand(name, "matrix") for name in "xy"[: row.arity])


@cache
def composed_steps(function: str) -> tuple[FlatStep, ...]:
    """The distinct sub-expressions of a composition."""
    return flatten(composition(function))


@cache
def is_expensive(function: str) -> bool:
    """Whether a step of a nest is a scalar function that is too expensive to compute twice."""
    if function in ("philox", "normal"):
        return True
    row = SCALAR_FUNCTIONS.get(function)
    if row is None or function in ("remainder", "fmod"):
        # Remainders are mostly of indices, which are integers.
        return False
    if row.composition is None:
        return isinstance(row.cost, Instructions) or row.cost == "library"
    used = [s.node.function for s in composed_steps(function) if isinstance(s.node, Apply)]
    return len(used) > MAX_REPEATED_STEPS or any(map(is_expensive, used))


def _composed(text: str, names: dict[str, Expr | float]) -> Expr | float:
    """The value of a composition's text, the arguments being given by name."""
    try:
        *assignments, last = ast.parse(text).body
        for statement in assignments:
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    names[name] = _value(value, names)
                case _:
                    raise ExpressionError(f"{ast.unparse(statement)!r} is not an assignment")
        if not isinstance(last, ast.Expr):
            raise ExpressionError(f"it ends in {ast.unparse(last)!r}; expected an expression")
        return _value(last.value, names)
    except (SyntaxError, TypeError, ValueError) as error:
        raise ExpressionError(f"composition {text!r}: {error}") from error


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def _value(node: ast.expr, names: Mapping[str, Expr | float]) -> Expr | float:
    """The value of a part of a composition; arithmetic of numbers alone gives a number."""
    match node:
        case ast.Name(name) if name in names:
            return names[name]
        case ast.Constant(int() | float() as number):
            return number
        case ast.BinOp(x, sign, y) if type(sign) in _OPERATORS:
            value: Expr | float = _OPERATORS[type(sign)](_value(x, names), _value(y, names))
            return value
        case ast.UnaryOp(ast.USub(), x):
            return -_value(x, names)
        case ast.Compare(x, [ast.Lt()], [y]):
            return applied("less", _value(x, names), _value(y, names))
        case ast.Call(ast.Name(function), arguments, []):
            return applied(function, *(_value(argument, names) for argument in arguments))
    raise ExpressionError(f"{ast.unparse(node)!r} is not supported")


ACCUMULATOR = Operand("acc", "tile")
"""The element that a matrix product has just accumulated."""
BEFORE = Operand("before", "matrix")
"""The previous element of a result, to which a product is added."""


def as_expr(value: Expr | float) -> Expr:
    """`value` itself, or a number as a Constant; ExpressionError on anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (int, float, Real)):
        return Constant(float(value))
    raise ExpressionError(f"{type(value).__name__} in an expression; expected Expr or a number")


def identity(x: Expr) -> Expr:
    return x


def relu(x: Expr) -> Expr:
    return applied("maximum", x, 0.0)


def clip(x: Expr, lo: float, hi: float) -> Expr:
    """`x` limited to [lo, hi], NaN kept. Raises ExpressionError unless lo <= hi."""
    if not lo <= hi:
        raise ExpressionError(f"clip to [{lo}, {hi}]; expected lo <= hi")
    return applied("minimum", applied("maximum", x, lo), hi)


ACTIVATIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "identity": identity,
    "relu": relu,
    **{
        name: partial(applied, name)
        for name in ("gelu", "gelu_tanh", "silu", "hard_swish", "sigmoid", "tanh")
    },
}
"""What `Dense` knows by name."""


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
        arguments = tuple(map(visit, node.arguments)) if isinstance(node, Apply) else ()
        structure = (_head(node), arguments)
        if structure not in by_structure:
            by_structure[structure] = len(steps)
            steps.append(FlatStep(node, arguments))
        by_identity[id(node)] = by_structure[structure]
        return by_identity[id(node)]

    visit(expr)
    return tuple(steps)


def _head(node: Expr) -> str:
    """A node without its arguments, as text; the sign of a zero constant counts."""
    if isinstance(node, Operand):
        return f"{node.name}:{node.kind}"
    if isinstance(node, Constant):
        return float(node.value).hex()
    assert isinstance(node, Apply)
    return node.function


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
