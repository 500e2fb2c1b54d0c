"""Products of rows by the weights of experts that an index chooses for each, in LLVM IR.

A task is one panel of all experts. Rows are sorted by expert, with a counting sort, and those of an
expert are multiplied together: its part of the weight is read once for a block of rows. One or two
rows are read and written in place; of more, those of x are gathered, and those of the result are
scattered from one panel's results.

`buffers` holds the views of `ExpertsStep`; `dims` the slots of `cpu_record.Experts`.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I64, const
from ftuner.codegen.llvm.ir.rows import Rows, copy_rows
from ftuner.codegen.llvm.kernels.step import ProductKernel, fail
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.dtype import DType
from ftuner.schedules.experts.cpu_record import Experts

IN_PLACE = 2
"""Rows that any order leaves evenly apart."""
WRONG_INDEX = 1
"""The status of an index of no expert."""


def emit(module: ir.Module, symbol: str, dtype: DType, lanes: int, biased: bool) -> None:
    """Add the kernel to a module. `biased`: whether the epilogue of the uKernels adds a bias."""
    _Emission(module, symbol, dtype, lanes, biased).emit()


class _Emission(ProductKernel):
    def __init__(
        self, module: ir.Module, symbol: str, dtype: DType, lanes: int, biased: bool
    ) -> None:
        super().__init__(module, symbol)
        self._dtype, self._lanes, self._size = dtype, lanes, const(dtype.itemsize)
        self._x, self._index, self._out = self.pointer_slots(self.buffers, *range(3))
        self._bias = self.pointer_slot(self.buffers, 3) if biased else None
        self.begin_products()
        own = self.mul(self.worker, self.dim(Experts.WORKER_BYTES))
        self._order = self.at(self.pointer_slot(self.dims, Experts.WORKSPACE), own)
        self._ends, self._gathered, self._results = (
            self.at(self._order, self.dim(offset))
            for offset in (Experts.ENDS_OFFSET, Experts.A_OFFSET, Experts.C_OFFSET)
        )
        self._rows, self._experts = self.dim(Experts.ROWS), self.dim(Experts.EXPERTS)
        self._k, self._slots = self.dim(Experts.K), self.dim(Experts.SLOTS)
        self._x_row, self._out_row = self.dim(Experts.X_ROW), self.dim(Experts.OUT_ROW)

    def emit(self) -> None:
        self._sort()
        block = self.dim(Experts.BLOCK)
        first = self.variable(0)
        with self.counted_loop(0, self._experts) as expert:
            end = self.slot(self._ends, expert)
            with self.counted_loop(self.load(first, typ=I64), end, block) as begin:
                count = self.minimum(self.sub(end, begin), block)
                self._some_rows(expert, begin, count)
            self.store(end, first)
        self.ret_void()

    def _sort(self) -> None:
        """Order the rows by their experts, each expert's in their own order."""
        ends = self._ends
        with self.counted_loop(0, self._experts) as expert:
            self.set_slot(ends, expert, 0)
        with self.counted_loop(0, self._rows) as row:
            expert = self._expert_of(row, check=True)
            place = self.slot_address(ends, expert)
            self.store(self.add(self.load(place, typ=I64), 1), place)
        total = self.variable(0)
        with self.counted_loop(0, self._experts) as expert:
            place = self.slot_address(ends, expert)
            before, count = self.load(total, typ=I64), self.load(place, typ=I64)
            self.store(before, place)
            self.store(self.add(before, count), total)
        # An expert's place moves from its first row to its end.
        with self.counted_loop(0, self._rows) as row:
            place = self.slot_address(ends, self._expert_of(row, check=False))
            number = self.load(place, typ=I64)
            self.set_slot(self._order, number, row)
            self.store(self.add(number, 1), place)

    def _expert_of(self, row: ir.Value, check: bool) -> ir.Value:
        """The expert of a row; the first one if the index is out of range."""
        given = self.slot(self._index, row)
        wrapped = self.add(given, self._experts)
        negative = self.icmp_signed("<", given, 0)
        expert = self.select(negative, wrapped, given)
        # What is still negative is a large unsigned number.
        wrong = self.icmp_unsigned(">=", expert, self._experts)
        if check:
            with self.if_then(wrong, likely=False):
                fail(self, self.status, WRONG_INDEX, wrong, given, self._experts)
        return self.select(wrong, 0, expert)

    def _x_at(self, row: ir.Value) -> ir.Value:
        """The bytes before the row of x that a row of the result reads."""
        return self.mul(self.udiv(row, self._slots), self._x_row)

    def _out_at(self, row: ir.Value) -> ir.Value:
        """The address of a row of the result."""
        return self.at(self._out, row, self._out_row)

    def _some_rows(self, expert: ir.Value, begin: ir.Value, count: ir.Value) -> None:
        """Some rows of one expert."""
        context = self.context
        order = self.slot_address(self._order, begin)
        apart = self.icmp_signed(">", count, IN_PLACE)
        row_bytes, nr = self.mul(self._k, self._size), self.dim(Experts.PANEL)
        with self.if_then(apart), self.counted_loop(0, count) as number:
            source = self.at(self._x, self._x_at(self.slot(order, number)))
            target = self.at(self._gathered, number, row_bytes)
            self._copy_row(source, target, self._k)
        first, last = (
            self.slot(order, const(0)),
            self.slot(order, self.select(apart, 0, self.sub(count, 1))),
        )
        x_distance = self.sub(self._x_at(last), self._x_at(first))
        out_distance = self.mul(self.sub(last, first), self._out_row)
        a = self.select(apart, self._gathered, self.at(self._x, self._x_at(first)))
        a_row = self.select(apart, row_bytes, x_distance)
        c_row = self.select(apart, self.mul(nr, self._size), out_distance)
        self.set_slot(context, Context.A_STRIDE, a_row)
        self.set_slot(context, Context.C_ROW_STRIDE, c_row)
        if self._bias is not None:
            columns = self.dim(Experts.COLUMNS)
            offset = self.mul(self.mul(expert, columns), self._size)
            bias = self.ptrtoint(self.at(self._bias, offset), I64)
            self.set_slot(context, Context.OPERANDS, bias)
        weight = self.pointer_slot(self.dims, Experts.WEIGHT)
        weight = self.at(weight, expert, self.dim(Experts.WEIGHT_BYTES))
        full = self.dim(Experts.PANELS)
        covers, tail_covers = self.pointer_slots(self.dims, Experts.COVERS, Experts.TAIL_COVERS)
        with self.counted_loop(self.begin, self.end) as panel:
            column = self.mul(panel, nr)
            valid = self.minimum(self.sub(self.dim(Experts.COLUMNS), column), nr)
            self.set_slot(context, Context.VALID_COLUMNS, valid)
            is_full = self.icmp_signed("<", panel, full)
            offset = self.mul(column, self._size)
            c = self.select(apart, self._results, self.at(self._out_at(first), offset))
            table = self.select(is_full, covers, tail_covers)
            b = self.at(weight, column, row_bytes)
            cover = self.covers([table], count)
            rows, made = Rows(a, a_row), Rows(c, c_row)
            self.panel(cover, rows, b, made, self._k, (const(0), column))
            with self.if_then(apart), self.counted_loop(0, count) as number:
                source = self.at(self._results, number, c_row)
                target = self.at(self._out_at(self.slot(order, number)), offset)
                self._copy_row(source, target, valid)

    def _copy_row(self, source: ir.Value, target: ir.Value, columns: ir.Value) -> None:
        zero, types = const(0), (self._dtype, self._lanes)
        copy_rows(self, types, Rows(source, zero), Rows(target, zero), const(1), columns)
