"""Emits the interpreter of dims.

`i64 evaluate(instructions, count, words)` runs instructions, which read and write words of one
array. It returns 1 if a value does not fit 64 bits, something is divided by zero, or a condition
does not hold, and else 0. Values are then those of `core.evaluation.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I32, I64, PTR, IRBuilder, begun, const
from ftuner.codegen.llvm.native.binding_records import OPERATIONS, Instruction
from ftuner.core.ranges import COARSE_BITS, EXACT, FEW, FINE_BITS, MANY

_FITS = ir.Constant(I1, 0)
_LEAST = const(-(1 << 63))
_LIMIT = float(1 << 63)
Result = tuple[ir.Value, ir.Value]
"""A value, and whether the operation fails."""


def emit_evaluation(module: ir.Module) -> ir.Function:
    """Add the interpreter to a module."""
    kind = ir.FunctionType(I64, [PTR, I64, PTR])
    b, (instructions, count, words) = begun(module, kind, "ftuner_evaluate", internal=True)
    b.function.attributes.add("noinline")
    failed = b.variable(_FITS)
    with b.counted_loop(0, count) as i:
        row = b.record_at(instructions, i, Instruction.SIZE)
        x, y = (b.slot(words, b.slot(row, n)) for n in (Instruction.X, Instruction.Y))
        cases = [b.append_basic_block(name) for name in OPERATIONS]
        done = b.append_basic_block("done")
        switch = b.switch(b.slot(row, Instruction.OPERATION), cases[0])
        results = []
        for number, (name, case) in enumerate(zip(OPERATIONS, cases, strict=True)):
            switch.add_case(const(number), case)
            b.position_at_end(case)
            results.append(_EMITTED[name](b, x, y))
            b.branch(done)
        b.position_at_end(done)
        value, fails = (b.joined(part, cases) for part in zip(*results, strict=True))
        b.set_slot(words, b.slot(row, Instruction.TARGET), value)
        b.store(b.or_(b.load(failed, typ=I1), fails), failed)
    b.ret(b.zext(b.load(failed, typ=I1), I64))
    return b.function


def _parts(b: IRBuilder, pair: ir.Value) -> Result:
    """The number and the flag of an operation that may overflow."""
    return b.extract_value(pair, 0), b.extract_value(pair, 1)


def _divided(b: IRBuilder, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The quotient, rounded towards minus infinity, the remainder, and whether there is none."""
    large = b.and_(b.icmp_signed("==", x, _LEAST), b.icmp_signed("==", y, -1))
    fails = b.or_(b.icmp_signed("==", y, 0), large)
    y = b.select(fails, 1, y)
    quotient, rest = b.sdiv(x, y), b.srem(x, y)
    differ = b.icmp_signed("<", b.xor(rest, y), 0)
    rounds = b.and_(b.icmp_signed("!=", rest, 0), differ)
    quotient = b.sub(quotient, b.zext(rounds, I64))
    return quotient, b.select(rounds, b.add(rest, y), rest), fails


def _scaled(b: IRBuilder, x: ir.Value, y: ir.Value) -> Result:
    """Emits `core.symbolic.scaled_value`, which rounds to double precision first."""
    single = ir.FloatType()
    factor = b.bitcast(b.trunc(y, I32), single)
    found = b.fmul(b.fptrunc(b.sitofp(x, ir.DoubleType()), single), factor)
    above = b.fcmp_ordered(">", found, ir.Constant(single, -_LIMIT))
    fits = b.and_(above, b.fcmp_ordered("<", found, ir.Constant(single, _LIMIT)))
    whole = b.fptosi(b.select(fits, found, ir.Constant(single, 0.0)), I64)
    return whole, b.not_(fits)


def _equal_or_one(b: IRBuilder, x: ir.Value, y: ir.Value) -> Result:
    neither = (b.icmp_signed("!=", value, 1) for value in (x, y))
    return x, reduce(b.and_, neither, b.icmp_signed("!=", x, y))


def _magnitude(b: IRBuilder, x: ir.Value) -> ir.Value:
    """The bits of an extent less one; -1 of zero."""
    return b.sub(const(63), b.ctlz(x, _FITS))


def _fine_start(b: IRBuilder, x: ir.Value, _: ir.Value) -> Result:
    many = b.maximum(x, EXACT)
    ranges = b.select(b.icmp_signed("<", x, MANY), FINE_BITS, COARSE_BITS)
    shift = b.sub(_magnitude(b, many), ranges)
    start = b.shl(b.lshr(many, shift), shift)
    return b.select(b.icmp_signed("<", x, EXACT), x, start), _FITS


def _coarse_middle(b: IRBuilder, x: ir.Value, _: ir.Value) -> Result:
    shift = b.maximum(b.sub(_magnitude(b, x), COARSE_BITS), 0)
    half = b.lshr(b.shl(const(1), shift), 1)
    return b.add(b.shl(b.lshr(x, shift), shift), half), _FITS


def _middle(b: IRBuilder, x: ir.Value, y: ir.Value) -> Result:
    found, _ = _coarse_middle(b, b.maximum(x, FEW), y)
    return b.select(b.icmp_signed("<", x, FEW), x, found), _FITS


_EMITTED: Mapping[str, Callable[[IRBuilder, ir.Value, ir.Value], Result]] = {
    "sum": lambda b, x, y: _parts(b, b.sadd_with_overflow(x, y)),
    "product": lambda b, x, y: _parts(b, b.smul_with_overflow(x, y)),
    "quotient": lambda b, x, y: _divided(b, x, y)[::2],
    "remainder": lambda b, x, y: _divided(b, x, y)[1:],
    "maximum": lambda b, x, y: (b.maximum(x, y), _FITS),
    "minimum": lambda b, x, y: (b.minimum(x, y), _FITS),
    "broadcast": lambda b, x, y: (b.select(b.icmp_signed("==", x, 1), y, x), _FITS),
    "whole": lambda b, x, _: (x, b.icmp_signed("==", x, _LEAST)),
    "scaled": _scaled,
    "bounded": lambda b, x, y: (x, b.or_(b.icmp_signed("<", x, 0), b.icmp_signed(">", x, y))),
    "equal": lambda b, x, y: (x, b.icmp_signed("!=", x, y)),
    "equal_or_one": _equal_or_one,
    "fine_start": _fine_start,
    "middle": _middle,
    "coarse_middle": _coarse_middle,
}
