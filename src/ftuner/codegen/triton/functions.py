"""Random numbers as Triton text: `core.random_numbers` has the definitions.

float16 and bfloat16 are float32 in registers; a cast to them rounds. Bool is a byte in memory.
Integers wrap around. Division by zero gives zero. Elementary functions are those of `vector_math`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from ftuner.codegen.coefficients import FORMATS
from ftuner.codegen.triton import vector_math as elementary
from ftuner.codegen.triton.source import LANGUAGE_TYPES
from ftuner.core.dtype import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    UINT8,
    UINT32,
    UINT64,
    DType,
    converted_through,
)
from ftuner.core.expr import Apply, Constant, composed_steps
from ftuner.core.expr import Operand as ExprOperand
from ftuner.core.functions import SCALAR_FUNCTIONS, neutral
from ftuner.core.random_constants import ANGLE_BITS, INCREMENTS, MULTIPLIERS, RADIUS_BITS, ROUNDS
from ftuner.core.scaled_product import SCALED_FORMATS

PHILOX = f"""\
x, y = tl.broadcast(x, y)
a, b, k, m = x & 0xFFFFFFFF, x >> 32, y & 0xFFFFFFFF, y >> 32
c, d = x * 0, x * 0
for _ in tl.static_range({ROUNDS}):
    first, second = a * {MULTIPLIERS[0]}, c * {MULTIPLIERS[1]}
    a, b = (second >> 32) ^ b ^ k, second & 0xFFFFFFFF
    c, d = (first >> 32) ^ d ^ m, first & 0xFFFFFFFF
    k, m = (k + {INCREMENTS[0]}) & 0xFFFFFFFF, (m + {INCREMENTS[1]}) & 0xFFFFFFFF
return a | (b << 32)"""
"""The body of a function of counters `x` and keys `y`."""


def normal(dtype: DType) -> str:
    """Returns the body of a function of two words `x` and `y`."""
    integer = "tl.int32" if dtype == FLOAT32 else "tl.int64"
    width, turn = RADIUS_BITS[dtype.name], 2.0 ** (1 - ANGLE_BITS[dtype.name])
    log, sine, root = (
        elementary.call(name, argument, dtype=dtype.name)
        for name, argument in (("log", "u"), ("sin", "angle"), ("sqrt", "square"))
    )
    return f"""\
u = ((x >> {64 - width}).to({integer}).to(tl.{dtype}) + 0.5) * {2.0**-width!r}
v = y.to({integer}).to(tl.{dtype}) * {turn!r}
angle = (0.5 - tl.abs(v)) * {math.pi!r}
square = {log} * -2.0
return {root} * {sine}"""


class ScaledFunctions(NamedTuple):
    """The names of the functions of a scaled product, on blocks or scalars."""

    factor: str
    """An element as mantissa and exponent, the factors of `product`."""
    product: str
    """The mantissa and exponent of the product of two mantissas and exponents."""
    result: str
    """The number of a mantissa and an exponent."""


def scaled_bodies(dtype: DType) -> tuple[tuple[str, str, str], ...]:
    """Returns the name, arguments and body of each function."""
    f = SCALED_FORMATS[dtype]
    integer, float_ = f"tl.int{f.bits}", f"tl.{dtype}"
    ones = 2 * f.bias + 1
    clamped = "" if f.limit is None else (
        f"exponent = tl.minimum(tl.maximum(exponent, {-f.limit}), {f.limit})\n"
    )  # fmt: skip
    factor = f"""small = tl.abs(x) < {f.least!r}
shift = tl.where(small, {-f.lift_bits}, 0).to({integer})
return tl.where(small, x * {f.lift!r}, x), shift"""
    product = f"""mantissa = x * y
