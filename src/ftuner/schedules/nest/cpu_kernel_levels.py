"""Elements that are rounded to levels of 8 bits, in LLVM IR: what QuantizeLinear does.

A division of vectors takes ten cycles. Where the divisor is one number for all lanes, the quotient
is a product with its reciprocal and two corrections by the exact remainder, which is the correctly
rounded quotient (Markstein, IA-64 and Elementary Functions, 2000, chapter 8). It is limited before
it is rounded. A sum with `SHIFT` rounds to even, and has the level in its last bits. Divisors, zero
points and elements for which this does not hold are computed as the steps say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I32, IRBuilder
from ftuner.codegen.llvm.ir.vector_arithmetic import intrinsic
from ftuner.core.dtype import FLOAT32, INT8, UINT8
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Step

SHIFT = 1.5 * 2**23
"""Its neighbours are one apart, and the last eight bits of its significand are zero."""
DIVISORS = (2.0**-60, 2.0**60)
"""Divisors with which neither reciprocals, limits nor remainders overflow or underflow, but for
remainders of elements below 2**-100, whose level is zero."""
LARGEST = 255.0
"""Magnitude of a limit and of a zero point."""


@dataclass(frozen=True)
class Levels:
    """`clip(rint(x / divisor) + zero, low, high)`. All are steps, but the limits."""

    x: int
    divisor: int | None
    zero: int | None
    low: float
    high: float


def levels_at(steps: Sequence[Step], number: int) -> Levels | None:
    """What a step rounds to levels of 8 bits, if it does."""

    def arguments(number: int, op: str) -> tuple[int, ...]:
        step = steps[number]
        return step.arguments if step.op == op and step.dtype == FLOAT32 else ()

    def limited(number: int, op: str) -> tuple[int, float] | None:
        """What is limited, by which integer."""
        x, limit = arguments(number, op) or (number, number)
        payload = steps[limit].payload
        if steps[limit].op != "constant" or not isinstance(payload, (int, float)):
            return None
        return (x, payload) if abs(payload) <= LARGEST and payload % 1 == 0 else None

    step = steps[number]
    if step.op != "cast" or step.dtype not in (INT8, UINT8):
        return None
    below = limited(step.arguments[0], "minimum")
    above = None if below is None else limited(below[0], "maximum")
    if below is None or above is None:
        return None
    # Beyond the type the cast wraps, which a level does not.
    least, most = (-128, 127) if step.dtype == INT8 else (0, 255)
    if not least <= above[1] <= below[1] <= most:
        return None
    rounded, zero = arguments(above[0], "add") or (above[0], None)
    if not (found := arguments(rounded, "rint")):
        return None
    x, divisor = arguments(found[0], "divide") or (found[0], None)
    return Levels(x, divisor, zero, above[1], below[1])


def shifted_levels(
    builder: IRBuilder, levels: Levels, value: Callable[[int], ir.Value], fused: bool
) -> ir.Value:
    """The levels plus `SHIFT`, as floats. NaN has the level zero, as where it is converted.
    `value`: of a step; `fused`: whether the target has a fused multiply-add."""
    x = value(levels.x)
    zero = None if levels.zero is None else value(levels.zero)
    divisor = None if levels.divisor is None else value(levels.divisor)
    lanes = max(elements.lanes_of(v) for v in (x, zero, divisor) if v is not None)

    def wide(v: ir.Value) -> ir.Value:
        return builder.splat(v, lanes) if lanes and not elements.lanes_of(v) else v

    def limited(v: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
        """NaN becomes `low`."""
        for predicate, limit in ((">", wide(low)), ("<", wide(high))):
            v = builder.select(builder.fcmp_ordered(predicate, v, limit), v, limit)
        return v

    def as_usual() -> ir.Value:
        limits = [_number(levels.low), _number(levels.high)]
        if zero is not None:
            limits = [builder.fsub(limit, zero) for limit in limits]
        if divisor is None:
            quotient = limited(x, *limits)
        else:
            element = limited(wide(x), *(builder.fmul(limit, divisor) for limit in limits))
            times, minus = builder.fdiv(_number(1.0), divisor), builder.fneg(divisor)
            quotient = builder.fmul(element, wide(times))
            for _ in range(2):
                rest = intrinsic(builder, "fma", quotient, wide(minus), element)
                quotient = intrinsic(builder, "fma", rest, wide(times), quotient)
        shifted = builder.fadd(quotient, elements.number(quotient.type, SHIFT))
        shifted = shifted if zero is None else builder.fadd(shifted, wide(zero))
        return shifted if levels.low == 0 else _without_nan(builder, wide(x), shifted)

    def as_written() -> ir.Value:
        quotient = wide(x) if divisor is None else builder.fdiv(wide(x), wide(divisor))
        rounded = intrinsic(builder, "rint", quotient)
        moved = rounded if zero is None else builder.fadd(rounded, wide(zero))
        level = limited(moved, _number(levels.low), _number(levels.high))
        # A zero point may be between integers.
        whole = intrinsic(builder, "trunc", level)
        shifted = builder.fadd(whole, elements.number(whole.type, SHIFT))
        return _without_nan(builder, moved, shifted)

    if (divisor is not None and not fused) or any(
        v is not None and elements.lanes_of(v) for v in (zero, divisor)
    ):
        return as_written()
    conditions = []
    if divisor is not None:
        for predicate, limit in zip((">=", "<="), DIVISORS, strict=True):
            conditions.append(builder.fcmp_ordered(predicate, divisor, _number(limit)))
    if zero is not None:
        magnitude, whole = (intrinsic(builder, name, zero) for name in ("fabs", "rint"))
        conditions.append(builder.fcmp_ordered("==", whole, zero))
        conditions.append(builder.fcmp_ordered("<=", magnitude, _number(LARGEST)))
    if not conditions:
        return as_usual()
    found = []
    with builder.if_else(reduce(builder.and_, conditions), likely=True) as sides:
        for side, form in zip(sides, (as_usual, as_written), strict=True):
            with side:
                found.append((form(), builder.block))
    return builder.joined(*zip(*found, strict=True))


def as_bytes(builder: IRBuilder, shifted: ir.Value) -> ir.Value:
    """The levels in eight bits."""
    bits = builder.bitcast(shifted, elements.like(shifted.type, I32))
    return builder.trunc(bits, elements.like(shifted.type, ir.IntType(8)))


def as_floats(builder: IRBuilder, shifted: ir.Value) -> ir.Value:
    return builder.fsub(shifted, elements.number(shifted.type, SHIFT))


def _without_nan(builder: IRBuilder, x: ir.Value, shifted: ir.Value) -> ir.Value:
    """Zero levels where x is NaN."""
    ordered = builder.fcmp_ordered("ord", x, x)
    return builder.select(ordered, shifted, elements.number(shifted.type, SHIFT))


def _number(value: float) -> ir.Constant:
    return ir.Constant(ir.FloatType(), value)
