"""Products of rows by the weights of experts that an index chooses for each, in LLVM IR.

A task is one panel of all experts. Rows are sorted by expert, with a counting sort, and those of an
expert are multiplied together: its part of the weight is read once for a block of rows. One or two
rows are read and written in place; of more, those of x are gathered, and those of the result are
scattered from one panel's results.

`buffers` holds the views of `ExpertsStep`; `dims` the slots of `cpu_record.Experts`.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I64,
    at,
    const,
    minimum,
    pointer_slot,
    record_at,
    set_slot,
    slot,
    variable,
)
from ftuner.codegen.llvm.ir.loops import Rows, copy_rows, counted_loop
from ftuner.codegen.llvm.kernels.step import (
    STEP_KERNEL_TYPE,
    emit_covers,
    emit_panel,
    fail,
    product_context,
)
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.dtype import DType
from ftuner.schedules.experts.cpu_record import Experts

IN_PLACE = 2
"""Rows that any order leaves evenly apart."""
WRONG_INDEX = 1
"""The status of an index of no expert."""


def emit(module: ir.Module, symbol: str, dtype: DType, lanes: int, biased: bool) -> None:
    """Add the kernel to a module. `biased`: whether the epilogue of the uKernels adds a bias."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    _Emission(function, dtype, lanes, biased).emit()


