"""Complex tensors within a graph, as pairs of real ones. Inputs and outputs are real.

A Fourier transform is a product with the matrix of its roots of unity: n^2 multiplications along an
axis of n elements, whatever n is. The angles are reduced in integers, so that they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ftuner.core.dim import Dim, quotient
from ftuner.core.dtype import FLOAT32, FLOAT64, INT64, DType
from ftuner.core.frozen import dataclass
from ftuner.frontends.torch.registry import ATEN, imported, name_of
from ftuner.frontends.torch.views import axis_of
from ftuner.graph.algebra import concat, cos, equal, exp, iota, sin, where
from ftuner.graph.checks import unsupported
from ftuner.graph.ir import Value

PARTS: Mapping[torch.dtype, DType] = {torch.complex64: FLOAT32, torch.complex128: FLOAT64}
"""The dtypes of the parts of complex numbers."""


@dataclass(frozen=True)
class Complex:
    """A complex tensor."""

    real: Value
    imag: Value
    is_real: bool = False
    """Whether the imaginary part is known to be zero."""


Given = Complex | Value | complex
PARTWISE = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "cat", "clone", "contiguous", "detach", "diagonal",
    "diff",
    "expand", "flatten", "flip", "index", "index_select", "lift_fresh", "lift_fresh_copy", "mean",
    "movedim", "narrow", "neg", "permute", "repeat", "reshape", "resolve_neg", "roll", "select",
    "slice", "squeeze", "stack", "sum", "t", "transpose", "unflatten", "unsqueeze", "view",
})  # fmt: skip
"""Operators that do the same to both parts, whose other tensors are positions."""


def is_complex(given: Any) -> bool:
    """Whether an operand or the result of a node, or one of a list, is complex."""
    if isinstance(given, (list, tuple)):
        return any(map(is_complex, given))
    return isinstance(given, (Complex, complex)) or (
        isinstance(given, torch.Tensor) and given.is_complex()
    )


def applied(target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The result of an operator that reads or gives complex tensors.

    Raises:
        UnsupportedOperatorError: it has no importer for these.
    """
    op = name_of(target).split(".", maxsplit=1)[0]
    if op in _ROWS:
        return _ROWS[op](*args, **named)
    if op not in PARTWISE:
        raise unsupported(f"{op} of complex tensors")
    parts = ([_part(x, p) for x in args] for p in ("real", "imag"))
    return Complex(*(imported(target, part, named) for part in parts))


def _part(given: Any, part: str) -> Any:
    if isinstance(given, list):
        return [_part(x, part) for x in given]
    return getattr(given, part) if isinstance(given, Complex) else given


def _of_real(x: Value) -> Complex:
    return Complex(x, x.like(0).broadcast(x.shape), True)


def _whole(x: Given, like: Complex) -> Complex:
    """An operand as a complex tensor."""
    if isinstance(x, Complex):
        return x
    if isinstance(x, Value):
        return _of_real(x.cast(like.real.dtype))
    return Complex(like.real.like(complex(x).real), like.real.like(complex(x).imag))


def _both(x: Given, y: Given) -> tuple[Complex, Complex]:
    like = x if isinstance(x, Complex) else y
    if not isinstance(like, Complex):
        (real,) = (v for v in (x, y) if isinstance(v, Value))
        like = _of_real(real)
    return _whole(x, like), _whole(y, like)


def _of_parts(x: Complex, function: Callable[[Value], Value]) -> Complex:
    return Complex(function(x.real), function(x.imag))


def _real_factor(x: Given, like: Complex) -> Value | None:
    """x as a factor of both parts, if it is real."""
    if isinstance(x, (Complex, complex)):
        return None
    return like.real.like(x).cast(like.real.dtype)


def _sum(x: Given, y: Given, *, alpha: float = 1, sign: int = 1) -> Complex:
    x, y = _both(x, y)
    factor = sign * alpha
    return Complex(x.real + y.real * factor, x.imag + y.imag * factor)


def _product(x: Given, y: Given) -> Complex:
    if isinstance(x, Complex) and (factor := _real_factor(y, x)) is not None:
        return _of_parts(x, factor.__mul__)
    if isinstance(y, Complex) and (factor := _real_factor(x, y)) is not None:
        return _of_parts(y, factor.__mul__)
    x, y = _both(x, y)
    return Complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _quotient(x: Given, y: Given) -> Complex:
    if isinstance(x, Complex) and (divisor := _real_factor(y, x)) is not None:
        return _of_parts(x, lambda part: part / divisor)
    x, y = _both(x, y)
    size = y.real * y.real + y.imag * y.imag
    found = _product(x, _conjugate(y))
    return Complex(found.real / size, found.imag / size)


def _conjugate(x: Complex) -> Complex:
    return Complex(x.real, -x.imag)


def _polar(abs: Value, angle: Value) -> Complex:
    return Complex(abs * cos(angle), abs * sin(angle))


def _cast(x: Complex | Value, dtype: DType | None = None) -> Complex:
    if isinstance(x, Value):
        return _of_real(x.cast(dtype or x.dtype))
    return _of_parts(x, lambda part: part.cast(dtype or part.dtype))


