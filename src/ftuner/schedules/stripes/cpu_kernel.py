"""Walks a chain of steps stripe by stripe of rows, in LLVM IR.

A task is a range of rows of an image of the last result. Of each other result a worker keeps the
rows that the next stripe still reads, and computes those that it reads besides. A row is computed
twice only where two tasks read it.

`buffers` holds, member by member, what the first one reads, the constants of a kernel, the operands
of the epilogue, and what the last one writes; `dims` the slots of `cpu_record.Stripes`.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    at,
    call_address,
    const,
    maximum,
    minimum,
    pointer_slot,
    reserve,
    set_slot,
    slot,
)
from ftuner.codegen.llvm.ir.loops import Rows, counted_loop, partition_bounds
from ftuner.codegen.llvm.kernels.step import (
    COVER_BYTES,
    STEP_KERNEL_TYPE,
    emit_covers,
    emit_panel,
    product_context,
)
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Context
from ftuner.core.cpu.schedule import BLOCK, StripesKernel
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.frozen import dataclass
from ftuner.schedules.stripes.cpu_record import StripeMember, Stripes

MOVED = 64
"""Bytes that are moved at a time."""


def emit(module: ir.Module, symbol: str, kernel: StripesKernel) -> None:
    """Add the kernel to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    _Emission(function, kernel).emit()


@dataclass(frozen=True)
class _Rows:
    """Rows of a result in an image."""

    begin: ir.Value
    end: ir.Value


@dataclass(frozen=True)
class _Private:
    """Some rows of a result in the worker's workspace."""

    memory: ir.Value
    first: ir.Value
    """The address of the number of the first row in memory."""
    until: ir.Value
    """The address of the number of the first row that is not computed yet."""