class _Emission:
    def __init__(self, function: ir.Function, dtype: DType, lanes: int, biased: bool) -> None:
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._dtype, self._lanes, self._size = dtype, lanes, const(dtype.itemsize)
        buffers, self._dims, self._status, worker, self._begin, self._end = function.args
        self._x, self._index, self._out = (pointer_slot(builder, buffers, i) for i in range(3))
        self._bias = pointer_slot(builder, buffers, 3) if biased else None
        self._context = product_context(builder)
        own = builder.mul(worker, self._dim(Experts.WORKER_BYTES))
        self._order = at(builder, pointer_slot(builder, self._dims, Experts.WORKSPACE), own)
        self._ends, self._gathered, self._results = (
            at(builder, self._order, self._dim(offset))
            for offset in (Experts.ENDS_OFFSET, Experts.A_OFFSET, Experts.C_OFFSET)
        )
        self._rows, self._experts = self._dim(Experts.ROWS), self._dim(Experts.EXPERTS)
        self._k, self._slots = self._dim(Experts.K), self._dim(Experts.SLOTS)
        self._x_row, self._out_row = self._dim(Experts.X_ROW), self._dim(Experts.OUT_ROW)

    def _dim(self, index: int) -> ir.Value:
        return slot(self._builder, self._dims, index)

    def _read(self, table: ir.Value, number: ir.Value) -> ir.Value:
        return self._builder.load(record_at(self._builder, table, number), typ=I64)

    def emit(self) -> None:
        builder = self._builder
        self._sort()
        block = self._dim(Experts.BLOCK)
        first = variable(builder, const(0))
        with counted_loop(builder, 0, self._experts) as expert:
            end = self._read(self._ends, expert)
            with counted_loop(builder, builder.load(first, typ=I64), end, block) as begin:
                count = minimum(builder, builder.sub(end, begin), block)
                self._block(expert, begin, count)
            builder.store(end, first)
        builder.ret_void()

    def _sort(self) -> None:
        """Order the rows by their experts, each expert's in their own order."""
        builder, ends = self._builder, self._ends
        with counted_loop(builder, 0, self._experts) as expert:
            builder.store(const(0), record_at(builder, ends, expert))
        with counted_loop(builder, 0, self._rows) as row:
            expert = self._expert_of(row, check=True)
            place = record_at(builder, ends, expert)
            builder.store(builder.add(builder.load(place, typ=I64), const(1)), place)
        total = variable(builder, const(0))
        with counted_loop(builder, 0, self._experts) as expert:
            place = record_at(builder, ends, expert)
            before, count = builder.load(total, typ=I64), builder.load(place, typ=I64)
            builder.store(before, place)
            builder.store(builder.add(before, count), total)
        # An expert's place moves from its first row to its end.
        with counted_loop(builder, 0, self._rows) as row:
            place = record_at(builder, ends, self._expert_of(row, check=False))
            number = builder.load(place, typ=I64)
            builder.store(row, record_at(builder, self._order, number))
            builder.store(builder.add(number, const(1)), place)

    def _expert_of(self, row: ir.Value, check: bool) -> ir.Value:
        """The expert of a row; the first one if the index is out of range."""
        builder = self._builder
        given = self._read(self._index, row)
        wrapped = builder.add(given, self._experts)
        negative = builder.icmp_signed("<", given, const(0))
        expert = builder.select(negative, wrapped, given)
        # What is still negative is a large unsigned number.
        wrong = builder.icmp_unsigned(">=", expert, self._experts)
        if check:
            with builder.if_then(wrong, likely=False):
                fail(builder, self._status, WRONG_INDEX, wrong, given, self._experts)
        return builder.select(wrong, const(0), expert)

    def _x_at(self, row: ir.Value) -> ir.Value:
        """The bytes before the row of x that a row of the result reads."""
        builder = self._builder
        return builder.mul(builder.udiv(row, self._slots), self._x_row)

    def _out_at(self, row: ir.Value) -> ir.Value:
        """The address of a row of the result."""
        return at(self._builder, self._out, self._builder.mul(row, self._out_row))

    def _block(self, expert: ir.Value, begin: ir.Value, count: ir.Value) -> None:
        """Some rows of one expert."""
        builder, context = self._builder, self._context
        order = record_at(builder, self._order, begin)
        apart = builder.icmp_signed(">", count, const(IN_PLACE))
        row_bytes, nr = builder.mul(self._k, self._size), self._dim(Experts.PANEL)
        with builder.if_then(apart), counted_loop(builder, 0, count) as number:
            source = at(builder, self._x, self._x_at(self._read(order, number)))
            target = at(builder, self._gathered, builder.mul(number, row_bytes))
            self._copy_row(source, target, self._k)
        first, last = (
            self._read(order, const(0)),
            self._read(order, builder.select(apart, const(0), builder.sub(count, const(1)))),
        )
        x_distance = builder.sub(self._x_at(last), self._x_at(first))
        out_distance = builder.mul(builder.sub(last, first), self._out_row)
        a = builder.select(apart, self._gathered, at(builder, self._x, self._x_at(first)))
        a_row = builder.select(apart, row_bytes, x_distance)
        c_row = builder.select(apart, builder.mul(nr, self._size), out_distance)
        set_slot(builder, context, Context.A_STRIDE, a_row)
        set_slot(builder, context, Context.C_ROW_STRIDE, c_row)
        if self._bias is not None:
            columns = self._dim(Experts.COLUMNS)
            offset = builder.mul(builder.mul(expert, columns), self._size)
            bias = builder.ptrtoint(at(builder, self._bias, offset), I64)
            set_slot(builder, context, Context.OPERANDS, bias)
        weight = pointer_slot(builder, self._dims, Experts.WEIGHT)
        weight = at(builder, weight, builder.mul(expert, self._dim(Experts.WEIGHT_BYTES)))
        full = self._dim(Experts.PANELS)
        covers, tail_covers = (
            pointer_slot(builder, self._dims, index)
            for index in (Experts.COVERS, Experts.TAIL_COVERS)
        )
        with counted_loop(builder, self._begin, self._end) as panel:
            column = builder.mul(panel, nr)
            valid = minimum(builder, builder.sub(self._dim(Experts.COLUMNS), column), nr)
            set_slot(builder, context, Context.VALID_COLUMNS, valid)
            is_full = builder.icmp_signed("<", panel, full)
            offset = builder.mul(column, self._size)
            c = builder.select(apart, self._results, at(builder, self._out_at(first), offset))
            table = builder.select(is_full, covers, tail_covers)
            b = at(builder, weight, builder.mul(column, row_bytes))
            cover = emit_covers(builder, [table], count)
            rows, made = Rows(a, a_row), Rows(c, c_row)
            emit_panel(builder, context, cover, rows, b, made, self._k, (const(0), column))
            with builder.if_then(apart), counted_loop(builder, 0, count) as number:
                source = at(builder, self._results, builder.mul(number, c_row))
                target = at(builder, self._out_at(self._read(order, number)), offset)
                self._copy_row(source, target, valid)

    def _copy_row(self, source: ir.Value, target: ir.Value, columns: ir.Value) -> None:
        zero, types = const(0), (self._dtype, self._lanes)
        copy_rows(self._builder, types, Rows(source, zero), Rows(target, zero), const(1), columns)