def _roots(n: Dim, rows: Dim, columns: Dim, dtype: DType) -> Complex:
    """exp(2 pi i j k / n) by row j and column k."""
    turns = (iota(rows, 0, 2).cast(INT64) * iota(columns, 1, 2).cast(INT64)) % n
    angle = turns.cast(FLOAT64) * (2 * math.pi) / turns.like(n).cast(FLOAT64)
    return Complex(cos(angle).cast(dtype), sin(angle).cast(dtype))


def _along(axis: int, rank: int) -> list[int]:
    """The order of axes that exchanges one with the last."""
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def _transformed(x: Complex, axis: int, forward: bool, count: Dim | None = None) -> Complex:
    """The first `count` coefficients along an axis; by default all."""
    n = x.real.shape[axis]
    roots = _roots(n, n, n if count is None else count, x.real.dtype)
    if forward:
        roots = _conjugate(roots)
    order = _along(axis, x.real.rank)
    real = x.real.transpose(order)
    found = Complex(real @ roots.real, real @ roots.imag)
    if not x.is_real:
        imag = x.imag.transpose(order)
        found = Complex(found.real - imag @ roots.imag, found.imag + imag @ roots.real)
    return Complex(found.real.transpose(order), found.imag.transpose(order))


def _normalised(x: Value, extents: Sequence[Dim], mode: int) -> Value:
    """A transform over axes, by the product of their extents (2), its root (1) or as it is (0)."""
    for n in extents if mode else ():
        size = x.like(n)
        x = x / (size ** size.like(0.5) if mode == 1 else size)
    return x


def _fft(x: Complex, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    axes = [axis_of(a, x.real.rank) for a in dim]
    extents = [x.real.shape[a] for a in axes]
    for axis in axes:
        x = _transformed(x, axis, forward)
    return _of_parts(x, lambda part: _normalised(part, extents, normalization))


def _fft_of_real(x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Complex:
    *others, last = (axis_of(a, x.rank) for a in dim)
    n = x.shape[last]
    half = quotient(n, 2) + 1 if onesided else n
    found = _transformed(_of_real(x), last, True, half)
    found = _fft(found, others, normalization, True)
    return _of_parts(found, lambda part: _normalised(part, [n], normalization))


def _fft_to_real(x: Complex, dim: Sequence[int], normalization: int, last_dim_size: Dim) -> Value:
    """The coefficients after the middle are the conjugates of those before it."""
    *others, last = (axis_of(a, x.real.rank) for a in dim)
    x = _fft(x, others, normalization, False)
    n, half = last_dim_size, x.real.shape[last]
    roots = _roots(n, half, n, x.real.dtype)
    at = iota(half, 0, 2).cast(INT64)
    weight = where(equal(at, 0) | equal(at * 2, n), 1, at.like(2)).cast(x.real.dtype)
    order = _along(last, x.real.rank)
    found = x.real.transpose(order) @ (roots.real * weight)
    found = found - x.imag.transpose(order) @ (roots.imag * weight)
    return _normalised(found.transpose(order), [n], normalization)


def _padded(x: Complex, pad: Sequence[Dim], value: complex = 0) -> Complex:
    row: Any = ATEN["constant_pad_nd.default"]
    value = complex(value)
    return Complex(row(x.real, pad, value.real), row(x.imag, pad, value.imag))


_ROWS: Mapping[str, Callable[..., Any]] = {
    "_fft_c2c": _fft, "_fft_r2c": _fft_of_real, "_fft_c2r": _fft_to_real,
    "add": _sum, "sub": lambda x, y, alpha=1: _sum(x, y, alpha=alpha, sign=-1), "mul": _product,
    "div": _quotient, "exp": lambda x: _polar(exp(x.real), x.imag), "constant_pad_nd": _padded,
    "abs": lambda x: ATEN["hypot.default"](x.real, x.imag),
    "angle": lambda x: ATEN["atan2.default"](x.imag, x.real),
    "conj": _conjugate, "_conj": _conjugate, "_conj_physical": _conjugate,
    "conj_physical": _conjugate, "resolve_conj": lambda x: x,
    "real": lambda x: x.real, "imag": lambda x: x.imag,
    "complex": Complex, "polar": _polar, "to": _cast, "_to_copy": _cast,
    "view_as_complex": lambda x: Complex(x[..., 0], x[..., 1]),
    "view_as_real": lambda x: concat([x.real[..., None], x.imag[..., None]], x.real.rank),
}  # fmt: skip
COMPLEX = frozenset({
    "_conj.default", "_conj_physical.default", "_fft_c2c.default", "_fft_c2r.default",
    "_fft_r2c.default", "angle.default", "complex.default", "conj.default",
    "conj_physical.default", "imag.default", "polar.default", "real.default",
    "resolve_conj.default", "resolve_neg.default", "view_as_complex.default",
    "view_as_real.default",
})  # fmt: skip
"""Operators that have importers for complex tensors alone."""