bits = mantissa.to({integer}, bitcast=True)
field = (bits >> {f.fraction_bits}) & {ones}
normal = ((bits & {~f.exponent_mask}) | {f.half}).to({float_}, bitcast=True)
mantissa = tl.where((field == 0) | (field == {ones}), mantissa, normal)
exponent = x_exponent + y_exponent + (field - {f.bias - 1})
{clamped}return mantissa, exponent"""
    # In two steps, because 2^exponent may be subnormal or infinite. The first is exact, so that a
    # subnormal result is rounded once.
    result = f"""exponent = tl.minimum(tl.maximum(exponent, {-f.end}), {f.end})
half = exponent >> 1
x = x * ((half + {f.bias}) << {f.fraction_bits}).to({float_}, bitcast=True)
return x * ((exponent - half + {f.bias}) << {f.fraction_bits}).to({float_}, bitcast=True)"""
    return (
        ("scaled_factor", "x", factor),
        ("scaled_product", "x, x_exponent, y, y_exponent", product),
        ("scaled_result", "x, exponent", result),
    )


def register(dtype: DType) -> DType:
    """Returns the dtype of an element in registers."""
    return FLOAT32 if dtype.kind == "float" and dtype.itemsize < 4 else dtype


def gathered(dtype: DType) -> DType:
    """Returns the dtype of elements while they are reduced. Integers have at least 32 bits, which
    gives the same result modulo their own range."""
    if dtype.kind in ("int", "uint") and dtype.itemsize < 4:
        return INT32 if dtype.kind == "int" else UINT32
    return register(dtype)


def type_text(dtype: DType) -> str:
    """Returns Triton's name of the dtype in registers."""
    return LANGUAGE_TYPES[register(dtype).name]


