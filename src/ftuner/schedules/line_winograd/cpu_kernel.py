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

from ftuner.codegen.llvm.ir.builder import const
from ftuner.codegen.llvm.ir.rows import Rows
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
    _Emission(module, symbol, dtype, taps, epilogue, lanes, fused).emit()


class _Emission(WinogradEmission):
    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, taps: int, epilogue: Expr, lanes: int,
        fused: bool,
    ) -> None:  # fmt: skip
        super().__init__(module, symbol, dtype, epilogue, lanes, fused, LineWinograd.OPERANDS)
        self._transforms = line_transforms(taps)
        self._outputs, self._points = len(self._transforms.sums), len(self._transforms.inputs)
        self._row_bytes = self.mul(self.dim(LineWinograd.RUN), self._size)
        """Of the transformed inputs of a row at one point, and of one step of the line."""

    def emit(self) -> None:
        dim = self.dim
        lines, blocks = dim(LineWinograd.LINES), dim(LineWinograd.BLOCKS)
        with self.counted_loop(self.begin, self.end) as task:
            line, rest = self.urem(task, lines), self.udiv(task, lines)
            image, block = self.udiv(rest, blocks), self.urem(rest, blocks)
            first, end = self.partition_bounds(dim(LineWinograd.OUT_HEIGHT), blocks, block)
            count = self.sub(end, first)
            position = self.mul(line, self._outputs)
            self._transform_inputs(image, first, count, position)
            panel = partial(self._panel, image, first, count, position)
            self._panels(panel, self._covers(count))
        self.ret_void()

    # Inputs.

    def _transform_inputs(
        self, image: ir.Value, first: ir.Value, count: ir.Value, position: ir.Value
    ) -> None:
        """The inputs that a line reads for `count` rows from `first` on."""
        dim, n = self.dim, self._points
        stride_y, stride_x = dim(LineWinograd.STRIDE_Y), dim(LineWinograd.STRIDE_X)
        top = self.sub(self.mul(first, stride_y), dim(LineWinograd.BEGIN_Y))
        left = self.sub(self.mul(position, stride_x), dim(LineWinograd.BEGIN_X))
        rows = self.mul(self.sub(count, 1), stride_y)
        rows = self.add(rows, dim(LineWinograd.KERNEL_ROWS))
        source = self.at(self._x, image, dim(LineWinograd.X_IMAGE))
        last = self.add(left, self.mul(stride_x, n))
        fits = self.and_(
            self.icmp_signed(">=", left, 0), self.icmp_signed("<=", last, dim(LineWinograd.WIDTH))
        )
        with self.counted_loop(0, rows) as row:
            y = self.add(top, row)
            exists = self.icmp_unsigned("<", y, dim(LineWinograd.HEIGHT))
            inside = self.and_(fits, exists)
            line = self.at(source, y, dim(LineWinograd.X_ROW))
            with self.if_then(self.not_(inside), likely=False):
                self._copy_patch(line, exists, left, last)
            here = self.at(line, left, dim(LineWinograd.X_PIXEL))
            here = self.select(inside, here, self._patch)
            target = self.at(self._transformed, row, self._row_bytes)
            self._transform_row(here, target)

    def _transform_row(self, source: ir.Value, target: ir.Value) -> None:
        """B^T d of a row, for all phases and channels."""
        distance = self.dim(LineWinograd.INPUTS_BYTES)

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here, there = self.at(source, offset), self.at(target, offset)
            loaded = [
                self._load(self.at(here, self._row_bytes, j), mask) for j in range(self._points)
            ]
            for point, value in enumerate(self._by_rows(self._transforms.inputs, loaded)):
                # What is stored beyond the row is room, or the next row, which follows.
                self._store(value, self.at(there, distance, point), None)

        self._rows.along((const(0), self.dim(LineWinograd.RUN)), vector)

    def _copy_patch(self, line: ir.Value, exists: ir.Value, left: ir.Value, last: ir.Value) -> None:
        """Copy the inputs of a line in one row, with zeros for those outside x."""
        dim = self.dim
        pixel, width = dim(LineWinograd.X_PIXEL), dim(LineWinograd.WIDTH)
        channels = self.udiv(pixel, self._size)
        with self.counted_loop(left, last) as x:
            there = self.at(self._patch, self.sub(x, left), pixel)
            here = self.at(line, x, pixel)
            inside = self.and_(exists, self.icmp_unsigned("<", x, width))
            self._copy_pixel(inside, here, there, channels)

    # Products.

    def _panel(
        self, image: ir.Value, first: ir.Value, count: ir.Value, position: ir.Value,
        column: ir.Value, width: ir.Value, cover: ir.Value,
    ) -> None:  # fmt: skip
        """A panel, for a line of a block of `count` rows."""
        size, dim = const(self._size), self.dim
        a_row = self.mul(dim(LineWinograd.STRIDE_Y), self._row_bytes)
        c_row = self.mul(dim(LineWinograd.PANEL), size)
        k = self.mul(dim(LineWinograd.KERNEL_ROWS), dim(LineWinograd.RUN))
        self.set_slot(self.context, Context.VALID_COLUMNS, width)
        self.set_slot(self.context, Context.A_STRIDE, a_row)
        self.set_slot(self.context, Context.C_ROW_STRIDE, c_row)
        weight = self.pointer_slot(self.dims, LineWinograd.WEIGHT)
        weight = self.at(weight, self.mul(column, k), size)
        with self.counted_loop(0, self._points) as point:
            a = self.at(self._transformed, point, dim(LineWinograd.INPUTS_BYTES))
            b = self.at(weight, point, dim(LineWinograd.WEIGHT_BYTES))
            c = self.at(self._sums, point, dim(LineWinograd.SUMS_BYTES))
            self.panel(cover, Rows(a, a_row), b, Rows(c, c_row), k)
        left = self.sub(dim(LineWinograd.OUT_WIDTH), position)
        out = self.at(self._out, image, dim(LineWinograd.OUT_IMAGE))
        out = self.at(out, position, dim(LineWinograd.OUT_PIXEL))
        out = self.at(out, column, size)
        above = self.mul(image, dim(LineWinograd.OUT_HEIGHT))
        with self.counted_loop(0, count) as row:
            y = self.add(first, row)
            number = self.mul(self.add(above, y), dim(LineWinograd.OUT_WIDTH))
            self._transform_sums(
                self.at(self._sums, row, c_row),
                self.at(out, y, dim(LineWinograd.OUT_ROW)),
                self.add(number, position), left, column, width,
            )  # fmt: skip

    # Outputs.

    def _transform_sums(
        self, sums: ir.Value, out: ir.Value, number: ir.Value, left: ir.Value, column: ir.Value,
        width: ir.Value,
    ) -> None:  # fmt: skip
        """The outputs of a line in one row, of which `left` or fewer exist, for the columns of a
        panel. `number`: of the first output, over all images and rows."""
        dim = self.dim
        first_byte = self.mul(column, self._size)

        def vector(offset: ir.Value, mask: ir.Value | None) -> None:
            here, there = self.at(sums, offset), self.at(out, offset)
            # The sums of a panel are as wide as the panel: no mask.
            loaded = [
                self._load(self.at(here, dim(LineWinograd.SUMS_BYTES), i), None)
                for i in range(self._points)
            ]
            for i, value in enumerate(self._by_columns(self._transforms.sums, loaded)):
                with self.if_then(self.icmp_signed(">", left, i), likely=True):
                    position = self.add(number, i)
                    whole = self.add(first_byte, offset)
                    finished = self._finished(value, position, whole, mask)
                    target = self.at(there, dim(LineWinograd.OUT_PIXEL), i)
                    self._store(finished, target, mask)

        self._rows.along((const(0), width), vector)

    # Products by constant matrices.

    def _by_rows(self, matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The matrix by a vector. Mirrored rows share their sums."""
        found: dict[int, ir.Value] = {}
        for pair in mirrored(matrix):
            row = list(zip(matrix[pair[0]], values, strict=True))
            if len(pair) == 1:
                found[pair[0]] = self._sum(row)
                continue
            alike = [a == b for a, b in zip(*(matrix[i] for i in pair), strict=True)]
            same = self._sum([term for term, equal in zip(row, alike, strict=True) if equal])
            other = self._sum([term for term, equal in zip(row, alike, strict=True) if not equal])
            found[pair[0]], found[pair[1]] = self.fadd(same, other), self.fsub(same, other)
        return [found[i] for i in range(len(matrix))]

    def _by_columns(self, matrix: Matrix, values: Sequence[ir.Value]) -> list[ir.Value]:
        """The matrix by a vector, of which mirrored columns have their elements added up first."""
        columns = transposed(matrix)
        rows: list[Terms] = [[] for _ in matrix]
        for pair in mirrored(columns):
            column, value = columns[pair[0]], values[pair[0]]
            other, total, difference = column, value, value
            if len(pair) == 2:
                other = columns[pair[1]]
                total = self.fadd(value, values[pair[1]])
                difference = self.fsub(value, values[pair[1]])
            for row, a, b in zip(rows, column, other, strict=True):
                row.append((a, total if a == b else difference))
        return [self._sum(row) for row in rows]

    def _sum(self, terms: Terms) -> ir.Value:
        """The sum of products by constants, those by one first."""
        ordered = sorted((t for t in terms if t[0] != 0), key=lambda term: term[0] != 1)
        factor, total = ordered[0]
        if factor != 1:
            total = self.fmul(self._number(float(factor)), total)
        for factor, value in ordered[1:]:
            if factor == 1:
                total = self.fadd(total, value)
            elif factor == -1:
                total = self.fsub(total, value)
            else:
                total = self._added(self._number(float(factor)), value, total)
        return total
