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
from itertools import islice
from typing import NamedTuple

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import IRBuilder, const, scalar_type
from ftuner.codegen.llvm.ir.instructions import Tiles, TileShape
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_lanes
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.kernels.k_loop import CodeOptions, KLoop
from ftuner.codegen.llvm.kernels.window import WindowRows
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.tile import RegisterTile, UKernel

_MOST_ROWS = 4
"""Rows that leave the unit together."""
_COPIES = 2
"""Tiles of A that are copied together in turns: one is read while the next is written."""


class _Operands(NamedTuple):
    """The numbers of tiles of A, one below the other, and of B, which its vectors take in turns."""

    a: list[int]
    b: list[int]


class MatrixTile:
    """The tiles of one uKernel. Registers: sums, one for each vector of its width and each tile of
    rows; those of A and of B; and for one tile of rows, one of each for the steps of k that are
    left over. Several tiles of rows leave no room for these: such steps are copied, with zeros
    after them, to memory from where whole tiles are loaded."""

    def __init__(
        self, builder: IRBuilder, kernel: UKernel, options: CodeOptions, context: ir.Value,
        k: ir.Value, window: WindowRows | None,
    ) -> None:  # fmt: skip
        unit = options.isa.matrix
        assert unit is not None, f"{options.isa.name} has no matrix unit"
        row = unit.multiply_add(kernel.types)
        assert row is not None, f"{options.isa.name} multiplies no tiles of {kernel.types}"
        self._builder, self._context, self._kernel, self._row = builder, context, kernel, row
        types, vectors = kernel.types, kernel.tile.vectors
        heights = [min(unit.rows, kernel.mr - row) for row in range(0, kernel.mr, unit.rows)]
        self._rows, several = unit.rows, len(heights) > 1
        numbers = iter(range(unit.registers))
        self._of_sums = list(islice(numbers, len(heights) * vectors))
        self._whole = _Operands(
            list(islice(numbers, len(heights))), list(islice(numbers, vectors if several else 1))
        )
        self._rest = None if several else _Operands([next(numbers)], [next(numbers)])
        """The tiles of the steps of k that fill no tile."""
        self._item_bytes, self._steps = types.a.itemsize, unit.steps
        self._row_bytes, self._vector_bytes = kernel.nr * types.b.itemsize, options.isa.vector_bytes
        self._a_stride = builder.slot(context, Context.A_STRIDE)
        self._window, self._loop = window, None
        if window is None:
            self._loop = KLoop(builder, kernel, options, context)
        else:
            copies = ir.ArrayType(scalar_type(types.a), _COPIES * kernel.mr * unit.steps)
            self._copies = builder.reserve(copies)
        sums = ir.ArrayType(scalar_type(types.accumulator), kernel.mr * vectors * kernel.lanes)
        self._sums = builder.reserve(sums)
        piece = k if window is None else window.run
        self._count = builder.udiv(piece, unit.steps)
        self._left = builder.urem(piece, unit.steps)
        self._tiles = Tiles(builder)
        row_bytes, steps = const(self._vector_bytes), const(unit.steps)
        shapes = {
            number: TileShape(const(heights[place // vectors]), row_bytes)
            for place, number in enumerate(self._of_sums)
        }
        for number, rows in zip(self._whole.a, heights, strict=True):
            shapes[number] = TileShape(const(rows), row_bytes)
        shapes |= dict.fromkeys(self._whole.b, TileShape(steps, row_bytes))
        if self._rest is None:
            self._copied = [
                builder.reserve(ir.ArrayType(scalar_type(types.a), rows * unit.steps))
                for rows in (kernel.mr, vectors * unit.steps)
            ]
        else:
            some = builder.maximum(self._left, 1)
            of_a = TileShape(const(kernel.mr), builder.mul(some, self._item_bytes))
            shapes |= {self._rest.a[0]: of_a, self._rest.b[0]: TileShape(some, row_bytes)}
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
        for number in self._of_sums:
            self._tiles.zero(number)
        if self._window is None:
            self._rows_in_place(tile, a, b, k)
        else:
            self._through_window(self._window, a, b, k)
        row_bytes = vectors * self._vector_bytes
        for place, number in enumerate(self._of_sums):
            row, v = place // vectors * self._rows, place % vectors
            offset = row * row_bytes + v * self._vector_bytes
            self._tiles.store(number, builder.at(self._sums, offset), const(row_bytes))
        kind = ir.VectorType(scalar_type(kernel.types.accumulator), kernel.lanes)
        with builder.counted_loop(0, kernel.mr, self.rows.mr) as row:
            first = builder.at(self._sums, row, row_bytes)
            yield (
                row,
                [
                    [
                        builder.load(
                            builder.at(first, i * row_bytes + v * self._vector_bytes),
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
        ahead = builder.slot(self._context, Context.AHEAD)
        ahead = builder.maximum(ahead, self._steps * self._row_bytes)

        def step(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *places = given
            if asks is not None:
                with builder.if_then(asks, likely=False):
                    for row in range(self._steps):
                        loop.ask(builder.at(b, row * self._row_bytes), ahead)
            places = loop.fetched(streams, places, const(self._steps))
            self._multiply(self._whole, Rows(a, self._a_stride), self._panel(b))
            a = builder.at(a, self._steps * self._item_bytes)
            return [a, builder.at(b, self._steps * self._row_bytes), *places]

        firsts = [stream.first for stream in streams]
        a, b, *_ = builder.carried_loop(self._count, [a, b, *firsts], step)
        with builder.if_then(self._is_left()):
            if self._rest is None:
                self._multiply(self._whole, *self._copied_rest(a, b))
            else:
                self._multiply(self._rest, Rows(a, self._a_stride), self._panel(b))

    def _through_window(self, window: WindowRows, a: ir.Value, b: ir.Value, k: ir.Value) -> None:
        """Add the products of all elements of the window, each of which is a run of k steps."""
        builder, rest = self._builder, self._rest
        assert rest is not None, "windows are read by one tile of rows"
        run_of_b = builder.mul(window.run, self._row_bytes)
        left = lanes_below(builder, self._left, self._kernel.lanes)

        def element(given: list[ir.Value]) -> list[ir.Value]:
            (b,) = given
            place, outside = window.point(a)

            def step(given: list[ir.Value]) -> list[ir.Value]:
                place, b, copy = given
                self._copy(window, place, copy, None)
                self._multiply(self._whole, Rows(copy, const(self._vector_bytes)), self._panel(b))
                return [
                    builder.at(place, self._vector_bytes),
                    builder.at(b, self._steps * self._row_bytes),
                    self._other(copy),
                ]

            count = builder.select(outside, 0, self._count)
            place, rest_of_b, copy = builder.carried_loop(count, [place, b, self._copies], step)
            with builder.if_then(builder.and_(self._is_left(), builder.not_(outside))):
                self._copy(window, place, copy, left)
                rows = Rows(copy, const(self._vector_bytes))
                self._multiply(rest, rows, self._panel(rest_of_b))
            return [builder.at(b, run_of_b)]

        builder.carried_loop(builder.udiv(k, window.run), [b], element)

    def _is_left(self) -> ir.Value:
        return self._builder.icmp_signed("!=", self._left, 0)

    def _other(self, copy: ir.Value) -> ir.Value:
        """The other one of the two places for a tile of A."""
        builder = self._builder
        second = builder.at(self._copies, self._kernel.mr * self._vector_bytes)
        return builder.select(builder.icmp_unsigned("==", copy, second), self._copies, second)

    def _copy(
        self, window: WindowRows, place: ir.Value, copy: ir.Value, mask: ir.Value | None
    ) -> None:
        """Copy a tile of A together, from where the window is: the lanes of `mask`, or all."""
        builder, kernel = self._builder, self._kernel
        vector = ir.VectorType(scalar_type(kernel.types.a), kernel.lanes)
        for i in range(kernel.mr):
            address = builder.at(place, window[i])
            value = load_lanes(builder, address, vector, self._item_bytes, mask)
            row = builder.at(copy, i * self._vector_bytes)
            builder.store(value, row, align=self._vector_bytes)

    def _panel(self, b: ir.Value) -> Rows:
        return Rows(b, const(self._row_bytes))

    def _multiply(self, tiles: _Operands, a: Rows, b: Rows) -> None:
        """Add the products of the tiles at `a` and those at `b` to the sums."""
        builder, vectors = self._builder, self._kernel.tile.vectors
        for i, number in enumerate(tiles.a):
            below = builder.mul(a.stride, i * self._rows)
            self._tiles.load(number, builder.at(a.first, below), a.stride)
        for v in range(vectors):
            of_b = tiles.b[v % len(tiles.b)]
            self._tiles.load(of_b, builder.at(b.first, v * self._vector_bytes), b.stride)
            for i, of_a in enumerate(tiles.a):
                self._tiles.multiply_add(self._row, self._of_sums[i * vectors + v], of_a, of_b)

    def _copied_rest(self, a: ir.Value, b: ir.Value) -> tuple[Rows, Rows]:
        """Copies of the steps of k that fill no tile, with zeros after them."""
        builder, kernel, size = self._builder, self._kernel, self._vector_bytes
        of_a, of_b = self._copied
        vector = ir.VectorType(scalar_type(kernel.types.a), kernel.lanes)
        exists = lanes_below(builder, self._left, kernel.lanes)
        with builder.counted_loop(0, kernel.mr) as row:
            place = builder.at(a, row, self._a_stride)
            value = load_lanes(builder, place, vector, self._item_bytes, exists)
            builder.store(value, builder.at(of_a, row, size), align=size)
        rows = Rows(of_b, const(kernel.tile.vectors * size))
        zero = ir.Constant(vector, None)
        with builder.counted_loop(0, self._steps) as step:
            target = builder.at(of_b, step, rows.stride)
            for v in range(kernel.tile.vectors):
                builder.store(zero, builder.at(target, v * size), align=size)
        with builder.counted_loop(0, self._left) as step:
            source = builder.at(b, step, self._row_bytes)
            target = builder.at(of_b, step, rows.stride)
            for v in range(kernel.tile.vectors):
                value = builder.load(
                    builder.at(source, v * size), typ=vector, align=self._item_bytes
                )
                builder.store(value, builder.at(target, v * size), align=size)
        return Rows(of_a, const(size)), rows
