"""Walks a chain of steps stripe by stripe of rows, in LLVM IR.

A task is a range of rows of an image of the last result. Of each other result a worker keeps the
rows that the next stripe still reads, and computes those that it reads besides. A row is computed
twice only where two tasks read it.

`buffers` holds, member by member, what the first one reads, the constants of a kernel, the operands
of the epilogue, and what the last one writes; `dims` the slots of `cpu_record.Stripes`.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, const
from ftuner.codegen.llvm.ir.rows import Rows
from ftuner.codegen.llvm.kernels.step import COVER_BYTES, STEP_KERNEL_TYPE, ProductKernel
from ftuner.codegen.llvm.native.records import SLOT_BYTES, Context
from ftuner.core.cpu.schedule import BLOCK, StripesKernel
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.frozen import dataclass
from ftuner.schedules.stripes.cpu_record import StripeMember, Stripes

MOVED = 64
"""Bytes that are moved at a time."""


def emit(module: ir.Module, symbol: str, kernel: StripesKernel) -> None:
    """Add the kernel to a module."""
    _Emission(module, symbol, kernel).emit()


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


class _Emission(ProductKernel):
    def __init__(self, module: ir.Module, symbol: str, kernel: StripesKernel) -> None:
        super().__init__(module, symbol)
        self._kernel, self._size = kernel, kernel.dtype.itemsize
        self._last = len(kernel.members) - 1
        self._image = const(0)
        self.begin_products()
        own = self.pointer_slot(self.dims, Stripes.WORKSPACE)
        worker_bytes = self.slot(self.dims, Stripes.WORKER_BYTES)
        own = self.at(own, self.worker, worker_bytes)
        self._private = [
            _Private(
                self.at(own, self._dim(i, StripeMember.OFFSET)),
                self.reserve(I64, SLOT_BYTES),
                self.reserve(I64, SLOT_BYTES),
            )
            for i in range(self._last)
        ]
        self._x = self.pointer_slot(self.buffers, 0)
        number = 1
        self._constants: list[list[ir.Value]] = []
        self._operands: list[list[ir.Value]] = []
        for member in kernel.members:
            for found, count in (
                (self._constants, member.constants),
                (self._operands, member.operands),
            ):
                found.append([self.pointer_slot(self.buffers, number + i) for i in range(count)])
                number += count
        self._out = self.pointer_slot(self.buffers, number)

    def _dim(self, member: int, index: int) -> ir.Value:
        place = Stripes.MEMBERS + member * StripeMember.SIZE + index
        return self.slot(self.dims, place)

    def _pointer(self, member: int, index: int) -> ir.Value:
        place = Stripes.MEMBERS + member * StripeMember.SIZE + index
        return self.pointer_slot(self.dims, place)

    def emit(self) -> None:
        parts, stripe = self.slots(self.dims, Stripes.PARTS, Stripes.STRIPE)
        with self.counted_loop(self.begin, self.end) as task:
            self._image, part = self.udiv(task, parts), self.urem(task, parts)
            rows = self._dim(self._last, StripeMember.ROWS)
            begin, end = self.partition_bounds(rows, parts, part)
            for private in self._private:
                self.store(0, private.first)
                self.store(0, private.until)
            with self.counted_loop(begin, end, stripe) as row:
                self._stripe(_Rows(row, self.minimum(self.add(row, stripe), end)))
        self.ret_void()

    def _stripe(self, rows: _Rows) -> None:
        """Compute rows of the last result, and before them what they read of the others."""
        wanted = [rows]
        for member in range(self._last, 0, -1):
            needed = self._read_by(member, wanted[0])
            private = self._private[member - 1]
            self._make_room(member - 1, needed)
            until = self.load(private.until, typ=I64)
            wanted.insert(0, _Rows(self.maximum(until, needed.begin), needed.end))
            self.store(self.maximum(until, needed.end), private.until)
        for member, missing in enumerate(wanted):
            some = self.icmp_signed("<", missing.begin, missing.end)
            with self.if_then(some):
                if self._kernel.members[member].is_product:
                    self._product(member, missing)
                else:
                    self._tasks(member, missing)

    def _read_by(self, member: int, rows: _Rows) -> _Rows:
        """The rows of the result before that rows of a member's result are computed from."""
        slots = (
            StripeMember.STRIDE, StripeMember.BEGIN, StripeMember.READ_ROWS, StripeMember.REACH
        )  # fmt: skip
        stride, begin, extent, reach = (self._dim(member, index) for index in slots)
        first = self.sub(self.mul(rows.begin, stride), begin)
        last = self.sub(self.mul(self.sub(rows.end, 1), stride), begin)
        low = self.minimum(self.maximum(first, 0), extent)
        high = self.minimum(self.add(last, reach), extent)
        return _Rows(low, self.maximum(high, low))

    def _make_room(self, member: int, needed: _Rows) -> None:
        """Have memory for rows of a private result: where it is full, rows that are still needed
        move to its beginning."""
        private = self._private[member]
        first = self.load(private.first, typ=I64)
        until = self.load(private.until, typ=I64)
        kept = self.maximum(self.sub(until, needed.begin), 0)
        end = self.add(first, self._dim(member, StripeMember.CAPACITY))
        full = self.icmp_signed(">", needed.end, end)
        none = self.icmp_signed("==", kept, 0)
        with self.if_then(self.or_(full, none)):
            row_bytes = self._dim(member, StripeMember.ROW_BYTES)
            distance = self.mul(self.sub(needed.begin, first), row_bytes)
            source = self.at(private.memory, distance)
            kind = ir.VectorType(I64, MOVED // SLOT_BYTES)
            # Upwards: what is read was not written before.
            with self.counted_loop(0, self.mul(kept, row_bytes), MOVED) as offset:
                value = self.load(self.at(source, offset), typ=kind, align=1)
                self.store(value, self.at(private.memory, offset), align=1)
            self.store(needed.begin, private.first)

    def _private_row(self, member: int, row: ir.Value) -> ir.Value:
        """The address of a row of a private result, which may be outside of its memory."""
        private = self._private[member]
        distance = self.sub(row, self.load(private.first, typ=I64))
        row_bytes = self._dim(member, StripeMember.ROW_BYTES)
        return self.at(private.memory, distance, row_bytes)

    def _number(self, member: int, row: ir.Value) -> ir.Value:
        """A row's number among those of all images."""
        before = self.mul(self._image, self._dim(member, StripeMember.ROWS))
        return self.add(before, row)

    def _tasks(self, member: int, rows: _Rows) -> None:
        """Rows of a kernel's result: its tasks, with arrays so placed that their rows have the
        numbers of the whole ones."""
        kernel = self._kernel.members[member]
        x = self._x if member == 0 else self._private_row(member - 1, const(0))
        out = self._out if member == self._last else self._private_row(member, const(0))
        arrays = [x, *self._constants[member], *self._operands[member], out]
        memory = self.reserve(ir.ArrayType(I64, len(arrays)), SLOT_BYTES)
        for i, array in enumerate(arrays):
            self.set_slot(memory, i, array)
        positions = self._dim(member, StripeMember.POSITIONS)
        blocks = self.udiv(self.add(positions, BLOCK - 1), BLOCK)
        begin, end = (self.mul(self._number(member, row), blocks) for row in (rows.begin, rows.end))
        assert not kernel.is_product
        function = self._pointer(member, StripeMember.FUNCTION)
        dims = self._pointer(member, StripeMember.DIMS)
        given = [memory, dims, self.status, self.worker, begin, end]
        self.call_address(STEP_KERNEL_TYPE, function, given)

    def _product(self, member: int, rows: _Rows) -> None:
        """Rows of a product, panel by panel."""
        size, context = const(self._size), self.context
        positions = self._dim(member, StripeMember.POSITIONS)
        first = self.mul(self._number(member, rows.begin), positions)
        count = self.mul(self.sub(rows.end, rows.begin), positions)
        a_row, c_row = self._dim(member, StripeMember.A_ROW), self._dim(member, StripeMember.C_ROW)
        if member == 0:
            a = self.at(self._x, first, a_row)
        else:
            a = self._private_row(member - 1, rows.begin)
        if member == self._last:
            c = self.at(self._out, first, c_row)
        else:
            c = self._private_row(member, rows.begin)
        self.set_slot(context, Context.A_STRIDE, a_row)
        self.set_slot(context, Context.C_ROW_STRIDE, c_row)
        self.set_slot(context, Context.WINDOW, self._dim(member, StripeMember.WINDOW))
        self.set_slot(context, Context.FINISH, self._dim(member, StripeMember.FINISH))
        for place in range(MAX_OPERANDS):
            # Another member has other operands.
            self.set_slot(context, Context.OPERANDS + 2 * place, 0)
        places = self._kernel.members[member].places
        for i, (place, operand) in enumerate(zip(places, self._operands[member], strict=True)):
            distance = self._dim(member, StripeMember.OPERANDS + i)
            self.set_slot(context, Context.OPERANDS + 2 * place, operand)
            self.set_slot(context, Context.OPERANDS + 2 * place + 1, distance)
        k, panel = self._dim(member, StripeMember.K), self._dim(member, StripeMember.PANEL)
        b, full = self._pointer(member, StripeMember.B), self._dim(member, StripeMember.PANELS)
        step_bytes = self.mul(k, size)

        def multiply(column: ir.Value, columns: ir.Value, cover: ir.Value) -> None:
            self.set_slot(context, Context.VALID_COLUMNS, columns)
            weight = self.at(b, column, step_bytes)
            out = self.at(c, column, size)
            rows, made = Rows(a, a_row), Rows(out, c_row)
            self.panel(cover, rows, weight, made, k, (first, column))

        slots = StripeMember.COVERS, StripeMember.TAIL_COVERS
        covers = self.covers([self._pointer(member, index) for index in slots], count)
        with self.counted_loop(0, full) as number:
            multiply(self.mul(number, panel), panel, covers)
        tail = self._dim(member, StripeMember.TAIL)
        with self.if_then(self.icmp_signed(">", tail, 0)):
            multiply(self.mul(full, panel), tail, self.at(covers, COVER_BYTES))
