"""A uKernel's sums by a matrix unit, in LLVM IR: tiles of A times tiles of B.

Panels of B, and A in rows, are read as vectors read them. Where a row of A is read through a
window, each tile of A is copied together first, two of them in turns. The steps of k that fill no
tile are a smaller one. Sums leave the unit through memory, from where they go as vectors through
the epilogue, a few rows at a time. The unit is configured in each call of a uKernel, and released
at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import at, const, maximum, reserve, scalar_type, slot
from ftuner.codegen.llvm.ir.instructions import Tiles, TileShape
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_lanes
from ftuner.codegen.llvm.ir.loops import carried_loop, counted_loop
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions, KLoop
from ftuner.codegen.llvm.kernels.window import WindowRows
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.tile import RegisterTile, UKernel

_MOST_ROWS = 4
"""Rows that leave the unit together."""
_COPIES = 2
"""Tiles of A that are copied together in turns: one is read while the next is written."""


class MatrixTile:
    """The tiles of one uKernel. Registers: sums, one for each vector of its width and each tile of
    rows; those of A and of B; and for one tile of rows, one of each for the steps of k that are
    left over. Several tiles of rows leave no room for these: such steps are copied, with zeros
    after them, to memory from where whole tiles are loaded."""

    def __init__(
        self, builder: ir.IRBuilder, kernel: UKernel, options: CodeOptions, context: ir.Value,
        k: ir.Value, window: WindowRows | None,
    ) -> None:  # fmt: skip
        unit = options.isa.matrix
        assert unit is not None, f"{options.isa.name} has no matrix unit"
        row = unit.multiply_add(kernel.types)
        assert row is not None, f"{options.isa.name} multiplies no tiles of {kernel.types}"
        self._builder, self._context, self._kernel, self._row = builder, context, kernel, row
        types, vectors = kernel.types, kernel.tile.vectors
        heights = [min(unit.rows, kernel.mr - row) for row in range(0, kernel.mr, unit.rows)]
        self._rows = unit.rows
        of_sums = len(heights) * vectors
        self._several = len(heights) > 1
        self._a = range(of_sums, of_sums + len(heights))
        self._b = range(self._a.stop, self._a.stop + (vectors if self._several else 1))
        self._rest = (self._b.stop, self._b.stop + 1)
        """The tiles of A and of B, and those of the steps that fill no tile."""
        used = self._b.stop + (0 if self._several else 2)
        assert used <= unit.registers, f"{used} tiles, of {unit.registers} registers"
        self._item_bytes, self._steps = types.a.itemsize, unit.steps
        self._row_bytes, self._vector_bytes = kernel.nr * types.b.itemsize, options.isa.vector_bytes
        self._a_stride = slot(builder, context, Context.A_STRIDE)
        self._window, self._loop = window, None
        if window is None:
            self._loop = KLoop(builder, kernel, options, context)
        else:
            copies = ir.ArrayType(scalar_type(types.a), _COPIES * kernel.mr * unit.steps)
            self._copies = reserve(builder, copies)
        sums = ir.ArrayType(scalar_type(types.accumulator), kernel.mr * vectors * kernel.lanes)
        self._sums = reserve(builder, sums)
        piece = k if window is None else window.run
        self._count = builder.udiv(piece, const(unit.steps))
        self._left = builder.urem(piece, const(unit.steps))
        self._tiles = Tiles(builder)
        row_bytes, steps = const(self._vector_bytes), const(unit.steps)
        shapes = {
            i * vectors + v: TileShape(const(rows), row_bytes)
            for i, rows in enumerate(heights)
            for v in range(vectors)
        }
        shapes |= {a: TileShape(const(h), row_bytes) for a, h in zip(self._a, heights, strict=True)}
        shapes |= {b: TileShape(steps, row_bytes) for b in self._b}
        if self._several:
            self._rests = [
                reserve(builder, ir.ArrayType(scalar_type(types.a), rows * unit.steps))
                for rows in (kernel.mr, vectors * unit.steps)
            ]
        else:
            some = maximum(builder, self._left, const(1))
            of_a = TileShape(const(kernel.mr), builder.mul(some, const(self._item_bytes)))
            shapes |= {self._rest[0]: of_a, self._rest[1]: TileShape(some, row_bytes)}
        self._tiles.configure(shapes)
        self.release = self._tiles.release
        height = next(r for r in range(_MOST_ROWS, 0, -1) if kernel.mr % r == 0)
        self.rows = replace(kernel, tile=RegisterTile(height, vectors, 1))
        """A uKernel of the rows that leave the unit together."""

    @contextmanager
    def sums(
        self, tile: ir.Value, a: ir.Value, b: ir.Value, k: ir.Value
    ) -> Iterator[tuple[ir.Value, list[list[ir.Value]]]]:
        """Loop over the tile's rows with their sums, `[row][vector]`, after all steps of k; yields
        the first row, too. The arguments are as in `KLoop.sums`."""
        builder, kernel, vectors = self._builder, self._kernel, self._kernel.tile.vectors
        for sums in range(self._a.start):
            self._tiles.zero(sums)
        if self._window is None:
            self._rows_in_place(tile, a, b, k)
        else:
            self._through_window(self._window, a, b, k)
        row_bytes = vectors * self._vector_bytes
        for sums in range(self._a.start):
            row, v = sums // vectors * self._rows, sums % vectors
            place = at(builder, self._sums, row * row_bytes + v * self._vector_bytes)
            self._tiles.store(sums, place, const(row_bytes))
        kind = ir.VectorType(scalar_type(kernel.types.accumulator), kernel.lanes)
        with counted_loop(builder, 0, kernel.mr, self.rows.mr) as row:
            first = at(builder, self._sums, builder.mul(row, const(row_bytes)))
            yield (
                row,
                [
                    [
                        builder.load(
                            at(builder, first, i * row_bytes + v * self._vector_bytes),
                            typ=kind, align=self._vector_bytes,
                        )
                        for v in range(vectors)
                    ]
                    for i in range(self.rows.mr)
                ],
            )  # fmt: skip

    def _rows_in_place(self, tile: ir.Value, a: ir.Value, b: ir.Value, k: ir.Value) -> None:
        """Add the products of rows in memory. What the uKernel fetches for later is asked for
        between the steps."""
        builder, loop = self._builder, self._loop
        assert loop is not None
        streams, asks = loop.later(tile, a, k), loop.asks(tile)
        ahead = slot(builder, self._context, Context.AHEAD)
        ahead = maximum(builder, ahead, const(self._steps * self._row_bytes))

        def step(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *places = given
            if asks is not None:
                with builder.if_then(asks, likely=False):
                    for row in range(self._steps):
                        loop.ask(at(builder, b, row * self._row_bytes), ahead)
            places = loop.fetched(streams, places, const(self._steps))
            self._multiply(a, self._a_stride, b)
            a = at(builder, a, self._steps * self._item_bytes)
            return [a, at(builder, b, self._steps * self._row_bytes), *places]

        firsts = [stream.first for stream in streams]
        a, b, *_ = carried_loop(builder, self._count, [a, b, *firsts], step)
        with builder.if_then(self._is_left()):
            self._multiply_rest(a, b)

    def _through_window(self, window: WindowRows, a: ir.Value, b: ir.Value, k: ir.Value) -> None:
        """Add the products of all elements of the window, each of which is a run of k steps."""
        builder = self._builder
        run_of_b = builder.mul(window.run, const(self._row_bytes))
        left = lanes_below(builder, self._left, self._kernel.lanes)

        def element(given: list[ir.Value]) -> list[ir.Value]:
            (b,) = given
            place, outside = window.point(a)

            def step(given: list[ir.Value]) -> list[ir.Value]:
                place, b, copy = given
                self._copy(window, place, copy, None)
                self._multiply(copy, const(self._vector_bytes), b)
                return [
                    at(builder, place, self._vector_bytes),
                    at(builder, b, self._steps * self._row_bytes),
                    self._other(copy),
                ]

            count = builder.select(outside, const(0), self._count)
            place, rest_of_b, copy = carried_loop(builder, count, [place, b, self._copies], step)
            with builder.if_then(builder.and_(self._is_left(), builder.not_(outside))):
                self._copy(window, place, copy, left)
                self._multiply_in(self._rest, copy, const(self._vector_bytes), rest_of_b)
            return [at(builder, b, run_of_b)]

        carried_loop(builder, builder.udiv(k, window.run), [b], element)

    def _is_left(self) -> ir.Value:
        return self._builder.icmp_signed("!=", self._left, const(0))

    def _other(self, copy: ir.Value) -> ir.Value:
        """The other one of the two places for a tile of A."""
        builder = self._builder
        second = at(builder, self._copies, self._kernel.mr * self._vector_bytes)
        return builder.select(builder.icmp_unsigned("==", copy, second), self._copies, second)

    def _copy(
        self, window: WindowRows, place: ir.Value, copy: ir.Value, mask: ir.Value | None
    ) -> None:
        """Copy a tile of A together, from where the window is: the lanes of `mask`, or all."""
        builder, kernel = self._builder, self._kernel
        vector = ir.VectorType(scalar_type(kernel.types.a), kernel.lanes)
        for i in range(kernel.mr):
            address = at(builder, place, window[i])
            value = load_lanes(builder, address, vector, self._item_bytes, mask)
            row = at(builder, copy, i * self._vector_bytes)
            builder.store(value, row, align=self._vector_bytes)

    def _multiply(self, a: ir.Value, a_stride: ir.Value, b: ir.Value) -> None:
        """Add the product of the tiles at `a` and those at `b` to the sums."""
        if not self._several:
            self._multiply_in((self._a[0], self._b[0]), a, a_stride, b)
            return
        builder, vectors = self._builder, self._kernel.tile.vectors
        below = builder.mul(a_stride, const(self._rows))
        for v, of_b in enumerate(self._b):
            place = at(builder, b, v * self._vector_bytes)
            self._tiles.load(of_b, place, const(self._row_bytes))
        for i, of_a in enumerate(self._a):
            self._tiles.load(of_a, a, a_stride)
            a = at(builder, a, below)
            for v, of_b in enumerate(self._b):
                self._tiles.multiply_add(self._row, i * vectors + v, of_a, of_b)

    def _multiply_in(
        self, of_a_and_b: tuple[int, int], a: ir.Value, a_stride: ir.Value, b: ir.Value
    ) -> None:
        """The same of one tile of A and, one after the other, those of B, in the tiles given."""
        builder, (of_a, of_b) = self._builder, of_a_and_b
        self._tiles.load(of_a, a, a_stride)
        for v in range(self._kernel.tile.vectors):
            place = at(builder, b, v * self._vector_bytes)
            self._tiles.load(of_b, place, const(self._row_bytes))
            self._tiles.multiply_add(self._row, v, of_a, of_b)

    def _multiply_rest(self, a: ir.Value, b: ir.Value) -> None:
        """Add the products of the steps that fill no tile."""
        builder, kernel = self._builder, self._kernel
        if not self._several:
            self._multiply_in(self._rest, a, self._a_stride, b)
            return
        of_a, of_b = self._rests
        vector = ir.VectorType(scalar_type(kernel.types.a), kernel.lanes)
        mask = lanes_below(builder, self._left, kernel.lanes)
        with counted_loop(builder, 0, kernel.mr, 1) as row:
            place = at(builder, a, builder.mul(row, self._a_stride))
            value = load_lanes(builder, place, vector, self._item_bytes, mask)
            row_bytes = builder.mul(row, const(self._vector_bytes))
            builder.store(value, at(builder, of_a, row_bytes), align=self._vector_bytes)
        everywhere = lanes_below(builder, const(kernel.lanes), kernel.lanes)
        vectors = kernel.tile.vectors
        with counted_loop(builder, 0, self._steps, 1) as step:
            exists = builder.icmp_signed("<", step, self._left)
            mask = builder.select(exists, everywhere, ir.Constant(everywhere.type, None))
            for v in range(vectors):
                offset = builder.add(
                    builder.mul(step, const(self._row_bytes)), const(v * self._vector_bytes)
                )
                value = load_lanes(builder, at(builder, b, offset), vector, self._item_bytes, mask)
                offset = builder.mul(step, const(vectors * self._vector_bytes))
                place = at(builder, of_b, builder.add(offset, const(v * self._vector_bytes)))
                builder.store(value, place, align=self._vector_bytes)
        for v, tile in enumerate(self._b):
            self._tiles.load(
                tile, at(builder, of_b, v * self._vector_bytes), const(vectors * self._vector_bytes)
            )
        for i, tile in enumerate(self._a):
            self._tiles.load(
                tile,
                at(builder, of_a, i * self._rows * self._vector_bytes),
                const(self._vector_bytes),
            )
            for v, other in enumerate(self._b):
                self._tiles.multiply_add(self._row, i * vectors + v, tile, other)