def literal(value: float, dtype: DType) -> str:
    """Returns a literal for use with values of a dtype."""
    if dtype.kind != "float":
        return str(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def number(value: float, dtype: DType) -> str:
    """Returns the text of a scalar of a dtype."""
    return f"tl.full((), {literal(value, dtype)}, {type_text(dtype)})"


def scalar_bool(text: str) -> str:
    """Returns a scalar comparison that may be combined with blocks. Triton's interpreter would
    broadcast the comparison itself to the type of what it compared; compiled code is the same."""
    return f"tl.where({text}, tl.full((), 1, tl.int1), tl.full((), 0, tl.int1))"


def from_memory(value: str, dtype: DType) -> str:
    """Returns the register value of a loaded value."""
    if dtype == BOOL:
        return f"{value} != 0"
    return value if register(dtype) == dtype else f"{value}.to({type_text(dtype)})"


def to_memory(value: str, dtype: DType) -> str:
    """Returns the value to store of a register value."""
    if dtype == BOOL:
        return f"{value}.to(tl.uint8)"
    return value if register(dtype) == dtype else f"{value}.to({LANGUAGE_TYPES[dtype.name]})"


def bit_cast(x: str, source: DType, target: DType) -> str:
    """Returns the element of `target` that memory holds in the bits of an element of `source`."""
    held = LANGUAGE_TYPES[(UINT8 if target == BOOL else target).name]
    return from_memory(f"{to_memory(x, source)}.to({held}, bitcast=True)", target)


class Functions:
    """Writes calls of scalar functions, and collects the functions that they need."""

    def __init__(self) -> None:
        self._elementary: dict[tuple[str, str], None] = {}
        self._helpers: dict[str, str] = {}

    def prelude(self) -> str:
        """Returns the text of the functions that were called."""
        dtypes = dict.fromkeys(dtype for _, dtype in self._elementary)
        texts = [
            elementary.prelude([n for n, d in self._elementary if d == dtype], dtype)
            for dtype in dtypes
        ]
        texts += [f"\n\n@triton.jit\n{text}" for text in self._helpers.values()]
        return "".join(texts)

    def apply(self, name: str, arguments: Sequence[str], dtype: DType) -> str:
        """Returns a call of the scalar function `name` of `core.functions`, or of `where`, with
        values of `dtype`."""
        simple = _SIMPLE.get(name)
        if simple is not None:
            return simple.format(*arguments)
        if dtype.kind == "float":
            return self._float(name, arguments, register(dtype).name)
        return self._integer(name, arguments, dtype)

    def cast(self, x: str, source: DType, target: DType) -> str:
        """Returns a conversion. Floats are rounded to float16 and bfloat16; integers are not, so
        that the number of elements that a norm divides by stays exact in the register."""
        if target == BOOL:
            return f"{x} != 0"
        if source.kind == "float" and target.kind in ("int", "uint"):
            return self._whole(x, register(source), target)
        text = f"{x}.to({type_text(target)})"
        if source.kind == "float" and register(target) != target:
            text += f".to({LANGUAGE_TYPES[target.name]}).to({type_text(target)})"
        return text

    def philox(self, counter: str, key: str) -> str:
        """Returns 64 random bits for each counter and key."""
        return f"{self._helper('philox', 'x, y', PHILOX)}({counter}, {key})"

    def normal(self, bits: str, others: str, dtype: DType) -> str:
        """Returns normal numbers of two words of random bits each."""
        helper = self._helper(f"normal_{dtype}", "x, y", normal(dtype))
        return f"{helper}({bits}, {others})"

    def combine(self, kind: str, x: str, y: str, dtype: DType) -> str:
        """Returns one step of a reduction."""
        name = {"sum": "add", "product": "multiply"}.get(kind, kind)
        return self.apply(name, (x, y), dtype)

    def across(self, kind: str, x: str, axis: str, dtype: DType) -> str:
        """Returns a block reduced along an axis; `axis`: the arguments of `tl.sum` for it."""
        if kind == "sum":
            return f"tl.sum({x}, {axis})"
        if kind == "product":
            product = self._helper("product_of", "x, y", "return x * y")
            return f"tl.reduce({x}, combine_fn={product}, {axis})"
        word = "max" if kind == "maximum" else "min"
        if dtype.kind != "float":
            return f"tl.{word}({x}, {axis})"
        # Triton's reductions ignore NaN.
        nothing = number(neutral(kind, dtype), dtype)
        found = f"tl.{word}(tl.where({x} == {x}, {x}, {nothing}), {axis})"
        nan = f"tl.max(({x} != {x}).to(tl.int32), {axis})"
        return f"tl.where({nan} != 0, {number(math.nan, dtype)}, {found})"

    def scaled(self, dtype: DType) -> ScaledFunctions:
        """Returns the functions of a scaled product of a dtype."""
        return ScaledFunctions(*(
            self._helper(f"{name}_{dtype}", arguments, body)
            for name, arguments, body in scaled_bodies(dtype)
        ))  # fmt: skip

    def _float(self, name: str, arguments: Sequence[str], dtype: str) -> str:
        row = SCALAR_FUNCTIONS[name]
        if row.composition is not None:
            return self._composed(name, arguments, dtype)
        if row.triton is not None:
            body = getattr(import_module(row.triton), name)(self, FLOATS[dtype])
            helper = self._helper(f"{name}_{dtype}", ", ".join("xy"[: row.arity]), body)
            return f"{helper}({', '.join(arguments)})"
        if name in ("remainder", "fmod"):
            helper = self._helper(f"fmod_{dtype}", "x, y", _float_fmod(dtype))
            if name == "remainder":
                body = _WITH_SIGN_OF_Y.format(rest=f"{helper}(x, y)")
                helper = self._helper(f"remainder_{dtype}", "x, y", body)
            return f"{helper}({', '.join(arguments)})"
        if name == "round_bfloat16":
            return f"{self._helper(name, 'x', _ROUND_BFLOAT16)}({arguments[0]})"
        if name == "sign":
            return "tl.where({0} > 0.0, 1.0, tl.where({0} < 0.0, -1.0, {0}))".format(*arguments)
        self._elementary[name, dtype] = None
        return elementary.call(name, *arguments, dtype=dtype)

    def _composed(self, name: str, arguments: Sequence[str], dtype: str) -> str:
        """Returns a call of a composed function: a helper with a line for each step."""
        names: list[str] = []
        lines: list[str] = []
        for step in composed_steps(name):
            node = step.node
            if isinstance(node, ExprOperand):
                names.append(node.name)
            elif isinstance(node, Constant):
                # A literal in place: a name would hold a float32.
                names.append(f"({node.value!r})")
            else:
                assert isinstance(node, Apply)
                given = [names[a] for a in step.arguments]
                text = self.apply(node.function, given, FLOATS[dtype])
                names.append(f"t{len(lines)}")
                lines.append(f"{names[-1]} = {text}")
        lines.append(f"return {names[-1]}")
        helper = self._helper(f"{name}_{dtype}", ", ".join("xy"[: len(arguments)]), *lines)
        return f"{helper}({', '.join(arguments)})"

    def _integer(self, name: str, arguments: Sequence[str], dtype: DType) -> str:
        x = arguments[0]
        signed = dtype.kind == "int"
        type_ = type_text(dtype)
        if name in ("maximum", "minimum"):
            return f"tl.{name}({', '.join(arguments)})"
        if name == "absolute":
            return f"tl.abs({x})" if signed else x
        if name == "negative":
            return f"0 - {x}"
        if name == "sign":
            positive = f"({x} > 0).to({type_})"
            return f"{positive} - ({x} < 0).to({type_})" if signed else positive
        if name in _SHIFTS:
            body = _SHIFTS[name].format(bits=dtype.bits, last=dtype.bits - 1)
        elif name == "power":
            body = _SIGNED_POWER if signed else _UNSIGNED_POWER
            body = body.format(bits=dtype.bits - signed)
        else:
            body = (_SIGNED if signed else _UNSIGNED)[name]
        return f"{self._helper(f'{name}_{dtype}', 'x, y', body)}({', '.join(arguments)})"

    def _whole(self, x: str, source: DType, target: DType) -> str:
        """Returns the conversion to integers that `converted_through` describes."""
        through = converted_through(target)
        body = _WHOLE.format(limit=2.0 ** (through.bits - 1), through=type_text(through))
        if target == UINT64:
            body = _ABOVE.format(body=body, limit=2.0**63, least=1 << 63)
        body = f"{body}\nreturn whole.to({type_text(target)})"
        return f"{self._helper(f'{target}_of_{source}', 'x', body)}({x})"

    def _helper(self, name: str, arguments: str, *lines: str) -> str:
        if name not in self._helpers:
            body = "\n    ".join(line for text in lines for line in text.splitlines())
            self._helpers[name] = f"def {name}({arguments}):\n    {body}\n"
        return name


FLOATS = {"float32": FLOAT32, "float64": FLOAT64}
_SIMPLE: Mapping[str, str] = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "equal": "{0} == {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_xor": "{0} ^ {1}",
    "logical_not": "{0} == 0",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "bitwise_not": "~{0}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "round_float16": "({0}).to(tl.float32).to(tl.float16).to(({0}).dtype)",
    "where": "tl.where({0}, {1}, {2})",
}
"""Functions with the same text for every dtype."""

