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
from ftuner.codegen.llvm.ir.builder import (
    I64,
    at,
    const,
    minimum,
    pointer_slot,
    reserve,
    set_slot,
    slot,
    splat,
)
from ftuner.codegen.llvm.ir.instructions import EMITTERS
from ftuner.codegen.llvm.ir.lanes import VectorRows
from ftuner.codegen.llvm.ir.loops import Rows, counted_loop, partition_bounds
from ftuner.codegen.llvm.kernels.step import (
    COVER_BYTES,
    STEP_KERNEL_TYPE,
    emit_covers,
    emit_panel,
    product_context,
)
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.dtype import DType
from ftuner.core.expr import ACCUMULATOR, Expr, operands
from ftuner.core.winograd import WINDOW
from ftuner.schedules.winograd.cpu_record import Winograd, WinogradCommon

Panel = Callable[[ir.Value, ir.Value, ir.Value], None]
"""Does the panel from a column on: its columns, and its cover."""


class WinogradEmission:
    """The state of the emission of one kernel, at the begin of its function."""

    def __init__(
        self, function: ir.Function, dtype: DType, epilogue: Expr, lanes: int, fused: bool,
        operands_slot: int,
    ) -> None:  # fmt: skip
        """`operands_slot`: the first slot of the distances between rows of operands."""
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._epilogue, self._lanes, self._fused = epilogue, lanes, fused
        self._multiply_add = EMITTERS["fused" if fused else "separate"]
        self._size = dtype.itemsize
        self._rows = VectorRows(builder, dtype, lanes)
        self._vector, self._load, self._store = self._rows.vector, self._rows.load, self._rows.store
        buffers, self._dims, _, worker, self._begin, self._end = function.args
        self._operands, self._operands_slot = operands(epilogue), operands_slot
        self._x, *self._read, self._out = (
            pointer_slot(builder, buffers, i) for i in range(2 + len(self._operands))
        )
        own = pointer_slot(builder, self._dims, WinogradCommon.WORKSPACE)
        own = at(builder, own, builder.mul(worker, self._dim(WinogradCommon.WORKER_BYTES)))
        self._transformed = own
        """The transformed inputs of a task."""
        self._sums = at(builder, own, self._dim(WinogradCommon.SUMS_OFFSET))
        self._patch = at(builder, own, self._dim(WinogradCommon.PATCH_OFFSET))
        self._context = product_context(builder)

    def _dim(self, index: int) -> ir.Value:
        return slot(self._builder, self._dims, index)

    def _covers(self, rows: ir.Value) -> ir.Value:
        """The segments that cover some rows by full panels, and then by the last one."""
        slots = WinogradCommon.COVERS, WinogradCommon.TAIL_COVERS
        tables = [pointer_slot(self._builder, self._dims, index) for index in slots]
        return emit_covers(self._builder, tables, rows)

    def _number(self, value: float) -> ir.Constant:
        return elements.number(self._vector, value)

    def _copy_pixel(
        self, inside: ir.Value, source: ir.Value, target: ir.Value, channels: ir.Value
    ) -> None:
        """Copy the channels of a pixel, or clear those of one that is not inside x."""
        bounds = const(0), channels
        with self._builder.if_else(inside) as (there, outside):
            with there:
                self._rows.copy(bounds, source, target)
            with outside:
                self._rows.clear(bounds, target)

    def _panels(self, panel: Panel, covers: ir.Value) -> None:
        """All panels of the result's channels, of which the last one may be narrower."""
        builder = self._builder
        nr, columns = self._dim(WinogradCommon.PANEL), self._dim(WinogradCommon.OUT_CHANNELS)
        with counted_loop(builder, 0, columns, nr) as column:
            left = builder.sub(columns, column)
            full = builder.icmp_signed(">=", left, nr)
            cover = builder.select(full, covers, at(builder, covers, const(COVER_BYTES)))
            panel(column, builder.select(full, nr, left), cover)

    def _added(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """`x * y + z`."""
        return self._multiply_add(self._builder, x, y, z)

    def _finished(
        self, value: ir.Value, position: ir.Value, offset: ir.Value, mask: ir.Value | None
    ) -> ir.Value:
        """The epilogue of a vector at an output position; `offset`: bytes to its first channel."""
        builder = self._builder
        env = {ACCUMULATOR.name: value}
        for index, operand in enumerate(self._operands):
            base = self._read[index]
            if operand.kind != "column":
                rows = builder.mul(position, self._dim(self._operands_slot + index))
                base = at(builder, base, rows)
            if operand.kind == "row":
                number = builder.load(base, typ=self._vector.element, align=self._size)
                env[operand.name] = splat(builder, number, self._lanes)
            else:
                env[operand.name] = self._load(at(builder, base, offset), mask)
        return elements.emit(builder, self._epilogue, env, self._fused)


Vectors = list[ir.Value]


def emit(
    module: ir.Module, symbol: str, dtype: DType, outputs: int, epilogue: Expr, lanes: int,
    fused: bool,
) -> None:  # fmt: skip
    """Add the kernel for tiles of `outputs` by `outputs` to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    _Emission(function, dtype, outputs, epilogue, lanes, fused).emit()


class _Emission(WinogradEmission):
    def __init__(
        self, function: ir.Function, dtype: DType, outputs: int, epilogue: Expr, lanes: int,
        fused: bool,
    ) -> None:  # fmt: skip
        super().__init__(function, dtype, epilogue, lanes, fused, Winograd.OPERANDS)
        self._outputs, self._inputs = outputs, outputs + WINDOW - 1
        own, offset = self._transformed, self._dim(Winograd.WEIGHT_OFFSET)
        self._weight = at(self._builder, own, offset)

    def emit(self) -> None:
        builder = self._builder
        blocks, tiles = self._dim(Winograd.BLOCKS), self._dim(Winograd.TILES)
        with counted_loop(builder, self._begin, self._end) as task:
            first, end = partition_bounds(builder, tiles, blocks, task)
            count = builder.sub(end, first)
            with counted_loop(builder, 0, count) as tile:
                self._transform_inputs(builder.add(first, tile), tile)
            self._panels(partial(self._panel, first, count), self._covers(count))
        builder.ret_void()

    def _place(self, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The image of a tile, and its first output row and position."""
        builder = self._builder
        columns, rows = self._dim(Winograd.TILE_COLUMNS), self._dim(Winograd.TILE_ROWS)
        x = builder.urem(number, columns)
        number = builder.udiv(number, columns)
        y, image = builder.urem(number, rows), builder.udiv(number, rows)
        m = const(self._outputs)
        return image, builder.mul(y, m), builder.mul(x, m)

    # Inputs.

    def _transform_inputs(self, number: ir.Value, tile: ir.Value) -> None:
        """The inputs of a tile, transformed, to row `tile` of each matrix."""
        builder, n = self._builder, self._inputs
        image, y, x = self._place(number)
        top = builder.sub(y, self._dim(Winograd.BEGIN_Y))
        left = builder.sub(x, self._dim(Winograd.BEGIN_X))
        row_bytes, pixel_bytes = self._dim(Winograd.X_ROW), self._dim(Winograd.X_PIXEL)
        source = at(builder, self._x, builder.mul(image, self._dim(Winograd.X_IMAGE)))
        height, width = self._dim(Winograd.HEIGHT), self._dim(Winograd.WIDTH)
        inside = None
        for first, extent in ((top, height), (left, width)):
            last = builder.add(first, const(n))
            both = builder.and_(
                builder.icmp_signed(">=", first, const(0)), builder.icmp_signed("<=", last, extent)
            )
            inside = both if inside is None else builder.and_(inside, both)
        channels = self._dim(Winograd.CHANNELS)
        patch_pixel = builder.mul(channels, const(self._size))
        patch_row = builder.mul(patch_pixel, const(n))
        with builder.if_then(builder.not_(inside), likely=False):
            self._copy_patch(source, top, left, patch_row, patch_pixel)
        corner = at(builder, source, builder.mul(top, row_bytes))
        corner = at(builder, corner, builder.mul(left, pixel_bytes))
        corner = builder.select(inside, corner, self._patch)
        row_bytes = builder.select(inside, row_bytes, patch_row)
        pixel_bytes = builder.select(inside, pixel_bytes, patch_pixel)
        matrix = builder.mul(patch_pixel, self._dim(Winograd.BLOCK))
        target = at(builder, self._transformed, builder.mul(tile, patch_pixel))

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here = at(builder, corner, offset)
            rows = []
            for i in range(n):
                row = at(builder, here, builder.mul(row_bytes, const(i)))
                loaded = [
                    self._load(at(builder, row, builder.mul(pixel_bytes, const(j))), mask)
                    for j in range(n)
                ]
                rows.append(self._of_inputs(loaded))
            for j in range(n):
                column = self._of_inputs([row[j] for row in rows])
                for i, value in enumerate(column):
                    place = at(builder, target, builder.mul(matrix, const(i * n + j)))
                    self._store(value, at(builder, place, offset), mask)

        self._rows.along((const(0), channels), vector)

    def _copy_patch(
        self, source: ir.Value, top: ir.Value, left: ir.Value, row_bytes: ir.Value,
        pixel_bytes: ir.Value,
    ) -> None:  # fmt: skip
        """Copy the inputs of a tile, with zeros for those outside x."""
        builder, n = self._builder, const(self._inputs)
        height, width = self._dim(Winograd.HEIGHT), self._dim(Winograd.WIDTH)
        with counted_loop(builder, 0, n) as i, counted_loop(builder, 0, n) as j:
            y, x = builder.add(top, i), builder.add(left, j)
            inside = builder.and_(
                builder.icmp_unsigned("<", y, height), builder.icmp_unsigned("<", x, width)
            )
            target = at(builder, self._patch, builder.mul(i, row_bytes))
            target = at(builder, target, builder.mul(j, pixel_bytes))
            here = at(builder, source, builder.mul(y, self._dim(Winograd.X_ROW)))
            here = at(builder, here, builder.mul(x, self._dim(Winograd.X_PIXEL)))
            self._copy_pixel(inside, here, target, self._dim(Winograd.CHANNELS))

    def _of_inputs(self, d: Vectors) -> Vectors:
        """B^T d along one axis."""
        builder = self._builder
        if self._outputs == 2:
            return [
                builder.fsub(d[0], d[2]), builder.fadd(d[1], d[2]), builder.fsub(d[2], d[1]),
                builder.fsub(d[1], d[3]),
            ]  # fmt: skip
        four, five = self._number(4.0), self._number(-5.0)
        minus_four, two = self._number(-4.0), self._number(2.0)
        even = self._added(minus_four, d[2], d[4])
        odd = self._added(minus_four, d[1], d[3])
        low = builder.fsub(d[4], d[2])
        high = builder.fmul(two, builder.fsub(d[3], d[1]))
        return [
            self._added(four, d[0], self._added(five, d[2], d[4])),
            builder.fadd(even, odd), builder.fsub(even, odd),
            builder.fadd(low, high), builder.fsub(low, high),
            self._added(four, d[1], self._added(five, d[3], d[5])),
        ]  # fmt: skip

    # Products.

    def _panel(
        self, first: ir.Value, count: ir.Value, column: ir.Value, width: ir.Value, cover: ir.Value
    ) -> None:
        """A panel, for a block of `count` tiles."""
        builder, size, dim = self._builder, const(self._size), self._dim
        padded = builder.add(width, const(self._lanes - 1))
        padded = builder.and_(padded, const(-self._lanes))
        channels, block = dim(Winograd.CHANNELS), dim(Winograd.BLOCK)
        a_row = builder.mul(channels, size)
        c_row = builder.mul(dim(Winograd.PANEL), size)
        set_slot(builder, self._context, Context.VALID_COLUMNS, width)
        steps = builder.mul(channels, const(WINDOW * WINDOW))
        weight = pointer_slot(builder, self._dims, Winograd.WEIGHT)
        weight = at(builder, weight, builder.mul(builder.mul(column, steps), size))
        step = dim(Winograd.CHANNEL_BLOCK)
        tiles, sums = builder.mul(block, a_row), builder.mul(block, c_row)
        matrix = builder.mul(builder.mul(step, dim(Winograd.PANEL)), size)
        with counted_loop(builder, 0, channels, step) as channel:
            left = builder.sub(channels, channel)
            some = minimum(builder, left, step)
            self._transform_weight(weight, channel, some, padded, matrix)
            goes_on = builder.icmp_signed(">", channel, const(0))
            set_slot(builder, self._context, Context.ACCUMULATE, builder.zext(goes_on, I64))
            a_block = at(builder, self._transformed, builder.mul(channel, size))
            with counted_loop(builder, 0, const(self._inputs**2)) as i:
                a = at(builder, a_block, builder.mul(i, tiles))
                b = at(builder, self._weight, builder.mul(i, matrix))
                c = at(builder, self._sums, builder.mul(i, sums))
                set_slot(builder, self._context, Context.A_STRIDE, a_row)
                set_slot(builder, self._context, Context.C_ROW_STRIDE, c_row)
                emit_panel(builder, self._context, cover, Rows(a, a_row), b, Rows(c, c_row), some)
        with counted_loop(builder, 0, count) as tile:
            self._transform_sums(builder.add(first, tile), tile, column, width, sums, c_row)

    def _transform_weight(
        self, panel: ir.Value, channel: ir.Value, count: ir.Value, columns: ir.Value,
        matrix: ir.Value,
    ) -> None:  # fmt: skip
        """Some channels of a panel of `columns` columns, to a matrix for each element of a tile."""
        builder, n = self._builder, self._inputs
        row = builder.mul(columns, const(self._size))
        tap = builder.mul(self._dim(Winograd.CHANNELS), row)
        source = at(builder, panel, builder.mul(channel, row))
        elements_of_block = builder.mul(count, columns)
        with counted_loop(builder, 0, elements_of_block, self._lanes) as index:
            offset = builder.mul(index, const(self._size))
            here = at(builder, source, offset)
            rows = []
            for x in range(WINDOW):
                taps = [
                    self._load(at(builder, here, builder.mul(tap, const(y * WINDOW + x))), None)
                    for y in range(WINDOW)
                ]
                rows.append(self._of_weight(taps))
            target = at(builder, self._weight, offset)
            for i in range(n):
                for j, value in enumerate(self._of_weight([row_[i] for row_ in rows])):
                    place = at(builder, target, builder.mul(matrix, const(i * n + j)))
                    self._store(value, place, None)

    def _of_weight(self, g: Vectors) -> Vectors:
        """G g along one axis."""
        builder = self._builder

        def scaled(x: ir.Value, factor: float) -> ir.Value:
            return builder.fmul(x, self._number(factor))

        if self._outputs == 2:
            ends = scaled(builder.fadd(g[0], g[2]), 1 / 2)
            half = self._number(1 / 2)
            return [
                g[0], self._added(half, g[1], ends), builder.fsub(ends, scaled(g[1], 1 / 2)), g[2]
            ]  # fmt: skip
        ends = scaled(builder.fadd(g[0], g[2]), -1 / 6)
        middle = scaled(g[1], 1 / 6)
        far = self._added(self._number(1 / 6), g[2], scaled(g[0], 1 / 24))
        middle_of_far = scaled(g[1], 1 / 12)
        return [
            scaled(g[0], 1 / 4), builder.fsub(ends, middle), builder.fadd(ends, middle),
            builder.fadd(far, middle_of_far), builder.fsub(far, middle_of_far), g[2],
        ]  # fmt: skip

    # Outputs.

    def _transform_sums(
        self, number: ir.Value, tile: ir.Value, column: ir.Value, width: ir.Value,
        matrix: ir.Value, row_bytes: ir.Value,
    ) -> None:  # fmt: skip
        """The outputs of a tile, for the columns of a panel."""
        builder, n, m = self._builder, self._inputs, self._outputs
        image, y, x = self._place(number)
        out = at(builder, self._out, builder.mul(image, self._dim(Winograd.OUT_IMAGE)))
        out = at(builder, out, builder.mul(y, self._dim(Winograd.OUT_ROW)))
        out = at(builder, out, builder.mul(x, self._dim(Winograd.OUT_PIXEL)))
        first_byte = builder.mul(column, const(self._size))
        out = at(builder, out, first_byte)
        rows = self._within(self._dim(Winograd.OUT_HEIGHT), y)
        positions = self._within(self._dim(Winograd.OUT_WIDTH), x)
        line = builder.mul(image, self._dim(Winograd.OUT_HEIGHT))
        line = builder.mul(builder.add(line, y), self._dim(Winograd.OUT_WIDTH))
        source = at(builder, self._sums, builder.mul(tile, row_bytes))
        results = reserve(builder, ir.ArrayType(self._vector, m * m))

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here = at(builder, source, offset)
            columns = []
            for j in range(n):
                loaded = [
                    # The sums of a panel are as wide as the panel: no mask.
                    self._load(at(builder, here, builder.mul(matrix, const(i * n + j))), None)
                    for i in range(n)
                ]
                columns.append(self._of_sums(loaded))
            for i in range(m):
                for j, value in enumerate(self._of_sums([c[i] for c in columns])):
                    builder.store(
                        value, at(builder, results, (i * m + j) * self._lanes * self._size)
                    )
            with counted_loop(builder, 0, rows) as i, counted_loop(builder, 0, positions) as j:
                index = builder.add(builder.mul(i, const(m)), j)
                place = builder.mul(index, const(self._lanes * self._size))
                value = builder.load(at(builder, results, place), typ=self._vector)
                below = builder.mul(i, self._dim(Winograd.OUT_WIDTH))
                position = builder.add(builder.add(line, below), builder.add(x, j))
                value = self._finished(value, position, builder.add(first_byte, offset), mask)
                target = at(builder, out, builder.mul(i, self._dim(Winograd.OUT_ROW)))
                target = at(builder, target, builder.mul(j, self._dim(Winograd.OUT_PIXEL)))
                self._store(value, at(builder, target, offset), mask)

        self._rows.along((const(0), width), vector)

    def _within(self, extent: ir.Value, first: ir.Value) -> ir.Value:
        """How many outputs of a tile exist along an axis."""
        left = self._builder.sub(extent, first)
        return minimum(self._builder, left, const(self._outputs))

    def _of_sums(self, s: Sequence[ir.Value]) -> Vectors:
        """A^T s along one axis."""
        builder = self._builder
        if self._outputs == 2:
            total = builder.fadd(builder.fadd(s[0], s[1]), s[2])
            return [total, builder.fsub(builder.fsub(s[1], s[2]), s[3])]
        two, four, eight = (self._number(v) for v in (2.0, 4.0, 8.0))
        near, near_difference = builder.fadd(s[1], s[2]), builder.fsub(s[1], s[2])
        far, far_difference = builder.fadd(s[3], s[4]), builder.fsub(s[3], s[4])
        return [
            builder.fadd(builder.fadd(s[0], near), far),
            self._added(two, far_difference, near_difference),
            self._added(four, far, near),
            builder.fadd(self._added(eight, far_difference, near_difference), s[5]),
        ]
