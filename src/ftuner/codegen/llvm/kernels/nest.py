"""The general schedule of a definition: loops over its axes, in LLVM IR.

The tasks are those of `task_count`; `dims` holds the values of `Kernel.parameters()` (`step`).

One axis is vectorised, with a mask for the last vector. If it is a kept axis, reductions accumulate
in lanes; if it is a reduced axis, lanes are combined at the end. All other kept axes number the
tasks; where there are none, blocks of the vector axis do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.accumulators import accumulator_of, reduced_lanes
from ftuner.codegen.llvm.ir.builder import (
    I1,
    I64,
    const,
    reserve,
    scalar_type,
    splat,
)
from ftuner.codegen.llvm.ir.lanes import by_vectors, mask_of
from ftuner.codegen.llvm.ir.loops import counted_loop
from ftuner.codegen.llvm.kernels.nest_values import Frame, Lanes, Place, Values
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.codegen.llvm.kernels.transposition import emit_transposition
from ftuner.core.access import Kernel
from ftuner.core.cpu.schedule import Schedule
from ftuner.core.guards import outer_steps
from ftuner.core.index_expr import Stage


def emit(module: ir.Module, symbol: str, kernel: Kernel, schedule: Schedule, fused: bool) -> None:
    """Add the function of a kernel to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    if schedule.across is not None:
        emit_transposition(Frame(function, kernel, schedule, fused))
    else:
        _Emission(function, kernel, schedule, fused).emit()


MOST_WRITTEN_OUT = 16
"""Most elements of a reduction whose loop is written out. Derived: their code is shorter than the
rest of a kernel's, and a round of a loop takes as long as several elements."""


