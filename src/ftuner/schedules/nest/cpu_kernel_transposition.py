"""Copies that exchange two axes, in LLVM IR: squares of elements are transposed in registers, and
what is computed of each vector is stored.

A task is a block of the axis along which the result is contiguous, with all of the axis along which
the operand is.
"""

from __future__ import annotations

from collections.abc import Mapping

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import const
from ftuner.codegen.llvm.ir.instructions import L1, prefetch
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_lanes, store_lanes
from ftuner.core.access import Access
from ftuner.core.cpu.schedule import exchanged_load
from ftuner.schedules.nest.cpu_kernel_place import Frame, Lanes, Place
from ftuner.schedules.nest.cpu_kernel_values import Values

SQUARES_AHEAD = 2
"""How far ahead the operand's lines are asked for, in squares along its contiguous axis. Derived: a
task takes some squares side by side before it goes on along that axis."""


class Transposition:
    """Emits the body of the function of a frame."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._builder = frame, frame.builder
        kernel, schedule = frame.kernel, frame.schedule
        assert schedule.across is not None
        self._vector, self._across = schedule.along, schedule.across
        self._load = exchanged_load(kernel, self._vector, self._across)
        access, step = kernel.accesses[self._load], kernel.steps[self._load]
        assert access is not None
        self._access, self._target = access, kernel.targets[0]
        self._operand = frame.operands[step.number]
        dtype = step.dtype
        self._size, self._lanes = dtype.itemsize, schedule.lanes
        self._type = ir.VectorType(elements.memory_type(dtype), schedule.lanes)

    def emit(self) -> None:
        builder, frame, lanes = self._builder, self._frame, self._lanes
        axes, block = frame.kernel.axes, frame.schedule.block
        columns, rows = frame.dim(axes[self._vector]), frame.dim(axes[self._across])
        blocks = builder.udiv(builder.add(columns, block - 1), block)
        with builder.counted_loop(frame.begin, frame.end) as task:
            first = builder.mul(builder.urem(task, blocks), block)
            last = builder.add(first, block)
            last = builder.select(builder.icmp_signed("<", last, columns), last, columns)
            number = builder.udiv(task, blocks)
            index: dict[int, ir.Value] = {}
            for axis in reversed(frame.schedule.tasks):
                extent = frame.dim(axes[axis])
                index[axis] = builder.urem(number, extent)
                number = builder.udiv(number, extent)
            source = self._place(self._operand, self._access, index)
            target = self._place(frame.results[0], self._target, index)
            with (
                builder.counted_loop(0, rows, lanes) as row,
                builder.counted_loop(first, last, lanes) as column,
            ):
                self._square(source, target, row, column, rows, last, index)
        builder.ret_void()

    def _place(self, base: ir.Value, access: Access, index: dict[int, ir.Value]) -> ir.Value:
        """The address of the first element of a task, before its block."""
        builder, frame = self._builder, self._frame
        offset = frame.dim(access.constant)
        for axis, value in index.items():
            moved = builder.mul(value, frame.dim(access.coefficients[axis]))
            offset = builder.add(offset, moved)
        return builder.at(base, offset, self._size)

    def _bytes(self, access: Access, axis: int) -> ir.Value:
        """The distance of elements along an axis."""
        return self._builder.mul(self._frame.dim(access.coefficients[axis]), self._size)

    def _square(
        self, source: ir.Value, target: ir.Value, row: ir.Value, column: ir.Value,
        rows: ir.Value, columns: ir.Value, index: Mapping[int, ir.Value],
    ) -> None:  # fmt: skip
        """`row` counts along the operand's contiguous axis, `column` along the result's."""
        builder, lanes, size = self._builder, self._lanes, const(self._size)
        apart, below = (
            self._bytes(self._access, self._vector),
            self._bytes(self._target, self._across),
        )
        source = builder.at(source, row, size)
        source = builder.at(source, column, apart)
        target = builder.at(target, column, size)
        target = builder.at(target, row, below)
        left_rows, left_columns = builder.sub(rows, row), builder.sub(columns, column)
        whole = builder.and_(
            builder.icmp_signed(">=", left_rows, lanes),
            builder.icmp_signed(">=", left_columns, lanes),
        )
        with builder.if_else(whole, likely=True) as (all_, some):
            with all_:
                loaded = [
                    builder.load(builder.at(source, apart, i), typ=self._type, align=self._size)
                    for i in range(lanes)
                ]
                # More rows are read side by side than prefetchers of the hardware follow.
                ahead = const(SQUARES_AHEAD * lanes * self._size)
                for i in range(lanes):
                    place = builder.at(source, apart, i)
                    prefetch(builder, builder.at(place, ahead), L1)
                for i, value in enumerate(builder.transpose(loaded, lanes)):
                    own_row = {**index, self._across: builder.add(row, i)}
                    value = self._computed(value, own_row, Lanes(column, None, None))
                    place = builder.at(target, below, i)
                    builder.store(value, place, align=self._size)
            with some:
                mask = lanes_below(builder, left_rows, lanes)
                loaded = []
                for i in range(lanes):
                    there = builder.icmp_signed("<", const(i), left_columns)
                    own = builder.and_(mask, builder.splat(there, lanes))
                    # Nothing is read or written there, but an address outside of memory is slow.
                    place = builder.at(source, apart, i)
                    place = builder.select(there, place, source)
                    loaded.append(load_lanes(builder, place, self._type, self._size, own))
                mask = lanes_below(builder, left_columns, lanes)
                for i, value in enumerate(builder.transpose(loaded, lanes)):
                    there = builder.icmp_signed("<", const(i), left_rows)
                    own = builder.and_(mask, builder.splat(there, lanes))
                    own_row = builder.select(there, builder.add(row, i), row)
                    value = self._computed(
                        value, {**index, self._across: own_row}, Lanes(column, mask, left_columns)
                    )
                    place = builder.at(target, below, i)
                    place = builder.select(there, place, target)
                    store_lanes(builder, value, place, self._size, own)

    def _computed(self, value: ir.Value, index: Mapping[int, ir.Value], lanes: Lanes) -> ir.Value:
        """What is stored of a transposed vector."""
        place = Place(index, lanes, known={self._load: value})
        return Values(self._frame, place).value(self._frame.kernel.values[0])