# Triton's interpreter does not round to bfloat16.
_ROUND_BFLOAT16 = """single = x.to(tl.float32)
bits = single.to(tl.uint32, bitcast=True)
bits = (bits + 32767 + ((bits >> 16) & 1)) & 4294901760
return tl.where(x == x, bits.to(tl.float32, bitcast=True), single).to(x.dtype)"""
_PLACES = """x, y = tl.broadcast(x, y)
inside = (y >= 0) & (y < {bits})
places = tl.where(inside, y, {last}).to(x.dtype)
"""
_SHIFTS: Mapping[str, str] = {
    "shift_left": _PLACES + "return tl.where(inside, x << places, 0).to(x.dtype)",
    "shift_right": _PLACES + "return tl.where(inside | (x < 0), x >> places, 0).to(x.dtype)",
}
_WHOLE = "whole = tl.where(tl.abs(x) < {limit}, x, -{limit}).to({through})"
_ABOVE = """above = x >= {limit}
x = tl.where(above, x - {limit}, x)
{body}
whole = tl.where(above, whole.to(tl.uint64) ^ {least}, whole.to(tl.uint64))"""

_WITH_SIGN_OF_Y = """rest = {rest}
apart = (rest < 0) ^ (y < 0)
return tl.where(apart & (rest != 0), rest + y, rest)"""

