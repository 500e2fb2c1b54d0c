"""The k loop of a uKernel by blocks of few bits, in LLVM IR: each level becomes a float in a
register, is multiplied by all rows of the tile, and the sums of a block are scaled once.

A panel's k step is a block of each of its columns: their first words side by side, then the next
ones, at last the scales, and the zero points if there are some. So k steps of the scales and levels
are read in one stream, and no kernel depends on their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, IRBuilder, const, scalar_type
from ftuner.codegen.llvm.ir.instructions import L1, emitter_of, prefetch
from ftuner.codegen.llvm.ir.vector_arithmetic import splat as every
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions, Multiples
from ftuner.codegen.llvm.kernels.widen import WORD_BYTES, Levels
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.tile import UKernel
from ftuner.core.dtype import FLOAT32, levels_of
from ftuner.core.product import product_types

MOST_CHAINS = 2
"""Sets of sums that take the steps in turns. Derived: widening a vector takes as long as one
multiply-add or longer, which hides half of their latency."""


class BlockLoop:
    def __init__(
        self, builder: IRBuilder, kernel: UKernel, options: CodeOptions, context: ir.Value
    ) -> None:
        self._builder, self._kernel, self._options = builder, kernel, options
        self._multiply_add = emitter_of(options.isa, kernel.types)
        self._vector = ir.VectorType(scalar_type(kernel.types.accumulator), kernel.lanes)
        self._row_bytes = const(kernel.nr * WORD_BYTES)
        rows = builder.slot(context, Context.A_STRIDE)
        self._a_rows = Multiples(builder, rows, kernel.mr)
        self._ahead = const(options.tuning.tail_prefetch_bytes)
        if not kernel.tail:
            self._ahead = builder.slot(context, Context.AHEAD)

    def sums(self, a: ir.Value, b: ir.Value, k: ir.Value) -> list[list[ir.Value]]:
        """The sums of a tile, `[row][vector]`, after `k` blocks. `a`: its first row; `b`: where its
        columns begin in the panel."""
        shape, block = self._kernel.tile, self._kernel.types.b
        zeros = [ir.Constant(self._vector, None)] * (shape.mr * shape.vectors)
        of_block = const(self._kernel.nr * block.itemsize)

        def step(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *sums = given
            a, *sums = self._block(a, b, sums)
            return [a, self._builder.at(b, of_block), *sums]

        _, _, *sums = self._builder.carried_loop(k, [a, b, *zeros], step)
        return [sums[i * shape.vectors : (i + 1) * shape.vectors] for i in range(shape.mr)]

    def _block(self, a: ir.Value, b: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
        """The end of the block's elements of A, and `sums` with its products."""
        builder, kernel = self._builder, self._kernel
        vectors, block = range(kernel.tile.vectors), kernel.types.b
        columns = [
            Levels(builder, builder.at(b, v * kernel.lanes * WORD_BYTES), self._row_bytes, block,
                   self._vector, self._options.isa.permute)
            for v in vectors
        ]  # fmt: skip
        chains = min(kernel.tile.chains, MOST_CHAINS)
        zero, size = ir.Constant(self._vector, None), len(sums)
        bits, _ = levels_of(block)
        of_word = columns[0].of_word

        def words(given: list[ir.Value]) -> list[ir.Value]:
            number, a, *parts = given
            row = builder.at(b, number, self._row_bytes)
            self._ask(builder.at(row, self._ahead))
            packed = [levels.word(number) for levels in columns]
            for step in range(of_word):
                row_of_b = [x.number(p, step) for x, p in zip(columns, packed, strict=True)]
                first = step % chains * size
                for i in range(kernel.mr):
                    place = builder.at(builder.at(a, self._a_rows[i]), step * WORD_BYTES)
                    element = builder.load(place, typ=self._vector.element, align=WORD_BYTES)
                    value = builder.splat(element, kernel.lanes)
                    for v in vectors:
                        here = first + i * len(vectors) + v
                        parts[here] = self._multiply_add(builder, value, row_of_b[v], parts[here])
            after = builder.add(number, 1)
            return [after, builder.at(a, of_word * WORD_BYTES), *parts]

        first = [const(0), a, *[zero] * (size * chains)]
        count = const(block.numbers * bits // (8 * WORD_BYTES))
        _, a, *parts = builder.carried_loop(count, first, words, some=True)
        after = builder.at(b, count.constant * self._row_bytes.constant)
        for _ in range(block.itemsize // WORD_BYTES - count.constant):
            self._ask(builder.at(after, self._ahead))
            after = builder.at(after, self._row_bytes)
        scales = [levels.scale() for levels in columns]
        total = builder.add_chains(parts, size)
        return [a, *(
            self._multiply_add(builder, part, scales[n % len(scales)], old)
            for n, (part, old) in enumerate(zip(total, sums, strict=True))
        )]  # fmt: skip

    def _ask(self, row: ir.Value) -> None:
        """Prefetch the tile's part of a row of words."""
        tile = self._kernel.tile.vectors * self._kernel.lanes * WORD_BYTES
        for line in range(0, tile, self._options.line_bytes):
            prefetch(self._builder, self._builder.at(row, line), L1)


MOST_WORDS = 4
"""Words of a block that are unrolled: all of 32 levels of 4 bits. Assumed."""


class ByteBlockLoop(BlockLoop):
    """Multiplies rows of bytes: four levels of a word at a time become signed bytes, which are
    multiplied as words are. Sums of a block are exact in int32, and then in float32, too."""

    def _block(self, a: ir.Value, b: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
        builder, kernel = self._builder, self._kernel
        vectors, block = range(kernel.tile.vectors), kernel.types.b
        add_scaled = emitter_of(self._options.isa, product_types(FLOAT32))
        bits, has_zeros = levels_of(block)
        of_word, count = 8 // bits, block.numbers * bits // (8 * WORD_BYTES)
        unrolled = math.gcd(count, MOST_WORDS)
        chains, size = min(kernel.tile.chains, MOST_CHAINS), len(sums)
        of_rows = kernel.mr if has_zeros else 0
        integers = ir.VectorType(I32, kernel.lanes)
        mask = every(integers, _word_of((1 << bits) - 1 << (8 - bits)))
        ones = every(integers, _word_of(1))

        def words(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *parts = given
            for number in range(unrolled):
                self._ask(builder.at(b, self._ahead))
                packed = [self._vector_at(b, v, integers) for v in vectors]
                for field in range(of_word):
                    shift = every(integers, 8 - bits * (field + 1))
                    levels = [builder.and_(builder.shl(p, shift), mask) for p in packed]
                    step = number * of_word + field
                    first = step % chains * size
                    for i in range(kernel.mr):
                        place = builder.at(builder.at(a, self._a_rows[i]), step * WORD_BYTES)
                        word = builder.load(place, typ=I32, align=WORD_BYTES)
                        row = builder.splat(word, kernel.lanes)
                        for v in vectors:
                            here = first + i * len(vectors) + v
                            parts[here] = self._multiply_add(builder, row, levels[v], parts[here])
                        if has_zeros:
                            here = chains * size + i
                            parts[here] = self._multiply_add(builder, row, ones, parts[here])
                b = builder.at(b, self._row_bytes)
            return [builder.at(a, unrolled * of_word * WORD_BYTES), b, *parts]

        first = [a, b, *[ir.Constant(integers, None)] * (size * chains + of_rows)]
        a, b, *parts = builder.carried_loop(const(count // unrolled), first, words, some=True)
        self._ask(builder.at(b, self._ahead))
        scales = [self._vector_at(b, v, self._vector) for v in vectors]
        zeros = []
        if has_zeros:
            b = builder.at(b, self._row_bytes)
            self._ask(builder.at(b, self._ahead))
            zeros = [builder.fneg(self._vector_at(b, v, self._vector)) for v in vectors]
        of_row = [builder.sitofp(x, self._vector) for x in parts[size * chains :]]
        total = builder.add_chains(parts[: size * chains], size)
        found = []
        for here, (part, old) in enumerate(zip(total, sums, strict=True)):
            i, v = divmod(here, len(vectors))
            value = builder.sitofp(part, self._vector)
            if has_zeros:
                value = add_scaled(builder, of_row[i], zeros[v], value)
            found.append(add_scaled(builder, value, scales[v], old))
        return [a, *found]

    def _vector_at(self, row: ir.Value, v: int, kind: ir.VectorType) -> ir.Value:
        """The `v`-th vector of a row of words."""
        place = self._builder.at(row, v * self._kernel.lanes * WORD_BYTES)
        return self._builder.load(place, typ=kind, align=WORD_BYTES)


def _word_of(byte: int) -> int:
    """The signed word of four equal bytes."""
    return int.from_bytes(bytes([byte] * WORD_BYTES), "little", signed=True)
