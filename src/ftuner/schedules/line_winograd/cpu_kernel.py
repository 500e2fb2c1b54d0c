"""A convolution as Winograd's products along its last axis, in LLVM IR (see `core.winograd`).

A task is one line of outputs in a block of rows. The inputs of all rows that the block reads are
transformed, to one matrix for each point. In it the elements of a row's phases and channels follow
each other, and the rows do, so that the window of an output row is one piece of memory. Panel by
panel of the result's channels, uKernels multiply each matrix by the transformed weight of its
point, and the sums are transformed back. What passes between these stages stays in L1 or L2.

`buffers` holds x, the operands of the epilogue, and the result; `dims` the slots of
`cpu_record.LineWinograd`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import at, const, pointer_slot, set_slot
from ftuner.codegen.llvm.ir.loops import Rows, counted_loop, partition_bounds
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE, emit_panel
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.dtype import DType
from ftuner.core.expr import Expr
from ftuner.core.winograd import Matrix, line_transforms, mirrored, transposed
from ftuner.schedules.line_winograd.cpu_record import LineWinograd
from ftuner.schedules.winograd.cpu_kernel import WinogradEmission

Terms = list[tuple[Fraction, ir.Value]]


def emit(
    module: ir.Module, symbol: str, dtype: DType, taps: int, epilogue: Expr, lanes: int, fused: bool
) -> None:
    """Add the kernel for windows of `taps` elements in each phase to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    _Emission(function, dtype, taps, epilogue, lanes, fused).emit()


