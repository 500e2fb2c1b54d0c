"""Look-ups of bytes in tables of 256, in LLVM IR."""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, IRBuilder
from ftuner.codegen.llvm.ir.lanes import load_lanes

PART = 32
"""Bytes of a table that are looked up at once: LLVM makes VPERMB of it, or PSHUFB for each half."""
_PARTS = ir.VectorType(ir.IntType(8), PART)


def loaded_table(builder: IRBuilder, address: ir.Value) -> list[ir.Value]:
    """The parts of 256 bytes at an address."""
    parts = (builder.at(address, begin) for begin in range(0, 256, PART))
    loaded = [load_lanes(builder, part, _PARTS, 1, None) for part in parts]
    return [_opaque(builder, part) for part in loaded]


def looked_up(builder: IRBuilder, table: list[ir.Value], levels: ir.Value) -> ir.Value:
    """The bytes that a vector of bytes is the places of, in a table."""
    count = levels.type.count
    found = [
        _of_parts(builder, table, builder.shuffle(levels, levels, _lanes(first, count)))
        for first in range(0, count, PART)
    ]
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [builder.shuffle(a, b, [*range(2 * a.type.count)]) for a, b in pairs]
    return builder.shuffle(found[0], found[0], [*range(count)])


def _lanes(first: int, count: int) -> list[int]:
    return [min(first + i, count - 1) for i in range(PART)]


def _of_parts(builder: IRBuilder, table: list[ir.Value], levels: ir.Value) -> ir.Value:
    """Look 32 bytes up in each part of the table, and choose by their upper bits, one after the
    other."""
    within = _opaque(builder, builder.and_(levels, _splat(PART - 1)))
    numbers = [ir.Constant(I32, i) for i in range(PART)]
    places = [builder.zext(builder.extract_element(within, i), I64) for i in numbers]
    found = []
    for part in table:
        taken: ir.Value = ir.Constant(_PARTS, ir.Undefined)
        for i, place in zip(numbers, places, strict=True):
            taken = builder.insert_element(taken, builder.extract_element(part, place), i)
        found.append(_opaque(builder, taken))
    bit = PART
    while len(found) > 1:
        upper = builder.icmp_unsigned("!=", builder.and_(levels, _splat(bit)), _splat(0))
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [builder.select(upper, b, a) for a, b in pairs]
        bit *= 2
    return found[0]


def _opaque(builder: IRBuilder, vector: ir.Value) -> ir.Value:
    """Returns the vector, of which LLVM then knows only that it is in a register of x86. Where it
    knows more, it finds no permutation, and takes elements one by one from where they come from."""
    return builder.asm(ir.FunctionType(_PARTS, [_PARTS]), "", "=x,0", [vector], False)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_PARTS, [value] * PART)