# The least integer over -1 overflows: division by -1 is a negation.
_SIGNED_DIVISOR = "safe = tl.where((y == 0) | (y == -1), 1, y)\n"
_UNSIGNED_DIVISOR = "safe = tl.where(y == 0, 1, y)\n"
_REST = "tl.where(y == 0, 0, x % safe)"
_SIGNED: Mapping[str, str] = {
    "divide": _SIGNED_DIVISOR + "return tl.where(y == 0, 0, tl.where(y == -1, 0 - x, x // safe))",
    "fmod": _SIGNED_DIVISOR + f"return {_REST}",
    "remainder": _SIGNED_DIVISOR + _WITH_SIGN_OF_Y.format(rest=_REST),
}
_UNSIGNED: Mapping[str, str] = {
    "divide": _UNSIGNED_DIVISOR + "return tl.where(y == 0, 0, x // safe)",
    "fmod": _UNSIGNED_DIVISOR + f"return {_REST}",
    "remainder": _UNSIGNED_DIVISOR + f"return {_REST}",
}
_SQUARING = """result = square * 0 + 1
for _ in range({bits}):
    result = tl.where((left & 1) != 0, result * square, result)
    square = square * square
    left = left >> 1
"""
"""Powers by repeated squaring."""
_UNSIGNED_POWER = f"square, left = tl.broadcast(x, y)\n{_SQUARING}return result"
# Powers with a negative exponent are fractions, rounded towards zero, except those of 1 and -1.
_SIGNED_POWER = f"""square, left = tl.broadcast(x, y)
fraction = (left < 0) & (square != 1) & (square != -1)
left = tl.where(left < 0, left & 1, left)
{_SQUARING}return tl.where(fraction, 0, result)"""


def _float_fmod(dtype: str) -> str:
    """Returns the text of |x| modulo |y| with the sign of x. Each round subtracts a multiple of
    y 2^k, with k such that the quotient is an exact integer, so that the remainder is exact."""
    format_ = FORMATS[dtype]
    shift, bits = format_.fraction_bits, format_.bits
    lift = shift + 1
    # Exponents between the largest number and the smallest subnormal. The quotient of two
    # subnormals fits one round.
    gap = 2 * format_.bias + shift
    gain = shift - 1
    return f"""\
a, b = tl.broadcast(tl.abs(x), tl.abs(y))
subnormal = b < {2.0 ** (1 - format_.bias)!r}
exponent = tl.where(subnormal, b * {2.0**lift!r}, b).to(tl.int{bits}, bitcast=True) >> {shift}
exponent = tl.where(subnormal, exponent - {lift}, exponent)
left = a
for _ in range({-(-gap // gain)}):
    k = (left.to(tl.int{bits}, bitcast=True) >> {shift}) - exponent - {gain}
    k = tl.maximum(k, 0)
    step = b
    for _ in range(3):
        part = tl.minimum(k, {format_.bias})
        step = step * ((part + {format_.bias}) << {shift}).to(tl.{dtype}, bitcast=True)
        k = k - part
    quotient = tl.floor({elementary.call("divide", "left", "step", dtype=dtype)})
    left = tl.fma(quotient * -1.0, step, left)
    left = tl.where(left < 0.0, left + step, left)
left = tl.where(a < b, a, left)
left = tl.where(a == float("inf"), float("nan"), left)
return tl.where(x < 0.0, left * -1.0, left)"""
