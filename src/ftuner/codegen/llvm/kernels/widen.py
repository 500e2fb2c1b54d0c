"""Widening 8-bit integers, half precision and levels of few bits to floats: a vector in a uKernel,
or a panel before its uKernels.

Signature of the compiled function::

    void widen(source, target, steps, width)

where `width`, the columns of the panel, is a multiple of the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, PTR, VOID, IRBuilder, begun, const, scalar_type
from ftuner.codegen.llvm.ir.half_precision import WIDENED
from ftuner.codegen.llvm.ir.vector_arithmetic import splat
from ftuner.codegen.llvm.native.symbols import widen_symbol
from ftuner.core.dtype import BFLOAT16, FLOAT16, INT8, DType, codes_of, levels_of
from ftuner.core.product import product_types
from ftuner.hardware.isa import InstructionSet

WORD_BYTES = 4
"""Blocks are of words."""
SIGNIFICAND, EXPONENT_BIAS = 23, 127
"""Of float32: stored bits of the significand, and the exponent field of 1."""
Conversion = Callable[[IRBuilder, ir.Value, ir.VectorType], ir.Value]
WIDEN_TYPE = ir.FunctionType(VOID, [PTR, PTR, I64, I64])


def _from_int8(builder: IRBuilder, narrow: ir.Value, vector: ir.VectorType) -> ir.Value:
    return builder.sitofp(builder.sext(narrow, ir.VectorType(I32, vector.count)), vector)


def _from_float16(builder: IRBuilder, words: ir.Value, vector: ir.VectorType) -> ir.Value:
    halves = ir.VectorType(ir.HalfType(), vector.count)
    return builder.fpext(builder.bitcast(words, halves), vector)


def _from_words(dtype: DType) -> Conversion:
    """The conversion by integer arithmetic."""

    def convert(builder: IRBuilder, words: ir.Value, vector: ir.VectorType) -> ir.Value:
        found = WIDENED[dtype](builder, words)
        return found if found.type == vector else builder.fpext(found, vector)

    return convert


CONVERSIONS: Mapping[DType, Conversion] = {
    INT8: _from_int8,
    FLOAT16: _from_words(FLOAT16),
    BFLOAT16: _from_words(BFLOAT16),
}
"""How a vector of a dtype, in memory as integers, becomes one of floats."""
CONVERTING: Mapping[DType, Conversion] = {**CONVERSIONS, FLOAT16: _from_float16}
"""The same where the instruction set has a conversion of float16. Where it has none, LLVM would
call a function of a runtime library."""


def widened(
    builder: IRBuilder, place: ir.Value, dtype: DType, vector: ir.VectorType, converts_float16: bool
) -> ir.Value:
    """Elements of `dtype` from `place` on as a vector of floats."""
    kind = ir.VectorType(ir.IntType(dtype.bits), vector.count)
    narrow = builder.load(place, typ=kind, align=dtype.itemsize)
    conversions = CONVERTING if converts_float16 else CONVERSIONS
    return conversions[dtype](builder, narrow, vector)


def emit(module: ir.Module, wide: DType, narrow: DType, lanes: int, isa: InstructionSet) -> None:
    """Add the function that widens elements of `narrow` to `wide` to a module."""
    types = product_types(wide, narrow)
    builder, (source, target, steps, width) = begun(module, WIDEN_TYPE, widen_symbol(types))
    source.add_attribute("noalias")
    target.add_attribute("noalias")
    dtype = types.accumulator
    vector = ir.VectorType(scalar_type(dtype), lanes)
    if narrow.kind == "block":
        _widen_blocks(builder, narrow, vector, source, target, steps, width, isa.permute)
    else:
        with builder.counted_loop(0, builder.mul(steps, width), lanes) as first:
            given = builder.at(source, first, narrow.itemsize)
            value = widened(builder, given, narrow, vector, isa.converts_float16)
            place = builder.at(target, first, dtype.itemsize)
            builder.store(value, place, align=dtype.itemsize)
    builder.ret_void()


def _widen_blocks(
    builder: IRBuilder, narrow: DType, vector: ir.VectorType, source: ir.Value,
    target: ir.Value, steps: ir.Value, width: ir.Value, permute: str,
) -> None:  # fmt: skip
    """Write each block's elements, one k step after the other."""
    row_bytes = builder.mul(width, WORD_BYTES)
    with (
        builder.counted_loop(0, steps) as step,
        builder.counted_loop(0, width, vector.count) as column,
    ):
        offset = builder.mul(column, WORD_BYTES)
        block = builder.mul(builder.mul(step, width), narrow.itemsize)
        levels = Levels(builder, builder.at(source, builder.add(block, offset)), row_bytes, narrow,
                        vector, permute)  # fmt: skip
        scale = levels.scale()
        wide = builder.mul(builder.mul(step, row_bytes), narrow.numbers)
        first = builder.at(target, builder.add(wide, offset))
        rows = const(levels.of_word)
        with builder.counted_loop(0, levels.words) as word:
            bits = levels.word(word)
            place = builder.at(first, builder.mul(word, rows), row_bytes)
            for number in range(levels.of_word):
                value = builder.fmul(levels.number(bits, number), scale)
                builder.store(value, builder.at(place, row_bytes, number), align=WORD_BYTES)


