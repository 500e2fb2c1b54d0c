"""The tasks of a nest, in LLVM IR: their indices along the axes that they number, and the part of
the vector axis in which conditions hold."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import const
from ftuner.schedules.nest.cpu_kernel_place import Frame, Place
from ftuner.schedules.nest.cpu_kernel_values import Values


def digits_of(frame: Frame, number: ir.Value) -> list[ir.Value]:
    """The index of a task along each axis."""
    builder, axes = frame.builder, frame.schedule.tasks
    found: list[ir.Value] = []
    for axis in reversed(axes[1:]):
        extent = frame.dim(frame.kernel.axes[axis])
        found.insert(0, builder.urem(number, extent))
        number = builder.udiv(number, extent)
    return [number, *found] if axes else []


def following(frame: Frame, digits: list[ir.Value]) -> list[ir.Value]:
    """The index of the task after one along each axis: it carries."""
    builder, axes = frame.builder, frame.schedule.tasks
    found: list[ir.Value] = []
    carry: ir.Value = const(1)
    for position in reversed(range(len(axes))):
        digit = builder.add(digits[position], carry)
        if position:
            over = builder.icmp_signed("==", digit, frame.dim(frame.kernel.axes[axes[position]]))
            digit = builder.select(over, 0, digit)
            carry = builder.zext(over, carry.type)
        found.insert(0, digit)
    return found


def inner(
    frame: Frame, task: Place, along: Collection[int], first: ir.Value, last: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The part of the vector axis in which the conditions `along` hold for all indices along the
    axes that a task has no index of; empty if its end is not after its begin."""
    builder, kernel, vector = frame.builder, frame.kernel, frame.schedule.along
    low, high = first, last
    for condition in sorted(along):
        nearer, step = frame.slopes[condition], kernel.steps[condition]
        worst = {
            axis: builder.sub(frame.dim(extent), 1) if nearer[axis] < 0 else const(0)
            for axis, extent in enumerate(kernel.axes)
        }
        values = Values(frame, replace(task, index={**worst, vector: const(0), **task.index}))
        x, y = (values.value(argument) for argument in step.arguments)
        room = builder.sub(y, x)
        if step.op == "less":
            room = builder.sub(room, 1)
        # It holds where room + slope * index >= 0.
        slope = abs(nearer[vector])
        if nearer[vector] > 0:
            lacking = builder.maximum(builder.sub(const(0), room), 0)
            begin = builder.udiv(builder.add(lacking, slope - 1), slope)
            low = builder.maximum(low, begin)
        else:
            room = builder.maximum(builder.add(room, slope), 0)
            high = builder.minimum(high, builder.udiv(room, slope))
    return low, high
