"""Elementary functions as Triton text, on blocks of float32 or float64.

`call` returns the expression that applies one, `prelude` the functions that such expressions call.
Only features of both Triton's interpreter and its compiler are used, and fused multiply-adds are
explicit because kernels are compiled without contraction (`Source.options`). So the interpreter
gives the bits of a GPU, except for the exponential unit, division and the vendor's functions.

Largest errors of normal float32 results, in ulp, by the tests in the interpreter, where `exp2` and
`/` are exact: exp 1.5, expm1 2, sigmoid 3, tanh 2, power 2.5, atan 2.5, erfc, gelu, gelu_tanh,
silu, softplus, mish and swish 4. A GPU adds 2 for each call of these two. log, sin, cos and erf are
the vendor's, with about 2 ulp; sqrt, divide, maximum, minimum and roundings are exact. In functions
with a power of e as a factor (all of the above except exp, expm1, tanh and atan), a subnormal power
is flushed to zero, and so is the result. NaN gives NaN; infinities and overflow follow C's Annex F.

float64: the same bounds, with the vendor's exp.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence

from ftuner.codegen.coefficients import ATAN_LARGE, ATAN_SMALL, FORMATS, TANH_SMALL, Format
from ftuner.core.frozen import dataclass

_LOG2_E = 1.0 / math.log(2.0)


@dataclass(frozen=True)
class _Text:
    """Writes parts of functions for one floating-point format."""

    format: Format

    @property
    def single(self) -> bool:
        return self.format.bits == 32

    @property
    def dtype(self) -> str:
        return f"float{self.format.bits}"

    @property
    def integer(self) -> str:
        return f"tl.int{self.format.bits}"

    def rounded(self, value: float) -> float:
        code = "<f" if self.single else "<d"
        return float(struct.unpack(code, struct.pack(code, value))[0])

    def pattern(self, value: float) -> int:
        """Returns the bits of a positive `value`, rounded to the format."""
        codes = ("<f", "<i") if self.single else ("<d", "<q")
        return int(struct.unpack(codes[1], struct.pack(codes[0], value))[0])

    def number(self, value: float) -> str:
        """Returns `value`, rounded to the format, as a literal."""
        return repr(self.rounded(value))

    def madd(self, x: str, y: str, z: str) -> str:
        """Returns x y + z where one of them is a literal. Triton 3.6 rounds literal arguments of
        `fma` to float32, whatever the others are."""
        return f"tl.fma({x}, {y}, {z})" if self.single else f"{x} * {y} + {z}"

    def polynomial(self, result: str, x: str, table: Sequence[float]) -> str:
        """Returns lines that assign to `result` the polynomial at `x`, of two coefficients or
        more."""
        *_, second, last = map(self.number, table)
        lines = [f"{result} = {self.madd(x, last, second)}"]
        lines += [
            f"{result} = {self.madd(result, x, self.number(coefficient))}"
            for coefficient in reversed(table[:-2])
        ]
        return "\n    ".join(lines)

    def clamped(self, x: str, low: float, high: float) -> str:
        """Returns `x` clamped to limits; NaN stays NaN."""
        return call("minimum", call("maximum", x, self.number(low)), self.number(high))

    def integral(self, n: str, x: str) -> str:
        """Lines: `n` is x / ln 2, rounded by adding 1.5 * 2**fraction_bits, whose last bit is
        worth one."""
        magic = self.number(1.5 * 2.0**self.format.fraction_bits)
        return f"{n} = {self.madd(x, self.number(_LOG2_E), magic)} - {magic}"

    def without(self, r: str, n: str, x: str) -> str:
        """Lines: `r` is x - n ln 2 (Cody and Waite's reduction)."""
        high, low = self.number(-self.format.ln2_high), self.number(-self.format.ln2_low)
        return f"{r} = {self.madd(n, high, x)}\n    {r} = {self.madd(n, low, r)}"

    def scaled(self, result: str, x: str, n: str) -> str:
        """Lines: `result` is x 2^n for an integral `n`. In two steps, as 2^n may be subnormal or
        infinite; the first is exact, so that a subnormal result is rounded once."""
        shift = self.format.fraction_bits
        return "\n    ".join((
            f"biased = {n}.to({self.integer}) + {2 * self.format.bias}",
            "half = biased >> 1",
            f"{result} = {x} * (half << {shift}).to(tl.{self.dtype}, bitcast=True)",
            f"{result} = {result} * ((biased - half) << {shift}).to(tl.{self.dtype}, bitcast=True)",
        ))  # fmt: skip


def _exp(t: _Text) -> str:
    if not t.single:
        return "return tl.exp(x)"
    return f"""\
x = {t.clamped("x", t.format.exp_low, t.format.exp_high)}
    {t.integral("n", "x")}
    {t.without("r", "n", "x")}
    y = tl.exp2(r * {t.number(_LOG2_E)})
    {t.scaled("y", "y", "n")}
    return y"""


def _exp_sum(t: _Text) -> str:
    """e**(x + y) for x <= 0 and y of some rounding errors of x: 2**high, times 1 plus a correction
    for the error of `high`. Subnormal results are 0."""
    if not t.single:
        return "power = tl.exp(x)\n    return tl.fma(power, y, power)"
    low = t.number(_LOG2_E - t.rounded(_LOG2_E))
    # Below this the power is 0, and an infinite argument would give inf - inf.
    return f"""\
x = {call("maximum", "x", "-150.0")}
    high = x * {t.number(_LOG2_E)}
    rest = tl.fma(x, {t.number(_LOG2_E)}, -high)
    rest = tl.fma(x, {low}, rest)
    rest = tl.fma(y, {t.number(_LOG2_E)}, rest)
    power = tl.exp2(high)
    return tl.fma(power, rest * {t.number(math.log(2.0))}, power)"""


def _sigmoid(t: _Text) -> str:
    """1 / (1 + e**-x); for negative x as e**x / (1 + e**x), accurate down to underflow."""
    return f"""\
power = exp_sum_{t.dtype}(-tl.abs(x), 0.0)
    return tl.where(x >= 0.0, 1.0, power) / (1.0 + power)"""


def _silu(t: _Text) -> str:
    """x sigmoid(x)."""
    return f"""\
power = exp_sum_{t.dtype}(-tl.abs(x), 0.0)
    y = {call("maximum", "x", t.number(t.format.silu_low), dtype=t.dtype)}
    return tl.where(x >= 0.0, x, y * power) / (1.0 + power)"""


def _swish(t: _Text) -> str:
    """x sigmoid(y x), with the product unrounded, because its error is an absolute error of the
    exponent."""
    return f"""\
x, y = tl.broadcast(x, tl.where(x == x, y, y))
    high = -tl.abs(x) * tl.abs(y)
    vanishes = high < {t.number(t.format.swish_low)}
    low = tl.fma(-tl.abs(x), tl.abs(y), -high)
    power = exp_sum_{t.dtype}(high, tl.where(vanishes, 0.0, low))
    below = tl.where(vanishes, tl.where(x < 0.0, -0.0, 0.0), x * power)
    return tl.where(x * y >= 0.0, x, below) / (1.0 + power)"""


def _gelu_tanh(t: _Text) -> str:
    """x sigmoid(v) with v = x (c + d x^2), as `codegen/llvm/ir/vector_math.py` computes it."""
    c, c_low, d, d_low = t.format.gelu_tanh
    # Arguments of fma are blocks: a literal would be float32 also for float64.
    return f"""\
y = {call("maximum", "-tl.abs(x)", t.number(t.format.gelu_tanh_low), dtype=t.dtype)}
    c = tl.full(y.shape, {t.number(c)}, tl.{t.dtype})
    d = tl.full(y.shape, {t.number(d)}, tl.{t.dtype})
    square = y * y
    low = tl.fma(y, y, -square) * d + (square * {t.number(d_low)} + {t.number(c_low)})
    total = tl.fma(square, d, c)
    low = tl.fma(square, d, c - total) + low
    v = y * total
    power = exp_sum_{t.dtype}(v, tl.fma(y, low, tl.fma(y, total, -v)))
    return tl.where(x >= 0.0, x, y * power) / (1.0 + power)"""


def _expm1(t: _Text) -> str:
    """e**x - 1, relatively accurate about zero."""
    constants, shift = t.format, t.format.fraction_bits
    tiny = t.number(2.0 ** -(shift + 2))
    return f"""\
a = {t.clamped("x", -2.0 * constants.tanh_high, constants.exp_high)}
    {t.integral("n", "a")}
    {t.without("r", "n", "a")}
    z = r * r
    {t.polynomial("series", "r", constants.exp_table)}
    rest = tl.fma(z, series, r)
    biased = n.to({t.integer}) + {constants.bias - 1}
    power = (biased << {shift}).to(tl.{t.dtype}, bitcast=True)
    half = tl.fma(power, rest, power - 0.5)
    return tl.where(tl.abs(x) < {tiny}, x, half + half)"""


def _softplus(t: _Text) -> str:
    """log(1 + e**x) as max(x, 0) + log1p(z) with z = e**-|x|; log1p(z) is 2 atanh(z / (2 + z)),
    which has no cancellation."""
    return f"""\
z = exp_sum_{t.dtype}(-tl.abs(x), 0.0)
    s = z / (2.0 + z)
    square = s * s
    {t.polynomial("series", "square", t.format.atanh_table)}
    return tl.fma(s, square * series, s + s) + {call("maximum", "x", "0.0", dtype=t.dtype)}"""


def _mish(t: _Text) -> str:
    """x tanh(softplus(x)), which is x w / (w + 2) with w = e**x (e**x + 2)."""
    high = t.number(t.format.tanh_high)
    return f"""\
above = {call("maximum", "x", t.number(t.format.silu_low), dtype=t.dtype)}
    power = exp_{t.dtype}({call("minimum", "above", high, dtype=t.dtype)})
    w = tl.fma(power, power, power + power)
    product = above * power
    large = x - 2.0 * tl.minimum(x, 1e30) / (w + 2.0)
    return tl.where(x > 0.0, large, tl.fma(product, power, product + product) / (w + 2.0))"""


def _tanh(t: _Text) -> str:
    """1 - 2 / (1 + e**2|x|) with the sign of x; a polynomial near 0, where that cancels."""
    exp2 = f"tl.exp2(a * {t.number(-2.0 * _LOG2_E)})"
    return f"""\
a = tl.abs(x)
    z = a * a
    {t.polynomial("series", "z", t.format.tanh_table)}
    small = tl.fma(a, z * series, a)
    power = {exp2 if t.single else "tl.exp(-2.0 * a)"}
    large = {t.madd("-2.0", "(power / (1.0 + power))", "1.0")}
    value = tl.where(a < {t.number(TANH_SMALL)}, small, large)
    sign = x.to({t.integer}, bitcast=True) & {-(2 ** (t.format.bits - 1))}
    return (value.to({t.integer}, bitcast=True) | sign).to(tl.{t.dtype}, bitcast=True)"""


def _erfc(t: _Text) -> str:
    """exp(-a^2) erfcx(a) of a = |x|, with a^2 unrounded, because its error is an absolute error of
    the exponent. erfcx is a slowly varying function of (K - a) / (K + a), divided by K + a."""
    scale, shift = t.number(t.format.erfcx_scale), t.number(t.format.erfcx_shift)
    return f"""\
a = {call("minimum", "tl.abs(x)", t.number(t.format.erfc_high))}
    square = a * a
    power = exp_sum_{t.dtype}(-square, -tl.fma(a, a, -square))
    t = 1.0 / ({t.madd("a", scale, shift)})
    q = {t.madd("(a * t)", t.number(-2.0 * t.format.erfcx_scale), "1.0")}
    {t.polynomial("series", "q", t.format.erfcx_table)}
    tail = power * tl.fma(t, q * series, t)
    return tl.where(x < 0.0, 2.0 - tail, tail)"""


def _gelu(t: _Text) -> str:
    """x Phi(x) as max(x, 0) - a Phi(-a) with a = |x|: Phi(-a) is erfc(a / sqrt 2) / 2, computed as
    in erfc, with a itself as the numerator."""
    slope, shift = t.format.gelu_scale, t.number(t.format.gelu_shift)
    factor = t.number(t.format.gelu_factor)
    return f"""\
a = {call("minimum", "tl.abs(x)", t.number(t.format.gelu_high), dtype=t.dtype)}
    half = 0.5 * a
    square = a * half
    power = exp_sum_{t.dtype}(-square, -tl.fma(a, half, -square))
    t = a / ({t.madd("a", t.number(slope), shift)})
    q = {t.madd("t", t.number(-2.0 * slope), "1.0")}
    {t.polynomial("series", "q", t.format.erfcx_table)}
    power = power * {factor}
    return tl.where(x < 0.0, -0.0, x) - 0.5 * (power * tl.fma(t, q * series, t))"""


def _power(t: _Text) -> str:
    """|x|**y as exp(y log |x|), with the logarithm and the product as sums of two numbers; then the
    sign and the special cases.

    log(m 2**k) with m in [sqrt 1/2, sqrt 2): with f = m - 1, which is exact, and u = 2f / (2 + f),
    it is k ln 2 + u + u (u/2)^2 P(u^2 / 4) / 2; `lost` is the rounding error of u.
    """
    constants, shift = t.format, t.format.fraction_bits
    smallest = t.number(2.0 ** (1 - constants.bias))
    lift = shift + 1
    limit = t.number(-2.0 * constants.exp_low)
    return f"""\
    x, y = tl.broadcast(x, y)
    a = tl.abs(x)
    normal = tl.where(a < {smallest}, a * {t.number(2.0**lift)}, a)
    bits = normal.to({t.integer}, bitcast=True)
    exponent = (bits - {t.pattern(math.sqrt(0.5))}) >> {shift}
    m = (bits - (exponent << {shift})).to(tl.{t.dtype}, bitcast=True)
    k = exponent.to(tl.{t.dtype}) - tl.where(a < {smallest}, {lift}.0, 0.0)
    f = m - 1.0
    inverse = 1.0 / (m + 1.0)
    u = 2.0 * f * inverse
    lost = tl.fma(-u, f, 2.0 * (f - u)) * inverse
    z = 0.25 * u * u
    {t.polynomial("series", "z", constants.log_table)}
    rest = {t.madd("k", t.number(constants.ln2_low), "tl.fma(0.5 * u * z, series, lost)")}
    whole = k * {t.number(constants.ln2_high)}
    high = whole + u
    low = ((whole - high) + u) + rest
    log = high + low
    low = (high - log) + low
    log = tl.where(a == 0.0, float("-inf"), tl.where(a < float("inf"), log, a))
    product = y * log
    lost = tl.fma(y, log, -product) + y * low
    lost = tl.where(tl.abs(product) < {limit}, lost, 0.0)
    product = {t.clamped("product", constants.exp_low, constants.exp_high)}
    {t.integral("n", "product")}
    {t.without("r", "n", "product")}
    r = r + lost
    z = r * r
    {t.polynomial("series", "r", constants.exp_table)}
    {t.scaled("result", "(1.0 + tl.fma(z, series, r))", "n")}
    integral = tl.floor(y) == y
    odd = integral & (tl.floor(0.5 * y) != 0.5 * y)
    result = tl.where(odd & (x.to({t.integer}, bitcast=True) < 0), -result, result)
    result = tl.where((x < 0.0) & (a < float("inf")) & (integral == 0), float("nan"), result)
    result = tl.where((a == 1.0) & (tl.abs(y) == float("inf")), 1.0, result)
    return tl.where((x == 1.0) | (y == 0.0), 1.0, result)""".lstrip()


def _atan(t: _Text) -> str:
    """atan with the argument reduction of `ATAN_SMALL`. Triton makes literal arguments of `where`
    float32; these are exact in it."""
    return f"""\
a = tl.abs(x)
    small = a < {t.number(ATAN_SMALL)}
    large = a > {t.number(ATAN_LARGE)}
    top = tl.where(small, a, tl.where(large, -1.0, a - 1.0))
    bottom = tl.where(small, 1.0, tl.where(large, a, a + 1.0))
    q = {call("divide", "top", "bottom", dtype=t.dtype)}
    z = q * q
    {t.polynomial("series", "z", t.format.atan_table)}
    r = tl.fma(q * z, series, q)
    turned = tl.where(large, r + {t.number(math.pi / 2)}, r + {t.number(math.pi / 4)})
    y = tl.where(small, r, turned)
    return tl.where(x < 0.0, y * -1.0, tl.where(x == 0.0, x, y))"""


def _rint(t: _Text) -> str:
    """The nearest integer, halves to even: adding 2**fraction_bits rounds to integers."""
    magic = t.number(2.0**t.format.fraction_bits)
    return f"""\
a = tl.abs(x)
    whole = (a + {magic}) - {magic}
    whole = tl.where(x < 0.0, -whole, whole)
    return tl.where(a < {magic}, whole, x)"""


_HELPERS: dict[str, Callable[[_Text], str]] = {
    body.__name__[1:]: body
    for body in (
        _exp_sum, _exp, _sigmoid, _expm1, _silu, _swish, _softplus, _mish, _tanh, _erfc, _gelu,
        _gelu_tanh, _power, _rint, _atan,
    )
}  # fmt: skip
"""The functions of the prelude, those before others that they call."""
_OF_TWO = ("exp_sum", "swish", "power")
_DIRECT = {
    "float32": {
        "absolute": "tl.abs({0})",
        # Triton 3.6 compiles -x as 0 - x, which is never minus zero.
        "negative": "({0}) * -1.0",
        "log": "tl.log({0})",
        "sin": "tl.sin({0})",
        "cos": "tl.cos({0})",
        "erf": "tl.erf({0})",
        "sqrt": "tl.sqrt_rn({0})",
        "floor": "tl.floor({0})",
        "ceil": "tl.ceil({0})",
        "divide": "tl.div_rn({0}, {1})",
        "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
        "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    }
}
_DIRECT["float64"] = _DIRECT["float32"] | {"sqrt": "tl.sqrt({0})", "divide": "({0} / {1})"}
FUNCTIONS = tuple(sorted({*_HELPERS, *_DIRECT["float32"]} - {"exp_sum"}))
"""The functions of `call`, by their names in `core.functions`."""


def call(name: str, *arguments: str, dtype: str = "float32") -> str:
    """Returns the expression that applies a function to blocks, or to a block and literals, given
    as expressions. `dtype`: float32 or float64, of all blocks and of the result."""
    if name in _HELPERS:
        return f"{name}_{dtype}({', '.join(arguments)})"
    return _DIRECT[dtype][name].format(*arguments)


def prelude(names: Iterable[str], dtype: str = "float32") -> str:
    """Returns the text of the functions that calls of `names` need; may be empty."""
    text, wanted, found = _Text(FORMATS[dtype]), {*names}, ""
    for name, body in reversed(_HELPERS.items()):
        if name in wanted:
            arguments, lines = "x, y" if name in _OF_TWO else "x", body(text)
            found = f"\n\n@triton.jit\ndef {name}_{dtype}({arguments}):\n    {lines}\n{found}"
            wanted |= {called for called in ("exp_sum", "exp") if f"{called}_{dtype}(" in lines}
    return found