class Levels:
    """A vector of blocks, which are side by side: `place` is that of the first words, and the next
    ones are `row_bytes` after them."""

    def __init__(
        self, builder: IRBuilder, place: ir.Value, row_bytes: ir.Value, block: DType,
        vector: ir.VectorType, permute: str,
    ) -> None:  # fmt: skip
        self._codes, self._permute = codes_of(block), permute
        self._builder, self._place, self._row_bytes = builder, place, row_bytes
        self._bits, zeros = levels_of(block)
        self._vector, self._integers = vector, ir.VectorType(I32, vector.count)
        self.of_word = 8 * WORD_BYTES // self._bits
        """Levels of a word."""
        self.words = block.numbers // self.of_word
        """Words of levels."""
        self._zero = self._row(const(self.words + 1), vector) if zeros else None
        self._table = None
        if self._codes and not permute:
            table = ir.ArrayType(vector.element, len(self._codes))
            self._table = builder.variable(ir.Constant(table, self._codes), 64)

    def _row(self, number: ir.Value, kind: ir.VectorType) -> ir.Value:
        builder = self._builder
        place = builder.at(self._place, number, self._row_bytes)
        return builder.load(place, typ=kind, align=WORD_BYTES)

    def scale(self) -> ir.Value:
        """The scales of the blocks."""
        return self._row(const(self.words), self._vector)

    def word(self, number: ir.Value) -> ir.Value:
        """A word of each block's levels."""
        return self._row(number, self._integers)

    def number(self, words: ir.Value, number: int) -> ir.Value:
        """A level of each of some words minus the zero point, exact in float32.

        The level's bits become low bits of the significand of a power of two, which is subtracted
        again with the zero point: three operations at most, and no conversion."""
        builder, first = self._builder, number * self._bits
        if self._codes:
            return self._code(builder.lshr(words, self._all(first)))
        if first + self._bits > SIGNIFICAND:
            # One shift serves all levels of the upper half.
            words = builder.lshr(words, self._all(8 * WORD_BYTES // 2))
            first -= 8 * WORD_BYTES // 2
        level = builder.and_(words, self._all(((1 << self._bits) - 1) << first))
        power = 2.0 ** (SIGNIFICAND - first)
        exponent = SIGNIFICAND - first + EXPONENT_BIAS
        level = builder.or_(level, self._all(exponent << SIGNIFICAND))
        level = builder.bitcast(level, self._vector)
        if self._zero is None:
            return builder.fsub(level, splat(self._vector, power + (1 << (self._bits - 1))))
        return builder.fsub(builder.fsub(level, splat(self._vector, power)), self._zero)

    def _code(self, numbers: ir.Value) -> ir.Value:
        """Look up the number that the low four bits of each lane stand for."""
        builder, vector, codes = self._builder, self._vector, self._codes
        lanes, element = vector.count, vector.element
        if self._table is not None:
            found = ir.Constant(vector, ir.Undefined)
            low = builder.and_(numbers, self._all(len(codes) - 1))
            for lane in range(lanes):
                number = builder.zext(builder.extract_element(low, ir.Constant(I32, lane)), I64)
                place = builder.gep(self._table, [number], source_etype=element)
                code = builder.load(place, typ=element, align=WORD_BYTES)
                found = builder.insert_element(found, code, ir.Constant(I32, lane))
            return found
        tables = (ir.Constant(vector, codes[n : n + lanes]) for n in range(0, len(codes), lanes))
        found = [builder.external(self._permute, vector, table, numbers) for table in tables]
        if len(found) == 1:
            return found[0]
        # The sign of a lane says which half of the table it is in.
        signs = builder.shl(numbers, self._all(8 * WORD_BYTES - self._bits))
        upper = builder.icmp_signed("<", signs, self._all(0))
        return builder.select(upper, found[1], found[0])

    def _all(self, bits: int) -> ir.Constant:
        return splat(self._integers, bits)