class _Emission(Frame):
    """Emits one function."""

    def emit(self) -> None:
        kernel, schedule, builder = self.kernel, self.schedule, self.builder
        vector = schedule.vector
        blocks = vector is not None and not schedule.tasks and vector < len(kernel.kept)
        with counted_loop(builder, self.begin, self.end) as task:
            if blocks:
                assert vector is not None
                first = builder.mul(task, const(schedule.block))
                extent = self.dim(kernel.axes[vector])
                last = builder.add(first, const(schedule.block))
                last = builder.select(builder.icmp_signed("<", last, extent), last, extent)
                self._kept_vectors({}, first, last)
            else:
                index = self._digits(task, schedule.tasks)
                if vector is not None and vector < len(kernel.kept):
                    self._kept_vectors(index, const(0), self.dim(kernel.axes[vector]))
                else:
                    self._task(Place(index, None))
        builder.ret_void()

    def _digits(self, number: ir.Value, axes: Sequence[int]) -> dict[int, ir.Value]:
        """The index of a task along each axis."""
        builder = self.builder
        index: dict[int, ir.Value] = {}
        for position in reversed(range(len(axes))):
            if position == 0:
                index[axes[0]] = number
                break
            extent = self.dim(self.kernel.axes[axes[position]])
            index[axes[position]] = builder.urem(number, extent)
            number = builder.udiv(number, extent)
        return index

    def _kept_vectors(self, index: Mapping[int, ir.Value], first: ir.Value, last: ir.Value) -> None:
        few = self.schedule.interleaved
        values = Values(self, Place(index, None))
        known = {number: values.value(number) for number in outer_steps(self.kernel, index)}
        task = Place(index, None, known=known)
        if few is None:
            self._by_vectors(first, last, lambda lanes: self._task(replace(task, lanes=lanes)))
            return
        extent = self.kernel.axes[few]
        assert isinstance(extent, int)

        def side_by_side(lanes: Lanes) -> None:
            def all_of(inside: bool) -> None:
                here = replace(task, lanes=lanes, inside=inside)
                indices = ({**index, few: const(i)} for i in range(extent))
                first, *others = (Values(self, replace(here, index=i)) for i in indices)
                for result in range(len(self.kernel.values)):
                    first.store_interleaved(result, others)

            self._by_inside(replace(task, lanes=lanes), all_of)

        self._by_vectors(first, last, side_by_side)

    def _by_vectors(self, first: ir.Value, last: ir.Value, body: Callable[[Lanes], None]) -> None:
        """Emit `body` for whole vectors from `first` on, and under a mask for the rest."""
        builder, lanes = self.builder, self.schedule.lanes

        def vector(base: ir.Value, count: ir.Value | None) -> None:
            body(Lanes(base, mask_of(builder, count, lanes), count))

        by_vectors(builder, first, last, lanes, vector)

    def _by_inside(self, place: Place, body: Callable[[bool], None]) -> None:
        """Emit `body` for where all conditions with slopes hold at a place, along all axes that it
        has no index of, and for where they may not."""
        builder, kernel = self.builder, self.kernel
        if not self.slopes:
            body(False)
            return
        ends: dict[int, tuple[ir.Value, ir.Value]] = {}
        for axis, extent in enumerate(kernel.axes):
            first, count = const(0), self.dim(extent)
            if axis == self.schedule.vector and place.lanes is not None:
                first, count = place.lanes.base, place.lanes.count or const(self.schedule.lanes)
            ends[axis] = first, builder.sub(builder.add(first, count), const(1))
        all_hold: ir.Value = ir.Constant(I1, 1)
        for condition, nearer in self.slopes.items():
            worst = {axis: ends[axis][nearer[axis] < 0] for axis in ends}
            corner = replace(place, index={**worst, **place.index}, lanes=None)
            holds = Values(self, corner).value(condition)
            all_hold = builder.and_(all_hold, holds)
        with builder.if_else(all_hold, likely=True) as (inside, elsewhere):
            with inside:
                body(True)
            with elsewhere:
                body(False)

    def _task(self, place: Place) -> None:
        """Emit all stages, then the results, of one kept index or of a vector of them."""
        self._by_inside(place, lambda inside: self._stages(replace(place, inside=inside)))

    def _stages(self, place: Place) -> None:
        kernel = self.kernel
        if any(stage.kind == "scan" for stage in kernel.stages):
            self._scan(place)
            return
        for stage in kernel.stages:
            total = self._stage(place, stage)
            place = replace(place, stages=(*place.stages, total))
        narrow = [i for i, wide in enumerate(kernel.wide) if not wide]
        if narrow:
            values = Values(self, place)
            for i in narrow:
                values.store(i)
        if len(narrow) < len(kernel.values):

            def store(inner: Place) -> None:
                values = Values(self, inner)
                for i, wide in enumerate(kernel.wide):
                    if wide:
                        values.store(i)

            self._over_reduced(place, store)

    def _over_reduced(self, place: Place, body: Callable[[Place], None]) -> None:
        """Emit `body` for each index along the reduced axes, by vectors along the vector axis."""
        kernel, vector = self.kernel, self.schedule.vector
        inner = [a for a in range(len(kernel.kept), len(kernel.axes)) if a != vector]
        written = self._written_out(inner) if place.inside or not self.slopes else []
        with ExitStack() as loops:
            index = dict(place.index)
            for axis in inner[: len(inner) - len(written)]:
                extent = self.dim(kernel.axes[axis])
                index[axis] = loops.enter_context(counted_loop(self.builder, 0, extent))
            last = inner[len(inner) - len(written) :]
            for numbers in itertools.product(*map(range, written)):
                index |= {axis: const(n) for axis, n in zip(last, numbers, strict=True)}
                self._along_vector(replace(place, index=dict(index)), body)

    def _along_vector(self, place: Place, body: Callable[[Place], None]) -> None:
        """Emit `body` for each vector of the vector axis if that is a reduced one."""
        kernel, vector = self.kernel, self.schedule.vector
        if vector is None or vector < len(kernel.kept):
            body(place)
            return
        extent = self.dim(kernel.axes[vector])
        self._by_vectors(const(0), extent, lambda lanes: body(replace(place, lanes=lanes)))

    def _written_out(self, axes: Sequence[int]) -> list[int]:
        """The extents of the last reduced axes that are written out rather than looped over."""
        extents: list[int] = []
        for axis in reversed(axes):
            extent = self.kernel.axes[axis]
            if not isinstance(extent, int) or math.prod([extent, *extents]) > MOST_WRITTEN_OUT:
                break
            extents.insert(0, extent)
        return extents

    def _stage(self, place: Place, stage: Stage) -> ir.Value:
        if stage.kind in ("argmax", "argmin"):
            return self._position(place, stage)
        builder = self.builder
        dtype = self.kernel.steps[stage.value].dtype
        across = self.schedule.vector is not None and self.schedule.vector >= len(self.kernel.kept)
        lanes = self.schedule.lanes if across or place.lanes is not None else 0
        accumulator = accumulator_of(stage.kind, dtype, lanes)
        nothing = accumulator.neutral_element()
        totals = [reserve(builder, constant.type) for constant in accumulator.start()]
        for constant, total in zip(accumulator.start(), totals, strict=True):
            builder.store(constant, total)

        def loaded() -> list[ir.Value]:
            return [
                builder.load(total, typ=constant.type)
                for constant, total in zip(accumulator.start(), totals, strict=True)
            ]

        def gather(inner: Place) -> None:
            value = Values(self, inner).value(stage.value)
            if lanes and not elements.lanes_of(value):
                value = splat(builder, value, lanes)
            if across and inner.lanes is not None and inner.lanes.mask is not None:
                value = builder.select(inner.lanes.mask, value, nothing)
            after = accumulator.gathered(builder, loaded(), value)
            for part, total in zip(after, totals, strict=True):
                builder.store(part, total)

        self._over_reduced(place, gather)
        parts = reduced_lanes(builder, accumulator, loaded()) if across else loaded()
        return accumulator.result(builder, parts)

    def _scan(self, place: Place) -> None:
        """Store the reduction so far at each index along the one reduced axis."""
        builder, kernel = self.builder, self.kernel
        (stage,) = kernel.stages
        dtype = kernel.steps[stage.value].dtype
        type_ = scalar_type(dtype)
        if place.lanes is not None:
            type_ = ir.VectorType(type_, self.schedule.lanes)
        total = reserve(builder, type_)
        builder.store(elements.neutral(stage.combine, type_, dtype), total)

        def advance(inner: Place) -> None:
            before = builder.load(total, typ=type_)
            value = Values(self, inner).value(stage.value)
            if place.lanes is not None and not elements.lanes_of(value):
                value = splat(builder, value, self.schedule.lanes)
            after = elements.combine(builder, stage.combine, before, value, dtype)
            builder.store(after, total)
            seen = after if stage.last else before
            values = Values(self, replace(inner, stages=(seen,)))
            for result in range(len(kernel.values)):
                values.store(result)

        self._over_reduced(place, advance)

    def _position(self, place: Place, stage: Stage) -> ir.Value:
        """The index of the largest or smallest element, along the one reduced axis."""
        builder = self.builder
        dtype = self.kernel.steps[stage.value].dtype
        lanes = self.schedule.lanes if place.lanes is not None else 0
        kind = "maximum" if stage.kind == "argmax" else "minimum"
        type_, where = scalar_type(dtype), I64
        if lanes:
            type_, where = ir.VectorType(type_, lanes), ir.VectorType(I64, lanes)
        best, position = reserve(builder, type_), reserve(builder, where)
        builder.store(elements.neutral(kind, type_, dtype), best)
        builder.store(elements.zero(where), position)
        (axis,) = range(len(self.kernel.kept), len(self.kernel.axes))

        def compare(inner: Place) -> None:
            value = Values(self, inner).value(stage.value)
            at = inner.index[axis]
            if lanes:
                value = value if elements.lanes_of(value) else splat(builder, value, lanes)
                at = splat(builder, at, lanes)
            before = builder.load(best, typ=type_)
            # The first NaN is the largest and the smallest, as NumPy has it.
            sides = (before, value) if stage.last else (value, before)
            better = elements.precedes(builder, *sides, dtype, kind == "maximum", nan_first=True)
            better = builder.not_(better) if stage.last else better
            builder.store(builder.select(better, value, before), best)
            old = builder.load(position, typ=where)
            builder.store(builder.select(better, at, old), position)

        self._over_reduced(place, compare)
        return builder.load(position, typ=where)
