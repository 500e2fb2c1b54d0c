"""Operators on elements: arithmetic, functions, comparisons, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ftuner.core.dtype import BOOL, INT64, DType
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.frontends.torch.promotion import (
    Number,
    Operand,
    counting,
    floating,
    promoted,
    result_dtype,
    truth,
    valued,
)
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply, ceil, equal, floor, isinf, isnan, log, rint, sqrt, where
from ftuner.graph.checks import malformed, unsupported
from ftuner.graph.ir import Value

# Functions of one operand.

for _name in (
    "exp", "expm1", "log", "sqrt", "tanh", "sigmoid", "sin", "cos", "tan", "erf", "erfc", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log1p",
):  # fmt: skip
    assert _name in SCALAR_FUNCTIONS
    aten(_name)(lambda x, op=_name: apply(op, floating(x)))
aten("log2")(lambda x: log(floating(x)) * (1 / math.log(2)))
aten("log10")(lambda x: log(floating(x)) * (1 / math.log(10)))
aten("rsqrt")(lambda x: 1 / sqrt(floating(x)))
aten("reciprocal")(lambda x: 1 / floating(x))
aten("fmod.Tensor", "fmod.Scalar")(lambda x, y: apply("fmod", *promoted(x, y)))
aten("isfinite")(lambda x: ~(isnan(x) | isinf(x)) if x.dtype.kind == "float" else ~_nowhere(x))
aten("exp2")(lambda x: valued(2, floating(x).dtype) ** floating(x))
aten("neg", "_neg_view")(lambda x: -x)
aten("abs")(lambda x: x if x.dtype == BOOL else abs(x))
aten("ceil")(lambda x: ceil(x) if x.dtype.kind == "float" else x)
aten("floor")(lambda x: floor(x) if x.dtype.kind == "float" else x)
aten("round")(lambda x: rint(x) if x.dtype.kind == "float" else x)
aten("isnan")(lambda x: isnan(x) if x.dtype.kind == "float" else _nowhere(x))
aten("isinf")(lambda x: isinf(x) if x.dtype.kind == "float" else _nowhere(x))
aten("isposinf")(lambda x: isinf(x) & (x > 0) if x.dtype.kind == "float" else _nowhere(x))
aten("isneginf")(lambda x: isinf(x) & (x < 0) if x.dtype.kind == "float" else _nowhere(x))
aten("logical_not")(lambda x: ~truth(x))
aten("bitwise_not")(lambda x: ~x)


def _nowhere(x: Value) -> Value:
    return valued(False, BOOL).broadcast(x.shape)


@aten("erfinv")
def _inverse_erf(y: Value) -> Value:
    """Quotients of polynomials near 0 and near 1, with four digits, and two steps of Newton's
    method, as PyTorch has it."""
    y = floating(y)
    square, tail = y * y, sqrt(-log((1 - abs(y)) * 0.5))
    near = y * _polynomial(_NEAR_0, square) / _polynomial(_BELOW_0, square)
    far = _polynomial(_NEAR_1, tail) / _polynomial(_BELOW_1, tail)
    x = where(abs(y) <= 0.7, near, where(y < 0, -far, far))
    for _ in range(2):
        x = x - (apply("erf", x) - y) / (apply("exp", -x * x) * (2 / math.sqrt(math.pi)))
    return where(equal(abs(y), 1), y * math.inf, x)


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """Returns a polynomial of x, whose coefficients begin with that of the highest power."""
    first, *rest = coefficients
    found = x * first + rest[0]
    for c in rest[1:]:
        found = found * x + c
    return found


_NEAR_0 = -0.140543331, 0.914624893, -1.645349621, 0.886226899
_BELOW_0 = 0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0
_NEAR_1 = 1.641345311, 3.429567803, -1.624906493, -1.970840454
_BELOW_1 = 1.637067800, 3.543889200, 1.0


@aten("trunc")
def truncated(x: Value) -> Value:
    """x rounded towards zero."""
    return where(x < 0, ceil(x), floor(x)) if x.dtype.kind == "float" else x


aten("frac")(lambda x: x - truncated(x))


@aten("round.decimals")
def _rounded(x: Value, decimals: int) -> Value:
    if x.dtype.kind != "float":
        return x
    factor = 10.0 ** abs(decimals)
    return rint(x * factor) / factor if decimals >= 0 else rint(x / factor) * factor


@aten("sign", "sgn")
def _sign(x: Value) -> Value:
    """The sign; zero for NaN."""
    if x.dtype == BOOL:
        return x
    above = where(x > 0, x.like(1), 0)
    return above if x.dtype.kind == "uint" else where(x < 0, x.like(-1), above)


@aten("signbit")
def _sign_bit(x: Value) -> Value:
    if x.dtype.kind != "float":
        return counting(x) < 0
    return (x < 0) | (equal(x, 0) & (1 / x < 0))


@aten("nan_to_num")
def _numbers(
    x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if x.dtype.kind != "float":
        return x
    largest = _LARGEST[x.dtype.name]
    x = where(isnan(x), nan or 0.0, x)
    x = where(isinf(x) & (x > 0), largest if posinf is None else posinf, x)
    return where(isinf(x) & (x < 0), -largest if neginf is None else neginf, x)


_LARGEST = {
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}  # fmt: skip


@aten("logit")
def _logit(x: Value, eps: float | None = None) -> Value:
    x = floating(x)
    if eps is not None:
        x = x.at_least(eps).at_most(1 - eps)
    return log(x / (1 - x))


# Arithmetic of two operands.


@aten("add.Tensor", "add.Scalar", "prims::add")
def add(x: Operand, y: Operand, alpha: Number = 1) -> Value:
    """x + alpha y; of booleans it is "or"."""
    x, y = promoted(x, y)
    if x.dtype == BOOL:
        return x | (y if alpha else _nowhere(y))
    return x + (y if alpha == 1 else y * valued(alpha, y.dtype))


@aten("sub.Tensor", "sub.Scalar", "prims::sub")
def subtract(x: Operand, y: Operand, alpha: Number = 1) -> Value:
    """x - alpha y."""
    x, y = promoted(x, y)
    return x - (y if alpha == 1 else y * valued(alpha, y.dtype))


aten("rsub.Scalar", "rsub.Tensor")(lambda x, y, alpha=1: subtract(y, x, alpha))
aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")(
    lambda x, y: Value.__mod__(*promoted(x, y))
)


@aten("mul.Tensor", "mul.Scalar", "prims::mul")
def multiply(x: Operand, y: Operand) -> Value:
    """x y; of booleans it is "and"."""
    x, y = promoted(x, y)
    return x & y if x.dtype == BOOL else x * y


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar")
@aten("div.Tensor_mode", "div.Scalar_mode")
@aten("floor_divide", "floor_divide.Scalar", rounding_mode="floor")
def _divide(x: Operand, y: Operand, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        x, y = promoted(x, y, floating=True)
        return x / y
    x, y = map(counting, promoted(x, y))
    return truncated(x / y) if rounding_mode == "trunc" else floor_quotient(x, y)


def floor_quotient(x: Value, y: Value) -> Value:
    """x / y rounded down, as Python has it: of floats the quotient of what is left without the
    remainder, which is near an integer."""
    if x.dtype.kind != "float":
        # The difference may be less than the least integer of 32 bits.
        wide, by = x.cast(INT64), y.cast(INT64)
        return ((wide - wide % by) / by).cast(x.dtype)
    rest = apply("fmod", x, y)
    quotient = (x - rest) / y
    quotient = where(
        ~equal(rest, 0) & apply("logical_xor", rest < 0, y < 0), quotient - 1, quotient
    )
    below = floor(quotient)
    return where(equal(y, 0), x / y, where(quotient - below > 0.5, below + 1, below))


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(x: Operand, exponent: Operand) -> Value:
    """x to a power; common powers are products and roots, as in torch."""
    dtype = result_dtype(x, exponent)
    if dtype == BOOL:
        raise unsupported("a power of booleans")
    base = valued(x, dtype)
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        simple = _POWERS.get(exponent)
        if simple is not None and (dtype.kind == "float" or exponent >= 0):
            return simple(base)
        if dtype.kind != "float" and exponent < 0:
            raise malformed("an integer to a negative power")
    return base ** valued(exponent, dtype)


aten("square")(lambda x: power(x, 2))
_POWERS: dict[float, Callable[[Value], Value]] = {
    0: lambda x: x.like(1).broadcast(x.shape), 1: lambda x: x, 2: lambda x: x * x,
    3: lambda x: x * x * x, 0.5: sqrt, -0.5: lambda x: 1 / sqrt(x), -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}  # fmt: skip


@aten("maximum", "max.other", op="maximum")
@aten("minimum", "min.other", op="minimum")
def _extreme(x: Value, y: Value, *, op: str) -> Value:
    x, y = promoted(x, y)
    return apply(op, counting(x), counting(y)).cast(x.dtype)


@aten("fmax", op="maximum")
@aten("fmin", op="minimum")
def _known_extreme(x: Value, y: Value, *, op: str) -> Value:
    """NaN counts only where both are."""
    x, y = promoted(x, y)
    found = _extreme(x, y, op=op)
    if x.dtype.kind != "float":
        return found
    return where(isnan(x), y, where(isnan(y), x, found))


@aten("clamp", "clamp.Tensor", "clip", "clip.Tensor")
@aten("clamp_min", "clamp_min.Tensor", "clamp_max", "clamp_max.Tensor")
def clamp(x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    """x between bounds."""
    given = [b for b in (min, max) if b is not None]
    dtype = result_dtype(x, *given)
    x = counting(x.cast(dtype))
    low, high = (None if b is None else counting(valued(b, dtype)) for b in (min, max))
    x = x if low is None else x.at_least(low)
    return (x if high is None else x.at_most(high)).cast(dtype)


@aten("atan2")
def _atan2(y: Value, x: Value) -> Value:
    y, x = promoted(y, x, floating=True)
    both = isinf(x) & isinf(y)
    ratio = where(both, _sign(y) * _sign(x), y / where(equal(x, 0), 1, x))
    half = where(_sign_bit(y), x.like(-math.pi), math.pi)
    found = apply("atan", ratio) + where(_sign_bit(x), half, 0)
    found = where(equal(x, 0) & ~equal(y, 0), half * 0.5, found)
    return where(isnan(x) | isnan(y), math.nan, found)


@aten("angle")
def _angle(x: Value) -> Value:
    """The angle of a real number."""
    x = floating(x)
    return where(isnan(x), x, where(x < 0, math.pi, x.like(0)))


@aten("hypot")
def _hypotenuse(x: Value, y: Value) -> Value:
    x, y = map(abs, promoted(x, y))
    high, low = x.at_least(y), x.at_most(y)
    ratio = low / where(equal(high, 0) | isinf(high), 1, high)
    return where(isinf(x) | isinf(y), math.inf, high * sqrt(ratio * ratio + 1))


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
def _x_log_y(x: Operand, y: Operand) -> Value:
    x, y = promoted(x, y, floating=True)
    return where(isnan(y), math.nan, where(equal(x, 0), 0, x * log(y)))


@aten("logaddexp")
def _log_add_exp(x: Value, y: Value) -> Value:
    x, y = promoted(x, y, floating=True)
    high = x.at_least(y)
    distance = where(isinf(high) & equal(x, y), 0, -abs(x - y))
    return high + apply("softplus", distance)


@aten("copysign.Tensor", "copysign.Scalar")
def _copy_sign(x: Operand, y: Operand) -> Value:
    x, y = promoted(x, y, floating=True)
    return where(_sign_bit(y), -abs(x), abs(x))


@aten("heaviside")
def _heaviside(x: Value, values: Value) -> Value:
    x, values = promoted(x, values)
    above = (counting(x) > 0).cast(x.dtype)
    return where(
        equal(x, 0), values, where(isnan(x), 0, above) if x.dtype.kind == "float" else above
    )


@aten("lerp.Scalar", "lerp.Tensor")
def _between(x: Value, end: Value, weight: Operand) -> Value:
    weight = valued(weight, x.dtype)
    distance = end - x
    near = abs(weight) < 0.5
    return where(near, x + weight * distance, end - distance * (1 - weight))


@aten("addcmul", op="multiply")
@aten("addcdiv", op="divide")
def _add_to(x: Value, y: Value, z: Value, value: Number = 1, *, op: str) -> Value:
    x, y, z = promoted(x, y, z)
    found = apply(op, y, z)
    return x + (found if value == 1 else found * valued(value, x.dtype))


# Comparisons and logic.


for _op, _compare in {
    "eq": equal, "ne": lambda x, y: ~equal(x, y), "lt": Value.__lt__, "gt": Value.__gt__,
    "le": Value.__le__, "ge": Value.__ge__,
}.items():  # fmt: skip
    aten(f"{_op}.Tensor", f"{_op}.Scalar")(
        lambda x, y, compare=_compare: compare(*map(counting, promoted(x, y)))
    )


def _bitwise(x: Operand, y: Operand, *, op: str) -> Value:
    x, y = promoted(x, y)
    return apply(f"{'logical' if x.dtype == BOOL else 'bitwise'}_{op}", x, y)


for _op in ("and", "or", "xor"):
    aten(f"logical_{_op}")(lambda x, y, op=f"logical_{_op}": apply(op, *(truth(v) for v in (x, y))))
    for _form in ("bitwise_{}.Tensor", "bitwise_{}.Scalar", "bitwise_{}.Scalar_Tensor",
                  "__{}__.Tensor", "__{}__.Scalar"):  # fmt: skip
        aten(_form.format(_op), op=_op)(_bitwise)
for _op in ("left", "right"):
    for _form in (f"bitwise_{_op}_shift.Tensor", f"bitwise_{_op}_shift.Tensor_Scalar",
                  f"__{_op[0]}shift__.Tensor", f"__{_op[0]}shift__.Scalar"):  # fmt: skip
        aten(_form)(lambda x, y, op=f"shift_{_op}": apply(op, *promoted(x, y)))
aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")(
    lambda condition, x, y: where(truth(condition), *promoted(x, y))
)
aten("masked_fill.Scalar", "masked_fill.Tensor")(
    lambda x, mask, value: where(truth(mask), valued(value, x.dtype), x)
)


# Conversions.

aten("_to_copy", "to.dtype", "to.dtype_layout", "to.device", "prims::convert_element_type")(
    lambda x, dtype=None: x if dtype is None else x.cast_explicitly(dtype)
)
aten("type_as", "to.other")(lambda x, other: x.cast_explicitly(other.dtype))


@aten("view.dtype")
def _bits(x: Value, dtype: DType) -> Value:
    if dtype.itemsize != x.dtype.itemsize:
        raise unsupported(f"{x.type} as elements of {dtype}, which have another size")
    return x if dtype == x.dtype else apply("bit_cast", x, of=x.dtype, to=dtype)
