"""A uKernel's sums by a matrix unit, in LLVM IR: tiles of A times tiles of B, for whole steps.

Sums leave the unit through memory, a few rows at a time as vectors, which take the steps of k that
are left over and the epilogue. Panels of B, and A in rows, are read as vectors read them. The
unit is configured in each call of a uKernel, and released at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import at, const, reserve, scalar_type, slot
from ftuner.codegen.llvm.ir.loops import carried_loop, counted_loop
from ftuner.codegen.llvm.ir.tiles import Tiles
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions, KLoop
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.tile import RegisterTile, UKernel

_MOST_ROWS = 4
"""Rows that leave the unit together."""


class MatrixTile:
    """The tiles of one uKernel: of sums, one for each vector of its width; one of A; and those that
    are left, in turns, of B."""

    def __init__(
        self, builder: ir.IRBuilder, kernel: UKernel, options: CodeOptions, context: ir.Value
    ) -> None:
        unit = options.isa.matrix
        assert unit is not None, f"{options.isa.name} has no matrix unit"
        multiply_add = unit.multiply_add(kernel.types)
        assert multiply_add is not None, f"{options.isa.name} multiplies no tiles of {kernel.types}"
        self._builder, self._kernel = builder, kernel
        vectors = kernel.tile.vectors
        self._steps = unit.steps
        self._of_a, self._of_b = unit.registers - 1, range(vectors, unit.registers - 1)
        assert self._of_b, f"no room for a tile of B beside {vectors} of sums"
        rows = next(r for r in range(_MOST_ROWS, 0, -1) if kernel.mr % r == 0)
        self.rows = replace(kernel, tile=RegisterTile(rows, vectors, 1))
        """As a uKernel, those that leave the unit together."""
        self._loop = KLoop(builder, self.rows, options, context)
        self._a_stride = slot(builder, context, Context.A_STRIDE)
        self._row_bytes = kernel.nr * kernel.types.b.itemsize
        self._vector_bytes = kernel.lanes * kernel.types.b.itemsize
        accumulators = ir.ArrayType(scalar_type(kernel.types.accumulator), kernel.mr * kernel.nr)
        self._sums = reserve(builder, accumulators)
        rows_of_tiles = dict.fromkeys((*range(vectors), self._of_a), kernel.mr)
        rows_of_tiles |= dict.fromkeys(self._of_b, unit.steps)
        self._tiles, self._multiply_add = Tiles(builder), multiply_add
        self._tiles.configure(rows_of_tiles, self._vector_bytes)
        self.release = self._tiles.release

    @contextmanager
    def sums(
        self, tile: ir.Value, a: ir.Value, b: ir.Value, k: ir.Value
    ) -> Iterator[tuple[ir.Value, list[list[ir.Value]]]]:
        """Loop over the tile's rows with their sums, `[row][vector]`, after all steps of k; yields
        the first row, too. The arguments are as in `KLoop.sums`."""
        builder, kernel, vectors = self._builder, self._kernel, self._kernel.tile.vectors
        whole = builder.sdiv(k, const(self._steps))
        left = builder.srem(k, const(self._steps))
        self._multiply(tile, a, b, k, whole)
        steps = builder.mul(whole, const(self._steps))
        a = at(builder, a, builder.mul(steps, const(kernel.types.a.itemsize)))
        b = at(builder, b, builder.mul(steps, const(self._row_bytes)))
        kind = ir.VectorType(scalar_type(kernel.types.accumulator), kernel.lanes)
        size = kernel.lanes * kernel.types.accumulator.itemsize
        with counted_loop(builder, 0, kernel.mr, self.rows.mr) as row:
            first = at(builder, self._sums, builder.mul(row, const(vectors * size)))
            values = [
                builder.load(at(builder, first, i * size), typ=kind, align=size)
                for i in range(self.rows.mr * vectors)
            ]
            a_rows = at(builder, a, builder.mul(row, self._a_stride))
            yield row, self._loop.more([a_rows, b, *values], left)

    def _multiply(
        self, tile: ir.Value, a: ir.Value, b: ir.Value, k: ir.Value, count: ir.Value
    ) -> None:
        """The sums of `count` times the steps of a tile, to memory. What the uKernel fetches for
        later is asked for between them."""
        builder, vectors = self._builder, self._kernel.tile.vectors
        row_bytes = const(self._row_bytes)
        streams = self._loop.later(tile, a, k, self._kernel.mr)
        for v in range(vectors):
            self._tiles.zero(v)

        def step(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *places = given
            places = self._loop.fetched(streams, places, const(self._steps))
            self._tiles.load(self._of_a, a, self._a_stride)
            for v in range(vectors):
                of_b = self._of_b[v % len(self._of_b)]
                self._tiles.load(of_b, at(builder, b, v * self._vector_bytes), row_bytes)
                self._tiles.multiply_add(self._multiply_add, v, self._of_a, of_b)
            a = at(builder, a, self._vector_bytes)
            return [a, at(builder, b, self._steps * self._row_bytes), *places]

        carried_loop(builder, count, [a, b, *(stream.first for stream in streams)], step)
        for v in range(vectors):
            place = at(builder, self._sums, v * self._vector_bytes)
            self._tiles.store(v, place, row_bytes)