class _Emission(WinogradEmission):
    def __init__(
        self, function: ir.Function, dtype: DType, taps: int, epilogue: Expr, lanes: int,
        fused: bool,
    ) -> None:  # fmt: skip
        super().__init__(function, dtype, epilogue, lanes, fused, LineWinograd.OPERANDS)
        builder = self._builder
        self._transforms = line_transforms(taps)
        self._outputs, self._points = len(self._transforms.sums), len(self._transforms.inputs)
        self._row_bytes = builder.mul(self._dim(LineWinograd.RUN), const(self._size))
        """Of the transformed inputs of a row at one point, and of one step of the line."""

    def emit(self) -> None:
        builder, dim = self._builder, self._dim
        lines, blocks = dim(LineWinograd.LINES), dim(LineWinograd.BLOCKS)
        with counted_loop(builder, self._begin, self._end) as task:
            line, rest = builder.urem(task, lines), builder.udiv(task, lines)
            image, block = builder.udiv(rest, blocks), builder.urem(rest, blocks)
            first, end = partition_bounds(builder, dim(LineWinograd.OUT_HEIGHT), blocks, block)
            count = builder.sub(end, first)
            position = builder.mul(line, const(self._outputs))
            self._transform_inputs(image, first, count, position)
            panel = partial(self._panel, image, first, count, position)
            self._panels(panel, self._covers(count))
        builder.ret_void()

    # Inputs.

    def _transform_inputs(
        self, image: ir.Value, first: ir.Value, count: ir.Value, position: ir.Value
    ) -> None:
        """The inputs that a line reads for `count` rows from `first` on."""
        builder, dim, n = self._builder, self._dim, self._points
        stride_y, stride_x = dim(LineWinograd.STRIDE_Y), dim(LineWinograd.STRIDE_X)
        top = builder.sub(builder.mul(first, stride_y), dim(LineWinograd.BEGIN_Y))
        left = builder.sub(builder.mul(position, stride_x), dim(LineWinograd.BEGIN_X))
        rows = builder.mul(builder.sub(count, const(1)), stride_y)
        rows = builder.add(rows, dim(LineWinograd.KERNEL_ROWS))
        source = at(builder, self._x, builder.mul(image, dim(LineWinograd.X_IMAGE)))
        last = builder.add(left, builder.mul(stride_x, const(n)))
        fits = builder.and_(
            builder.icmp_signed(">=", left, const(0)),
            builder.icmp_signed("<=", last, dim(LineWinograd.WIDTH)),
        )
        with counted_loop(builder, 0, rows) as row:
            y = builder.add(top, row)
            exists = builder.icmp_unsigned("<", y, dim(LineWinograd.HEIGHT))
            inside = builder.and_(fits, exists)
            line = at(builder, source, builder.mul(y, dim(LineWinograd.X_ROW)))
            with builder.if_then(builder.not_(inside), likely=False):
                self._copy_patch(line, exists, left, last)
            here = at(builder, line, builder.mul(left, dim(LineWinograd.X_PIXEL)))
            here = builder.select(inside, here, self._patch)
            target = at(builder, self._transformed, builder.mul(row, self._row_bytes))
            self._transform_row(here, target)

    def _transform_row(self, source: ir.Value, target: ir.Value) -> None:
        """B^T d of a row, for all phases and channels."""
        builder = self._builder
        distance = self._dim(LineWinograd.INPUTS_BYTES)

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here, there = at(builder, source, offset), at(builder, target, offset)
            loaded = [
                self._load(at(builder, here, builder.mul(self._row_bytes, const(j))), mask)
                for j in range(self._points)
            ]
            for point, value in enumerate(self._by_rows(self._transforms.inputs, loaded)):
                # What is stored beyond the row is room, or the next row, which follows.
                self._store(value, at(builder, there, builder.mul(distance, const(point))), None)

        self._rows.along((const(0), self._dim(LineWinograd.RUN)), vector)

    def _copy_patch(self, line: ir.Value, exists: ir.Value, left: ir.Value, last: ir.Value) -> None:
        """Copy the inputs of a line in one row, with zeros for those outside x."""
        builder, dim = self._builder, self._dim
        pixel, width = dim(LineWinograd.X_PIXEL), dim(LineWinograd.WIDTH)
        channels = builder.udiv(pixel, const(self._size))
        with counted_loop(builder, left, last) as x:
            there = at(builder, self._patch, builder.mul(builder.sub(x, left), pixel))
            here = at(builder, line, builder.mul(x, pixel))
            inside = builder.and_(exists, builder.icmp_unsigned("<", x, width))
            self._copy_pixel(inside, here, there, channels)

    # Products.

    def _panel(
        self, image: ir.Value, first: ir.Value, count: ir.Value, position: ir.Value,
        column: ir.Value, width: ir.Value, cover: ir.Value,
    ) -> None:  # fmt: skip
        """A panel, for a line of a block of `count` rows."""
        builder, size, dim = self._builder, const(self._size), self._dim
        a_row = builder.mul(dim(LineWinograd.STRIDE_Y), self._row_bytes)
        c_row = builder.mul(dim(LineWinograd.PANEL), size)
        k = builder.mul(dim(LineWinograd.KERNEL_ROWS), dim(LineWinograd.RUN))
        set_slot(builder, self._context, Context.VALID_COLUMNS, width)
        set_slot(builder, self._context, Context.A_STRIDE, a_row)
        set_slot(builder, self._context, Context.C_ROW_STRIDE, c_row)
        weight = pointer_slot(builder, self._dims, LineWinograd.WEIGHT)
        weight = at(builder, weight, builder.mul(builder.mul(column, k), size))
        with counted_loop(builder, 0, const(self._points)) as point:
            a = at(builder, self._transformed, builder.mul(point, dim(LineWinograd.INPUTS_BYTES)))
            b = at(builder, weight, builder.mul(point, dim(LineWinograd.WEIGHT_BYTES)))
            c = at(builder, self._sums, builder.mul(point, dim(LineWinograd.SUMS_BYTES)))
            emit_panel(builder, self._context, cover, Rows(a, a_row), b, Rows(c, c_row), k)
        left = builder.sub(dim(LineWinograd.OUT_WIDTH), position)
        out = at(builder, self._out, builder.mul(image, dim(LineWinograd.OUT_IMAGE)))
        out = at(builder, out, builder.mul(position, dim(LineWinograd.OUT_PIXEL)))
        out = at(builder, out, builder.mul(column, size))
        above = builder.mul(image, dim(LineWinograd.OUT_HEIGHT))
        with counted_loop(builder, 0, count) as row:
            y = builder.add(first, row)
            number = builder.mul(builder.add(above, y), dim(LineWinograd.OUT_WIDTH))
            self._transform_sums(
                at(builder, self._sums, builder.mul(row, c_row)),
                at(builder, out, builder.mul(y, dim(LineWinograd.OUT_ROW))),
                builder.add(number, position), left, column, width,
            )  # fmt: skip

    # Outputs.

    def _transform_sums(
        self, sums: ir.Value, out: ir.Value, number: ir.Value, left: ir.Value, column: ir.Value,
        width: ir.Value,
    ) -> None:  # fmt: skip
        """The outputs of a line in one row, of which `left` or fewer exist, for the columns of a
        panel. `number`: of the first output, over all images and rows."""
        builder, dim = self._builder, self._dim
        first_byte = builder.mul(column, const(self._size))

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here, there = at(builder, sums, offset), at(builder, out, offset)
            # The sums of a panel are as wide as the panel: no mask.
            loaded = [
                self._load(
                    at(builder, here, builder.mul(dim(LineWinograd.SUMS_BYTES), const(i))), None
                )
                for i in range(self._points)
            ]
            for i, value in enumerate(self._by_columns(self._transforms.sums, loaded)):
                with builder.if_then(builder.icmp_signed(">", left, const(i)), likely=True):
                    position = builder.add(number, const(i))
                    whole = builder.add(first_byte, offset)
                    finished = self._finished(value, position, whole, mask)
                    target = at(builder, there, builder.mul(dim(LineWinograd.OUT_PIXEL), const(i)))
                    self._store(finished, target, mask)

        self._rows.along((const(0), width), vector)

    # Products by constant matrices.

    def _by_rows(self, matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The matrix by a vector. Mirrored rows share their sums."""
        builder = self._builder
        found: dict[int, ir.Value] = {}
        for pair in mirrored(matrix):
            row = list(zip(matrix[pair[0]], values, strict=True))
            if len(pair) == 1:
                found[pair[0]] = self._sum(row)
                continue
            alike = [a == b for a, b in zip(*(matrix[i] for i in pair), strict=True)]
            same = self._sum([term for term, equal in zip(row, alike, strict=True) if equal])
            other = self._sum([term for term, equal in zip(row, alike, strict=True) if not equal])
            found[pair[0]], found[pair[1]] = builder.fadd(same, other), builder.fsub(same, other)
        return [found[i] for i in range(len(matrix))]

    def _by_columns(self, matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The matrix by a vector, of which mirrored columns have their elements added up first."""
        builder = self._builder
        columns = transposed(matrix)
        rows: list[Terms] = [[] for _ in matrix]
        for pair in mirrored(columns):
            column, value = columns[pair[0]], values[pair[0]]
            other, total, difference = column, value, value
            if len(pair) == 2:
                other = columns[pair[1]]
                total = builder.fadd(value, values[pair[1]])
                difference = builder.fsub(value, values[pair[1]])
            for row, a, b in zip(rows, column, other, strict=True):
                row.append((a, total if a == b else difference))
        return [self._sum(row) for row in rows]

    def _sum(self, terms: Terms) -> ir.Value:
        """The sum of products by constants, those by one first."""
        builder = self._builder
        ordered = sorted((t for t in terms if t[0] != 0), key=lambda term: term[0] != 1)
        factor, total = ordered[0]
        if factor != 1:
            total = builder.fmul(self._number(float(factor)), total)
        for factor, value in ordered[1:]:
            if factor == 1:
                total = builder.fadd(total, value)
            elif factor == -1:
                total = builder.fsub(total, value)
            else:
                total = self._added(self._number(float(factor)), value, total)
        return total
