"""Scalar functions: one table with a row for each function of elements.

A row says what the function is (`reference`), what it takes, how code generators make it, what it
costs and where it may stand. Expressions, nests, the cost model, both code generators and the front
end read it. All arguments have one dtype; `where` (condition, x, y) and `cast` are not in the table
because their arguments differ in dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from importlib import import_module
from typing import Any, Literal, NamedTuple, cast

from ftuner.core.dtype import HALF_DTYPES, DType
from ftuner.core.extensions import note_extension
from ftuner.core.frozen import dataclass
from ftuner.errors import ConfigurationError


class Instructions(NamedTuple):
    """Vector instructions of the body that `codegen/llvm/ir/vector_math.py` writes for a function,
    in float32 and in float64, whose polynomials are longer. An instruction on twice as wide vectors
    counts twice. A test counts them again."""

    multiply_adds: tuple[int, int]
    others: tuple[int, int]
    divisions: int = 0
    splits: int = 0
    """Further instructions where the target has no fused multiply-add, besides the two that each
    multiply-add is: they compute the rounding error of a product."""


@dataclass(frozen=True)
class ScalarFunction:
    """One row of the table."""

    arity: int
    kinds: frozenset[str]
    """The kinds of dtype that it takes: float, int, uint, bool."""
    reference: Callable[..., Any] | str = field(repr=False)
    """NumPy arrays to a NumPy array: the meaning of the function. A name is that of a function of
    `core.references`, or of NumPy."""
    result: Literal["same", "bool"] = "same"
    """The dtype of the result: that of the arguments, or bool."""
    composition: str | None = None
    """The function on floats as an expression of other rows, of `where`, and of numbers, in Python
    syntax: `x` and `y` are the arguments, and assignments may come before the last expression.
    Without it, both code generators have an emitter under the name of the row."""
    cost: int | Instructions | Literal["division", "library"] = 1
    """Of floats: the number of vector instructions; those of a body in vector_math; a division or
    square root; or a call of the C library for each element. Not used where there is a composition,
    whose cost is the sum of its parts."""
    epilogue: bool = False
    """Whether the epilogue of a matrix product may hold it."""
    onnx: str | None = None
    """The operator of ONNX that is this function: of the same arguments, without attributes."""
    llvm: str | None = None
    """The module outside ftuner that has the emitter for LLVM, `name(builder, *arguments, fused)`,
    as the functions of `codegen/llvm/ir/vector_math.py` are."""
    triton: str | None = None
    """The module outside ftuner that has the emitter for Triton, `name(functions, dtype)`: the text
    of a body that returns the function of `x` (and `y`), where `functions.apply` applies others."""

    @property
    def meaning(self) -> Callable[..., Any]:
        """The function of `reference`. A process that only compiles never asks for it: to import
        NumPy would be half of the time that it takes to start."""
        if isinstance(self.reference, str):
            module = import_module("ftuner.core.references")
            return cast(Callable[..., Any], module.named(self.reference))
        return self.reference


NUMBERS = frozenset({"float", "int", "uint"})
FLOATS = frozenset({"float"})
INTEGERS = frozenset({"int", "uint"})
ALL = NUMBERS | {"bool"}
COMPARED = ALL | {"string"}
BOOLS = frozenset({"bool"})


def _unary(reference: str, **columns: Any) -> ScalarFunction:
    """A function of one float."""
    return ScalarFunction(1, FLOATS, reference, **columns)


def _arithmetic(reference: str, **columns: Any) -> ScalarFunction:
    """A function of two numbers."""
    return ScalarFunction(2, NUMBERS, reference, **columns)


def _comparison(kinds: frozenset[str], reference: str, onnx: str) -> ScalarFunction:
    return ScalarFunction(2, kinds, reference, "bool", onnx=onnx)


def _of_bools(arity: int, reference: str, onnx: str) -> ScalarFunction:
    return ScalarFunction(arity, BOOLS, reference, onnx=onnx)


def _body(
    multiply_adds: tuple[int, int], others: int, divisions: int = 0, splits: int = 0
) -> dict[str, Any]:
    """The columns of a function with a body in vector_math, which an epilogue may hold."""
    cost = Instructions(multiply_adds, (others, others), divisions, splits)
    return {"cost": cost, "epilogue": True}


# e^|x| / 2 as e^(|x| - c) K with K = e^c / 2. It overflows where the result does; c is chosen so
# that rounding changes K by less than 2^-28 of it in float32 and 2^-57 in float64.
_HALF_EXP = "a = absolute(x); half = exp(a - 989 / 1024) * 1.3134708429834483;"
# y is log(1 + w). The correction is the rounding error of 1 + w over that sum; it is NaN at -1 and
# infinity.
_LOG1P = (
    "u = 1 + w; lost = ((u - 1) - w) / u; log1p = log(u) - where(isnan(lost), 0, lost);"
    "y = where(absolute(w) < 2**-60, w, log1p);"
)


_TABLE: dict[str, ScalarFunction] = {
    "add": _arithmetic("add", epilogue=True, onnx="Add"),
    "subtract": _arithmetic("subtract", epilogue=True, onnx="Sub"),
    "multiply": _arithmetic("multiply", epilogue=True, onnx="Mul"),
    "divide": _arithmetic("truncated_quotient", cost="division", epilogue=True, onnx="Div"),
    "remainder": _arithmetic("remainder", cost="library"),
    "fmod": _arithmetic("fmod", cost="library"),
    "power": _arithmetic("power", cost="library"),
    "maximum": _arithmetic("maximum", cost=3, epilogue=True),
    "minimum": _arithmetic("minimum", cost=3, epilogue=True),
    "negative": ScalarFunction(1, NUMBERS, "negative", epilogue=True, onnx="Neg"),
    "absolute": ScalarFunction(1, NUMBERS, "absolute", epilogue=True, onnx="Abs"),
    "sign": ScalarFunction(1, NUMBERS, "sign", cost=4, onnx="Sign"),
    "exp": _unary("exp", onnx="Exp", **_body((9, 14), 16)),
    "expm1": _unary("expm1", **_body((10, 15), 14)),
    "log": _unary("log", onnx="Log", **_body((4, 8), 27, 1)),
    "log1p": _unary("log1p", composition=f"w = x; {_LOG1P} y", epilogue=True),
    "sqrt": _unary("sqrt", cost="division", epilogue=True, onnx="Sqrt"),
    "sin": _unary("sin", cost=Instructions((12, 17), (20, 22)), onnx="Sin"),
    "cos": _unary("cos", cost=Instructions((12, 17), (19, 21)), onnx="Cos"),
    "tan": _unary("tan", composition="sin(x) / cos(x)", onnx="Tan"),
    "atan": _unary("atan", cost=Instructions((5, 11), (15, 15), 1), onnx="Atan"),
    "asin": _unary("asin", composition="2 * atan(x / (1 + sqrt((1 - x) * (1 + x))))", onnx="Asin"),
    "acos": _unary("acos", composition="2 * atan(sqrt((1 - x) / (1 + x)))", onnx="Acos"),
    "sinh": _unary(
        "sinh",
        composition=_HALF_EXP
        + "t = expm1(a); sign(x) * where(a < 20, 0.5 * (t + t / (t + 1)), half)",
        onnx="Sinh",
    ),
    "cosh": _unary("cosh", composition=_HALF_EXP + "half + 0.25 / half", onnx="Cosh"),
    # Above 2^60 the roots are |x| and x, and the sum would overflow.
    "asinh": _unary(
        "asinh",
        composition="a = absolute(x); r = 1 / a; far = 2**60 < a;"
        "w = where(far, a, a + a / (r + sqrt(r * r + 1)));"
        + _LOG1P
        + f"sign(x) * where(far, y + {math.log(2)}, y)",
        onnx="Asinh",
    ),
    "acosh": _unary(
        "acosh",
        composition="t = x - 1; far = 2**60 < x;"
        "w = where(far, x, t + sqrt(t * maximum(t + 2, 1)));"
        + _LOG1P
        + f"where(far, y + {math.log(2)}, y)",
        onnx="Acosh",
    ),
    "atanh": _unary(
        "atanh",
        composition="a = absolute(x); w = 2 * a / (1 - a);" + _LOG1P + "sign(x) * (0.5 * y)",
        onnx="Atanh",
    ),
    "tanh": _unary("tanh", onnx="Tanh", **_body((10, 15), 12, 1)),
    "erf": _unary("erf", onnx="Erf", **_body((30, 53), 21, 1, 4)),
    "erfc": _unary("erfc", **_body((23, 41), 19, 1, 4)),
    "sigmoid": _unary("sigmoid", onnx="Sigmoid", **_body((9, 14), 15, 1)),
    "gelu": _unary("gelu", **_body((25, 43), 18, 1, 5)),
    "gelu_tanh": _unary("gelu_tanh", **_body((18, 23), 23, 1, 30)),
    "silu": _unary("silu", **_body((12, 17), 14, 1)),
    "softplus": _unary("softplus", onnx="Softplus", **_body((16, 27), 15, 1)),
    "mish": _unary("mish", onnx="Mish", **_body((14, 19), 20, 1)),
    "swish": ScalarFunction(2, FLOATS, "swish", **_body((12, 17), 24, 1, 9)),
    # The clipped sum is what is divided, so that the product does not overflow. x itself is limited
    # to where the sum is not negative, so that minus infinity gives a zero.
    "hard_swish": _unary(
        "hard_swish",
        composition="above = maximum(x, -3); above * (minimum(above + 3, 6) * (1 / 6))",
        epilogue=True,
        onnx="HardSwish",
    ),
    "round_float16": _unary("round_float16", cost=4, epilogue=True),
    "round_bfloat16": _unary("round_bfloat16", cost=11, epilogue=True),
    "floor": _unary("floor"),
    "ceil": _unary("ceil"),
    "rint": _unary("rint", epilogue=True),
    "isnan": _unary("isnan", result="bool", onnx="IsNaN"),
    "isinf": _unary("isinf", result="bool", cost=2),
    "equal": _comparison(COMPARED, "equal", "Equal"),
    "less": _comparison(NUMBERS, "less", "Less"),
    "less_equal": _comparison(NUMBERS, "less_equal", "LessOrEqual"),
    "logical_and": _of_bools(2, "logical_and", "And"),
    "logical_or": _of_bools(2, "logical_or", "Or"),
    "logical_xor": _of_bools(2, "logical_xor", "Xor"),
    "logical_not": _of_bools(1, "logical_not", "Not"),
    "bitwise_and": ScalarFunction(2, INTEGERS, "bitwise_and", onnx="BitwiseAnd"),
    "bitwise_or": ScalarFunction(2, INTEGERS, "bitwise_or", onnx="BitwiseOr"),
    "bitwise_xor": ScalarFunction(2, INTEGERS, "bitwise_xor", onnx="BitwiseXor"),
    "bitwise_not": ScalarFunction(1, INTEGERS, "bitwise_not", onnx="BitwiseNot"),
    # By the number of bits or more, or by less than none, all bits are shifted out.
    "shift_left": ScalarFunction(2, INTEGERS, "left_shift", cost=3),
    "shift_right": ScalarFunction(2, INTEGERS, "right_shift", cost=3),
}
ROUNDINGS = {f"round_{name}": dtype for name, dtype in HALF_DTYPES.items()}
"""The functions that round to half precision."""
_REGISTERED: dict[str, ScalarFunction] = {}
"""Rows that are from outside ftuner."""
SCALAR_FUNCTIONS: Mapping[str, ScalarFunction] = _TABLE
"""`round_float16` and `round_bfloat16` give the nearest number of half precision, ties to even;
float64 is rounded to float32 first. The others, of floats, are within 4 ulp of the exact value,
however small it is, where a code generator computes them; the modules of `codegen` give the largest
errors seen. `swish` is x sigmoid(y x), and holds this for a |y| between `MIN_SLOPE` and
`MAX_SLOPE`."""
MIN_SLOPE, MAX_SLOPE = 2.0**-10, 2.0**10


def register(name: str, row: ScalarFunction) -> None:
    """Add a function of floats from outside ftuner: a composition, or one with both emitters.
    `graph.operators.register_function` also makes an operator of it.

    Raises:
        ConfigurationError: another function has the name, or the row cannot be compiled.
    """
    known = _TABLE.get(name)
    if known is not None:
        if known != row:
            raise ConfigurationError(f"another scalar function is called {name!r}; choose a name")
        return
    if not name.isidentifier():
        raise ConfigurationError(f"scalar function {name!r}: expected an identifier as its name")
    if row.arity not in (1, 2) or row.kinds != FLOATS or row.result != "same":
        raise ConfigurationError(f"scalar function {name!r}: expected one of one or two floats")
    if not callable(row.reference):
        raise ConfigurationError(f"scalar function {name!r}: expected a function as its reference")
    made = (row.composition is not None, row.llvm is not None, row.triton is not None)
    if made not in ((True, False, False), (False, True, True)):
        raise ConfigurationError(
            f"scalar function {name!r}: expected a composition, or emitters in `llvm` and `triton`"
        )
    _TABLE[name] = _REGISTERED[name] = row
    note_extension(name)


def registered_in(value: object) -> tuple[tuple[str, ScalarFunction], ...]:
    """All functions from outside ftuner if the text of a value names one of them, else none: they
    may be composed of each other."""
    text = repr(value) if _REGISTERED else ""
    return tuple(_REGISTERED.items()) if any(name in text for name in _REGISTERED) else ()


def neutral(kind: str, dtype: DType) -> float:
    """What a reduction (`sum`, `product`, `maximum`, `minimum`) of nothing gives."""
    if kind in ("sum", "product"):
        return 0 if kind == "sum" else 1
    if dtype.kind == "float":
        return -math.inf if kind == "maximum" else math.inf
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return low if kind == "maximum" else low + (1 << dtype.bits) - 1
