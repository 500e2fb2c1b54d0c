"""Emits the kernel of Winograd's products of tiles, and what it shares with the kernel along one
axis: a worker's memory, vectors of channels, and the epilogue.

A task is a block of tiles. Their inputs are transformed to one matrix of tiles and channels for
each element of a tile. Then, panel by panel of the result's channels, the weight is transformed,
block by block of x's channels, uKernels multiply both, and the sums are transformed back. What
passes between these stages stays in L2, and no transformed weight takes memory of its own.

`buffers` holds x, the operands of the epilogue, and the result; `dims` the slots of
`cpu_record.Winograd`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I64, const
from ftuner.codegen.llvm.ir.instructions import EMITTERS
from ftuner.codegen.llvm.ir.lanes import VectorRows
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.kernels.step import COVER_BYTES, ProductKernel
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr, operands
from ftuner.core.winograd import WINDOW
from ftuner.schedules.winograd.cpu_record import Winograd, WinogradCommon

Panel = Callable[[ir.Value, ir.Value, ir.Value], None]
"""Does the panel from a column on: its columns, and its cover."""


class WinogradEmission(ProductKernel):
    """The state of the emission of one kernel, at the begin of its function."""

    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, epilogue: Expr, lanes: int, fused: bool,
        operands_slot: int,
    ) -> None:  # fmt: skip
        """`operands_slot`: the first slot of the distances between rows of operands."""
        super().__init__(module, symbol)
        self._epilogue, self._lanes, self._fused = epilogue, lanes, fused
        self._multiply_add = EMITTERS["fused" if fused else "separate"]
        self._size = dtype.itemsize
        self._rows = VectorRows(self, dtype, lanes)
        self._vector, self._load, self._store = self._rows.vector, self._rows.load, self._rows.store
        self._operands, self._operands_slot = operands(epilogue), operands_slot
        self._x, *self._read, self._out = (
            self.pointer_slot(self.buffers, i) for i in range(2 + len(self._operands))
        )
        own = self.pointer_slot(self.dims, WinogradCommon.WORKSPACE)
        own = self.at(own, self.worker, self.dim(WinogradCommon.WORKER_BYTES))
        self._transformed = own
        """The transformed inputs of a task."""
        self._sums = self.at(own, self.dim(WinogradCommon.SUMS_OFFSET))
        self._patch = self.at(own, self.dim(WinogradCommon.PATCH_OFFSET))
        self.begin_products()

    def _covers(self, rows: ir.Value) -> ir.Value:
        """The segments that cover some rows by full panels, and then by the last one."""
        slots = WinogradCommon.COVERS, WinogradCommon.TAIL_COVERS
        tables = self.pointer_slots(self.dims, *slots)
        return self.covers(tables, rows)

    def _number(self, value: float) -> ir.Constant:
        return elements.number(self._vector, value)

    def _copy_pixel(
        self, inside: ir.Value, source: ir.Value, target: ir.Value, channels: ir.Value
    ) -> None:
        """Copy the channels of a pixel, or clear those of one that is not inside x."""
        bounds = const(0), channels
        with self.if_else(inside) as (there, outside):
            with there:
                self._rows.copy(bounds, source, target)
            with outside:
                self._rows.clear(bounds, target)

    def _panels(self, panel: Panel, covers: ir.Value) -> None:
        """All panels of the result's channels, of which the last one may be narrower."""
        nr, columns = self.dim(WinogradCommon.PANEL), self.dim(WinogradCommon.OUT_CHANNELS)
        with self.counted_loop(0, columns, nr) as column:
            left = self.sub(columns, column)
            full = self.icmp_signed(">=", left, nr)
            cover = self.select(full, covers, self.at(covers, COVER_BYTES))
            panel(column, self.select(full, nr, left), cover)

    def _added(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """`x * y + z`."""
        return self._multiply_add(self, x, y, z)

    def _finished(
        self, value: ir.Value, position: ir.Value, offset: ir.Value, mask: ir.Value | None
    ) -> ir.Value:
        """The epilogue of a vector at an output position; `offset`: bytes to its first channel."""
        env = {ACCUMULATOR.name: value}
        for index, operand in enumerate(self._operands):
            base = self._read[index]
            if operand.kind != "column":
                rows = self.mul(position, self.dim(self._operands_slot + index))
                base = self.at(base, rows)
            if operand.kind == "row":
                number = self.load(base, typ=self._vector.element, align=self._size)
                env[operand.name] = self.splat(number, self._lanes)
            else:
                env[operand.name] = self._load(self.at(base, offset), mask)
        return elements.emit(self, self._epilogue, env, self._fused)


Vectors = list[ir.Value]


def emit(
    module: ir.Module, symbol: str, dtype: DType, outputs: int, epilogue: Expr, lanes: int,
    fused: bool,
) -> None:  # fmt: skip
    """Add the kernel for tiles of `outputs` by `outputs` to a module."""
    _Emission(module, symbol, dtype, outputs, epilogue, lanes, fused).emit()


class _Emission(WinogradEmission):
    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, outputs: int, epilogue: Expr,
        lanes: int, fused: bool,
    ) -> None:  # fmt: skip
        super().__init__(module, symbol, dtype, epilogue, lanes, fused, Winograd.OPERANDS)
        self._outputs, self._inputs = outputs, outputs + WINDOW - 1
        own, offset = self._transformed, self.dim(Winograd.WEIGHT_OFFSET)
        self._weight = self.at(own, offset)

    def emit(self) -> None:
        blocks, tiles = self.dim(Winograd.BLOCKS), self.dim(Winograd.TILES)
        with self.counted_loop(self.begin, self.end) as task:
            first, end = self.partition_bounds(tiles, blocks, task)
            count = self.sub(end, first)
            with self.counted_loop(0, count) as tile:
                self._transform_inputs(self.add(first, tile), tile)
            self._panels(partial(self._panel, first, count), self._covers(count))
        self.ret_void()

    def _place(self, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The image of a tile, and its first output row and position."""
        columns, rows = self.dim(Winograd.TILE_COLUMNS), self.dim(Winograd.TILE_ROWS)
        x = self.urem(number, columns)
        number = self.udiv(number, columns)
        y, image = self.urem(number, rows), self.udiv(number, rows)
        m = const(self._outputs)
        return image, self.mul(y, m), self.mul(x, m)

    # Inputs.

    def _transform_inputs(self, number: ir.Value, tile: ir.Value) -> None:
        """The inputs of a tile, transformed, to row `tile` of each matrix."""
        n = self._inputs
        image, y, x = self._place(number)
        top = self.sub(y, self.dim(Winograd.BEGIN_Y))
        left = self.sub(x, self.dim(Winograd.BEGIN_X))
        row_bytes, pixel_bytes = self.dim(Winograd.X_ROW), self.dim(Winograd.X_PIXEL)
        source = self.at(self._x, image, self.dim(Winograd.X_IMAGE))
        height, width = self.dim(Winograd.HEIGHT), self.dim(Winograd.WIDTH)
        inside = None
        for first, extent in ((top, height), (left, width)):
            last = self.add(first, n)
            both = self.and_(self.icmp_signed(">=", first, 0), self.icmp_signed("<=", last, extent))
            inside = both if inside is None else self.and_(inside, both)
        channels = self.dim(Winograd.CHANNELS)
        patch_pixel = self.mul(channels, self._size)
        patch_row = self.mul(patch_pixel, n)
        with self.if_then(self.not_(inside), likely=False):
            self._copy_patch(source, top, left, patch_row, patch_pixel)
        corner = self.at(source, top, row_bytes)
        corner = self.at(corner, left, pixel_bytes)
        corner = self.select(inside, corner, self._patch)
        row_bytes = self.select(inside, row_bytes, patch_row)
        pixel_bytes = self.select(inside, pixel_bytes, patch_pixel)
        matrix = self.mul(patch_pixel, self.dim(Winograd.BLOCK))
        target = self.at(self._transformed, tile, patch_pixel)

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here = self.at(corner, offset)
            rows = []
            for i in range(n):
                row = self.at(here, row_bytes, i)
                loaded = [self._load(self.at(row, pixel_bytes, j), mask) for j in range(n)]
                rows.append(self._of_inputs(loaded))
            for j in range(n):
                column = self._of_inputs([row[j] for row in rows])
                for i, value in enumerate(column):
                    place = self.at(target, matrix, i * n + j)
                    self._store(value, self.at(place, offset), mask)

        self._rows.along((const(0), channels), vector)

    def _copy_patch(
        self, source: ir.Value, top: ir.Value, left: ir.Value, row_bytes: ir.Value,
        pixel_bytes: ir.Value,
    ) -> None:  # fmt: skip
        """Copy the inputs of a tile, with zeros for those outside x."""
        n = const(self._inputs)
        height, width = self.dim(Winograd.HEIGHT), self.dim(Winograd.WIDTH)
        with self.counted_loop(0, n) as i, self.counted_loop(0, n) as j:
            y, x = self.add(top, i), self.add(left, j)
            inside = self.and_(
                self.icmp_unsigned("<", y, height), self.icmp_unsigned("<", x, width)
            )
            target = self.at(self._patch, i, row_bytes)
            target = self.at(target, j, pixel_bytes)
            here = self.at(source, y, self.dim(Winograd.X_ROW))
            here = self.at(here, x, self.dim(Winograd.X_PIXEL))
            self._copy_pixel(inside, here, target, self.dim(Winograd.CHANNELS))

    def _of_inputs(self, d: Vectors) -> Vectors:
        """B^T d along one axis."""
        if self._outputs == 2:
            return [
                self.fsub(d[0], d[2]), self.fadd(d[1], d[2]), self.fsub(d[2], d[1]),
                self.fsub(d[1], d[3]),
            ]  # fmt: skip
        four, five = self._number(4.0), self._number(-5.0)
        minus_four, two = self._number(-4.0), self._number(2.0)
        even = self._added(minus_four, d[2], d[4])
        odd = self._added(minus_four, d[1], d[3])
        low = self.fsub(d[4], d[2])
        high = self.fmul(two, self.fsub(d[3], d[1]))
        return [
            self._added(four, d[0], self._added(five, d[2], d[4])),
            self.fadd(even, odd), self.fsub(even, odd),
            self.fadd(low, high), self.fsub(low, high),
            self._added(four, d[1], self._added(five, d[3], d[5])),
        ]  # fmt: skip

    # Products.

    def _panel(
        self, first: ir.Value, count: ir.Value, column: ir.Value, width: ir.Value, cover: ir.Value
    ) -> None:
        """A panel, for a block of `count` tiles."""
        size, dim = const(self._size), self.dim
        padded = self.add(width, self._lanes - 1)
        padded = self.and_(padded, -self._lanes)
        channels, block = dim(Winograd.CHANNELS), dim(Winograd.BLOCK)
        a_row = self.mul(channels, size)
        c_row = self.mul(dim(Winograd.PANEL), size)
        self.set_slot(self.context, Context.VALID_COLUMNS, width)
        steps = self.mul(channels, WINDOW * WINDOW)
        weight = self.pointer_slot(self.dims, Winograd.WEIGHT)
        weight = self.at(weight, self.mul(column, steps), size)
        step = dim(Winograd.CHANNEL_BLOCK)
        tiles, sums = self.mul(block, a_row), self.mul(block, c_row)
        matrix = self.mul(self.mul(step, dim(Winograd.PANEL)), size)
        with self.counted_loop(0, channels, step) as channel:
            left = self.sub(channels, channel)
            some = self.minimum(left, step)
            self._transform_weight(weight, channel, some, padded, matrix)
            goes_on = self.icmp_signed(">", channel, 0)
            self.set_slot(self.context, Context.ACCUMULATE, self.zext(goes_on, I64))
            a_block = self.at(self._transformed, channel, size)
            with self.counted_loop(0, self._inputs**2) as i:
                a = self.at(a_block, i, tiles)
                b = self.at(self._weight, i, matrix)
                c = self.at(self._sums, i, sums)
                self.set_slot(self.context, Context.A_STRIDE, a_row)
                self.set_slot(self.context, Context.C_ROW_STRIDE, c_row)
                self.panel(cover, Rows(a, a_row), b, Rows(c, c_row), some)
        with self.counted_loop(0, count) as tile:
            self._transform_sums(self.add(first, tile), tile, column, width, sums, c_row)

    def _transform_weight(
        self, panel: ir.Value, channel: ir.Value, count: ir.Value, columns: ir.Value,
        matrix: ir.Value,
    ) -> None:  # fmt: skip
        """Some channels of a panel of `columns` columns, to a matrix for each element of a tile."""
        n = self._inputs
        row = self.mul(columns, self._size)
        tap = self.mul(self.dim(Winograd.CHANNELS), row)
        source = self.at(panel, channel, row)
        elements_of_block = self.mul(count, columns)
        with self.counted_loop(0, elements_of_block, self._lanes) as index:
            offset = self.mul(index, self._size)
            here = self.at(source, offset)
            rows = []
            for x in range(WINDOW):
                taps = [self._load(self.at(here, tap, y * WINDOW + x), None) for y in range(WINDOW)]
                rows.append(self._of_weight(taps))
            target = self.at(self._weight, offset)
            for i in range(n):
                for j, value in enumerate(self._of_weight([row_[i] for row_ in rows])):
                    place = self.at(target, matrix, i * n + j)
                    self._store(value, place, None)

    def _of_weight(self, g: Vectors) -> Vectors:
        """G g along one axis."""

        def scaled(x: ir.Value, factor: float) -> ir.Value:
            return self.fmul(x, self._number(factor))

        if self._outputs == 2:
            ends = scaled(self.fadd(g[0], g[2]), 1 / 2)
            half = self._number(1 / 2)
            return [g[0], self._added(half, g[1], ends), self.fsub(ends, scaled(g[1], 1 / 2)), g[2]]
        ends = scaled(self.fadd(g[0], g[2]), -1 / 6)
        middle = scaled(g[1], 1 / 6)
        far = self._added(self._number(1 / 6), g[2], scaled(g[0], 1 / 24))
        middle_of_far = scaled(g[1], 1 / 12)
        return [
            scaled(g[0], 1 / 4), self.fsub(ends, middle), self.fadd(ends, middle),
            self.fadd(far, middle_of_far), self.fsub(far, middle_of_far), g[2],
        ]  # fmt: skip

    # Outputs.

    def _transform_sums(
        self, number: ir.Value, tile: ir.Value, column: ir.Value, width: ir.Value,
        matrix: ir.Value, row_bytes: ir.Value,
    ) -> None:  # fmt: skip
        """The outputs of a tile, for the columns of a panel."""
        n, m = self._inputs, self._outputs
        image, y, x = self._place(number)
        out = self.at(self._out, image, self.dim(Winograd.OUT_IMAGE))
        out = self.at(out, y, self.dim(Winograd.OUT_ROW))
        out = self.at(out, x, self.dim(Winograd.OUT_PIXEL))
        first_byte = self.mul(column, self._size)
        out = self.at(out, first_byte)
        rows = self._within(self.dim(Winograd.OUT_HEIGHT), y)
        positions = self._within(self.dim(Winograd.OUT_WIDTH), x)
        line = self.mul(image, self.dim(Winograd.OUT_HEIGHT))
        line = self.mul(self.add(line, y), self.dim(Winograd.OUT_WIDTH))
        source = self.at(self._sums, tile, row_bytes)
        results = self.reserve(ir.ArrayType(self._vector, m * m))

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here = self.at(source, offset)
            columns = []
            for j in range(n):
                loaded = [
                    # The sums of a panel are as wide as the panel: no mask.
                    self._load(self.at(here, matrix, i * n + j), None)
                    for i in range(n)
                ]
                columns.append(self._of_sums(loaded))
            for i in range(m):
                for j, value in enumerate(self._of_sums([c[i] for c in columns])):
                    self.store(value, self.at(results, (i * m + j) * self._lanes * self._size))
            with self.counted_loop(0, rows) as i, self.counted_loop(0, positions) as j:
                index = self.add(self.mul(i, m), j)
                place = self.mul(index, self._lanes * self._size)
                value = self.load(self.at(results, place), typ=self._vector)
                below = self.mul(i, self.dim(Winograd.OUT_WIDTH))
                position = self.add(self.add(line, below), self.add(x, j))
                value = self._finished(value, position, self.add(first_byte, offset), mask)
                target = self.at(out, i, self.dim(Winograd.OUT_ROW))
                target = self.at(target, j, self.dim(Winograd.OUT_PIXEL))
                self._store(value, self.at(target, offset), mask)

        self._rows.along((const(0), width), vector)

    def _within(self, extent: ir.Value, first: ir.Value) -> ir.Value:
        """How many outputs of a tile exist along an axis."""
        left = self.sub(extent, first)
        return self.minimum(left, self._outputs)

    def _of_sums(self, s: Sequence[ir.Value]) -> Vectors:
        """A^T s along one axis."""
        if self._outputs == 2:
            total = self.fadd(self.fadd(s[0], s[1]), s[2])
            return [total, self.fsub(self.fsub(s[1], s[2]), s[3])]
        two, four, eight = (self._number(v) for v in (2.0, 4.0, 8.0))
        near, near_difference = self.fadd(s[1], s[2]), self.fsub(s[1], s[2])
        far, far_difference = self.fadd(s[3], s[4]), self.fsub(s[3], s[4])
        return [
            self.fadd(self.fadd(s[0], near), far),
            self._added(two, far_difference, near_difference),
            self._added(four, far, near),
            self.fadd(self._added(eight, far_difference, near_difference), s[5]),
        ]