class _Emission:
    def __init__(self, function: ir.Function, kernel: StripesKernel) -> None:
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._kernel, self._size = kernel, kernel.dtype.itemsize
        self._last = len(kernel.members) - 1
        buffers, self._dims, self._status, self._worker, self._begin, self._end = function.args
        self._image = const(0)
        self._context = product_context(builder)
        own = pointer_slot(builder, self._dims, Stripes.WORKSPACE)
        worker_bytes = slot(builder, self._dims, Stripes.WORKER_BYTES)
        own = at(builder, own, builder.mul(self._worker, worker_bytes))
        self._private = [
            _Private(
                at(builder, own, self._dim(i, StripeMember.OFFSET)),
                reserve(builder, I64, SLOT_BYTES),
                reserve(builder, I64, SLOT_BYTES),
            )
            for i in range(self._last)
        ]
        self._x = pointer_slot(builder, buffers, 0)
        number = 1
        self._constants: list[list[ir.Value]] = []
        self._operands: list[list[ir.Value]] = []
        for member in kernel.members:
            for found, count in (
                (self._constants, member.constants),
                (self._operands, member.operands),
            ):
                found.append([pointer_slot(builder, buffers, number + i) for i in range(count)])
                number += count
        self._out = pointer_slot(builder, buffers, number)

    def _dim(self, member: int, index: int) -> ir.Value:
        place = Stripes.MEMBERS + member * StripeMember.SIZE + index
        return slot(self._builder, self._dims, place)

    def _pointer(self, member: int, index: int) -> ir.Value:
        place = Stripes.MEMBERS + member * StripeMember.SIZE + index
        return pointer_slot(self._builder, self._dims, place)

    def emit(self) -> None:
        builder = self._builder
        parts = slot(builder, self._dims, Stripes.PARTS)
        stripe = slot(builder, self._dims, Stripes.STRIPE)
        with counted_loop(builder, self._begin, self._end) as task:
            self._image, part = builder.udiv(task, parts), builder.urem(task, parts)
            rows = self._dim(self._last, StripeMember.ROWS)
            begin, end = partition_bounds(builder, rows, parts, part)
            for private in self._private:
                builder.store(const(0), private.first)
                builder.store(const(0), private.until)
            with counted_loop(builder, begin, end, stripe) as row:
                self._stripe(_Rows(row, minimum(self._builder, builder.add(row, stripe), end)))
        builder.ret_void()

    def _stripe(self, rows: _Rows) -> None:
        """Compute rows of the last result, and before them what they read of the others."""
        builder = self._builder
        wanted = [rows]
        for member in range(self._last, 0, -1):
            needed = self._read_by(member, wanted[0])
            private = self._private[member - 1]
            self._make_room(member - 1, needed)
            until = builder.load(private.until, typ=I64)
            wanted.insert(0, _Rows(maximum(self._builder, until, needed.begin), needed.end))
            builder.store(maximum(self._builder, until, needed.end), private.until)
        for member, missing in enumerate(wanted):
            some = builder.icmp_signed("<", missing.begin, missing.end)
            with builder.if_then(some):
                if self._kernel.members[member].is_product:
                    self._product(member, missing)
                else:
                    self._tasks(member, missing)

    def _read_by(self, member: int, rows: _Rows) -> _Rows:
        """The rows of the result before that rows of a member's result are computed from."""
        builder = self._builder
        slots = (
            StripeMember.STRIDE, StripeMember.BEGIN, StripeMember.READ_ROWS, StripeMember.REACH
        )  # fmt: skip
        stride, begin, extent, reach = (self._dim(member, index) for index in slots)
        first = builder.sub(builder.mul(rows.begin, stride), begin)
        last = builder.sub(builder.mul(builder.sub(rows.end, const(1)), stride), begin)
        low = minimum(self._builder, maximum(self._builder, first, const(0)), extent)
        high = minimum(self._builder, builder.add(last, reach), extent)
        return _Rows(low, maximum(self._builder, high, low))

    def _make_room(self, member: int, needed: _Rows) -> None:
        """Have memory for rows of a private result: where it is full, rows that are still needed
        move to its beginning."""
        builder, private = self._builder, self._private[member]
        first = builder.load(private.first, typ=I64)
        until = builder.load(private.until, typ=I64)
        kept = maximum(self._builder, builder.sub(until, needed.begin), const(0))
        end = builder.add(first, self._dim(member, StripeMember.CAPACITY))
        full = builder.icmp_signed(">", needed.end, end)
        none = builder.icmp_signed("==", kept, const(0))
        with builder.if_then(builder.or_(full, none)):
            row_bytes = self._dim(member, StripeMember.ROW_BYTES)
            distance = builder.mul(builder.sub(needed.begin, first), row_bytes)
            source = at(builder, private.memory, distance)
            kind = ir.VectorType(I64, MOVED // SLOT_BYTES)
            # Upwards: what is read was not written before.
            with counted_loop(builder, 0, builder.mul(kept, row_bytes), MOVED) as offset:
                value = builder.load(at(builder, source, offset), typ=kind, align=1)
                builder.store(value, at(builder, private.memory, offset), align=1)
            builder.store(needed.begin, private.first)

    def _private_row(self, member: int, row: ir.Value) -> ir.Value:
        """The address of a row of a private result, which may be outside of its memory."""
        builder, private = self._builder, self._private[member]
        distance = builder.sub(row, builder.load(private.first, typ=I64))
        row_bytes = self._dim(member, StripeMember.ROW_BYTES)
        return at(builder, private.memory, builder.mul(distance, row_bytes))

    def _number(self, member: int, row: ir.Value) -> ir.Value:
        """A row's number among those of all images."""
        builder = self._builder
        before = builder.mul(self._image, self._dim(member, StripeMember.ROWS))
        return builder.add(before, row)

    def _tasks(self, member: int, rows: _Rows) -> None:
        """Rows of a kernel's result: its tasks, with arrays so placed that their rows have the
        numbers of the whole ones."""
        builder, kernel = self._builder, self._kernel.members[member]
        x = self._x if member == 0 else self._private_row(member - 1, const(0))
        out = self._out if member == self._last else self._private_row(member, const(0))
        arrays = [x, *self._constants[member], *self._operands[member], out]
        memory = reserve(builder, ir.ArrayType(I64, len(arrays)), SLOT_BYTES)
        for i, array in enumerate(arrays):
            set_slot(builder, memory, i, array)
        positions = self._dim(member, StripeMember.POSITIONS)
        blocks = builder.udiv(builder.add(positions, const(BLOCK - 1)), const(BLOCK))
        begin, end = (
            builder.mul(self._number(member, row), blocks) for row in (rows.begin, rows.end)
        )
        assert not kernel.is_product
        function = self._pointer(member, StripeMember.FUNCTION)
        dims = self._pointer(member, StripeMember.DIMS)
        call_address(builder, STEP_KERNEL_TYPE, function,
                     [memory, dims, self._status, self._worker, begin, end])  # fmt: skip

    def _product(self, member: int, rows: _Rows) -> None:
        """Rows of a product, panel by panel."""
        builder, size, context = self._builder, const(self._size), self._context
        positions = self._dim(member, StripeMember.POSITIONS)
        first = builder.mul(self._number(member, rows.begin), positions)
        count = builder.mul(builder.sub(rows.end, rows.begin), positions)
        a_row, c_row = self._dim(member, StripeMember.A_ROW), self._dim(member, StripeMember.C_ROW)
        if member == 0:
            a = at(builder, self._x, builder.mul(first, a_row))
        else:
            a = self._private_row(member - 1, rows.begin)
        if member == self._last:
            c = at(builder, self._out, builder.mul(first, c_row))
        else:
            c = self._private_row(member, rows.begin)
        set_slot(builder, context, Context.A_STRIDE, a_row)
        set_slot(builder, context, Context.C_ROW_STRIDE, c_row)
        set_slot(builder, context, Context.WINDOW, self._dim(member, StripeMember.WINDOW))
        set_slot(builder, context, Context.FINISH, self._dim(member, StripeMember.FINISH))
        for place in range(MAX_OPERANDS):
            # Another member has other operands.
            set_slot(builder, context, Context.OPERANDS + 2 * place, const(0))
        places = self._kernel.members[member].places
        for i, (place, operand) in enumerate(zip(places, self._operands[member], strict=True)):
            distance = self._dim(member, StripeMember.OPERANDS + i)
            set_slot(builder, context, Context.OPERANDS + 2 * place, operand)
            set_slot(builder, context, Context.OPERANDS + 2 * place + 1, distance)
        k, panel = self._dim(member, StripeMember.K), self._dim(member, StripeMember.PANEL)
        b, full = self._pointer(member, StripeMember.B), self._dim(member, StripeMember.PANELS)
        step_bytes = builder.mul(k, size)

        def multiply(column: ir.Value, columns: ir.Value, cover: ir.Value) -> None:
            set_slot(builder, context, Context.VALID_COLUMNS, columns)
            weight = at(builder, b, builder.mul(column, step_bytes))
            out = at(builder, c, builder.mul(column, size))
            rows, made = Rows(a, a_row), Rows(out, c_row)
            emit_panel(builder, context, cover, rows, weight, made, k, (first, column))

        slots = StripeMember.COVERS, StripeMember.TAIL_COVERS
        covers = emit_covers(builder, [self._pointer(member, index) for index in slots], count)
        with counted_loop(builder, 0, full) as number:
            multiply(builder.mul(number, panel), panel, covers)
        tail = self._dim(member, StripeMember.TAIL)
        with builder.if_then(builder.icmp_signed(">", tail, const(0))):
            multiply(builder.mul(full, panel), tail, at(builder, covers, const(COVER_BYTES)))
