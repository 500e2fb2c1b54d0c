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
from ftuner.codegen.llvm.ir.accumulators import Parts, accumulator_of, reduced_lanes
from ftuner.codegen.llvm.ir.builder import I1, I64, const, scalar_type
from ftuner.codegen.llvm.ir.lanes import by_vectors, by_whole_vectors, mask_of
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.access import Kernel, outer_steps
from ftuner.core.cpu.schedule import Schedule, chains_of, kept_in_result, looked_up
from ftuner.core.index_expr import Stage
from ftuner.hardware.isa import InstructionSet
from ftuner.schedules.nest.cpu_kernel_lookups import Lookups, permute_for
from ftuner.schedules.nest.cpu_kernel_place import Frame, Lanes, Place
from ftuner.schedules.nest.cpu_kernel_tasks import digits_of, following, inner
from ftuner.schedules.nest.cpu_kernel_transposition import Transposition
from ftuner.schedules.nest.cpu_kernel_values import Values, load_single_elements


def emit(
    module: ir.Module, symbol: str, kernel: Kernel, schedule: Schedule, isa: InstructionSet
) -> None:
    """Add the function of a kernel to a module."""
    function = ir.Function(module, STEP_KERNEL_TYPE, symbol)
    frame = _Emission(function, kernel, schedule, isa.fused, shuffles=bool(isa.permute))
    load_single_elements(frame)
    looked = looked_up(kernel, schedule)
    permute = permute_for(frame, looked, isa)
    if schedule.across is not None:
        Transposition(frame).emit()
    elif looked and (permute or not frame.slopes):
        Lookups(frame, looked, permute).emit()
    else:
        frame.emit()


MOST_SINGLE = 2
"""Most elements beside whole vectors that are computed one by one. Derived: a vector under a mask
takes as long as some elements."""
MOST_WRITTEN_OUT = 16
"""Most elements of a reduction whose loop is written out. Derived: their code is shorter than the
rest of a kernel's, and a round of a loop takes as long as several elements."""


class _Emission(Frame):
    """Emits one function."""

    def emit(self) -> None:
        kernel, schedule, builder = self.kernel, self.schedule, self.builder
        vector = schedule.vector
        blocks = vector is not None and not schedule.tasks and vector < len(kernel.kept)
        if blocks:
            with builder.counted_loop(self.begin, self.end) as task:
                first = builder.mul(task, schedule.block)
                extent = self.dim(kernel.axes[schedule.along])
                last = builder.minimum(builder.add(first, schedule.block), extent)
                self._kept_vectors({}, first, last)
        else:
            axes, count = schedule.tasks, builder.sub(self.end, self.begin)

            def of_digits(digits: list[ir.Value]) -> list[ir.Value]:
                index = dict(zip(axes, digits, strict=True))
                if vector is not None and vector < len(kernel.kept):
                    self._kept_vectors(index, const(0), self.dim(kernel.axes[vector]))
                else:
                    self._by_inside(Place(index, None), self._element)
                return following(self, digits)

            with builder.if_then(builder.icmp_signed(">", count, 0)):
                builder.carried_loop(count, digits_of(self, self.begin), of_digits, some=True)
        builder.ret_void()

    def _kept_vectors(self, index: Mapping[int, ir.Value], first: ir.Value, last: ir.Value) -> None:
        """Emit the elements of the vector axis from `first` up to `last`."""
        values = Values(self, Place(index, None))
        known = {number: values.value(number) for number in outer_steps(self.kernel, index)}
        task, vector = Place(index, None, known=known), self.schedule.along
        along = frozenset(c for c, nearer in self.slopes.items() if nearer[vector])
        if along and not self.kernel.combine:
            self._by_parts(task, along, first, last)
            return

        def of_lanes(lanes: Lanes) -> None:
            self._by_inside(replace(task, lanes=lanes), self._element)

        self._by_vectors(first, last, of_lanes, twice=not self.kernel.combine)

    def _by_parts(
        self, task: Place, along: frozenset[int], first: ir.Value, last: ir.Value
    ) -> None:
        """Emit whole vectors where all conditions `along` the vector axis hold. What is before and
        after these are vectors under a mask, or single elements if they are few."""
        builder, lanes, vector = self.builder, self.schedule.lanes, self.schedule.along

        def inside(base: ir.Value) -> None:
            place = replace(task, lanes=Lanes(base, None, None), holds=along)
            self._by_inside(place, self._element)

        low, high = inner(self, task, along, first, last)
        enough = builder.icmp_signed(">=", builder.sub(high, low), lanes)
        low, high = (builder.select(enough, x, first) for x in (low, high))
        with builder.if_then(enough, likely=True):
            by_whole_vectors(builder, low, high, lanes, inside)
        with builder.counted_loop(0, 2) as side:
            before = builder.icmp_signed("==", side, 0)
            begin, end = builder.select(before, first, high), builder.select(before, low, last)
            enough = builder.icmp_signed(">", builder.sub(end, begin), MOST_SINGLE)
            with builder.if_else(enough, likely=False) as (many, few):
                with many, builder.counted_loop(begin, end, lanes) as base:
                    count = builder.minimum(builder.sub(end, base), lanes)
                    part = Lanes(base, mask_of(builder, count, lanes), count)
                    self._element(replace(task, lanes=part))
                with few, builder.counted_loop(begin, end) as i:
                    self._element(replace(task, index={**task.index, vector: i}))

    def _by_vectors(
        self, first: ir.Value, last: ir.Value, body: Callable[[Lanes], None], twice: bool = False
    ) -> None:
        """Emit `body` for vectors from `first` on, which may have elements in common, or of which
        the last is under a mask."""
        builder, lanes = self.builder, self.schedule.lanes

        def vector(base: ir.Value, count: ir.Value | None) -> None:
            body(Lanes(base, mask_of(builder, count, lanes), count))

        by_vectors(builder, first, last, lanes, vector, twice)

    def _by_inside(self, place: Place, body: Callable[[Place], None]) -> None:
        """Emit `body` for where all conditions with slopes hold at a place, along all axes that it
        has no index of, and for where they may not."""
        builder, kernel = self.builder, self.kernel
        left = [condition for condition in self.slopes if condition not in place.holds]
        if not left:
            body(place)
            return
        ends: dict[int, tuple[ir.Value, ir.Value]] = {}
        for axis, extent in enumerate(kernel.axes):
            first, count = const(0), self.dim(extent)
            if axis == self.schedule.vector and place.lanes is not None:
                first, count = place.lanes.base, place.lanes.count or const(self.schedule.lanes)
            ends[axis] = first, builder.sub(builder.add(first, count), 1)
        all_hold: ir.Value = ir.Constant(I1, 1)
        for condition in left:
            nearer = self.slopes[condition]
            worst = {axis: ends[axis][nearer[axis] < 0] for axis in ends}
            corner = replace(place, index={**worst, **place.index}, lanes=None)
            holds = Values(self, corner).value(condition)
            all_hold = builder.and_(all_hold, holds)
        with builder.if_else(all_hold, likely=True) as (inside, elsewhere):
            with inside:
                body(replace(place, holds=frozenset(self.slopes)))
            with elsewhere:
                body(place)

    def _element(self, place: Place) -> None:
        """Emit all stages, then the results, of one kept index or of a vector of them."""
        few = self.schedule.interleaved
        if few is None:
            self._stages(place)
            return
        extent = self.kernel.axes[few]
        assert isinstance(extent, int)
        places = [replace(place, index={**place.index, few: const(i)}) for i in range(extent)]
        if place.lanes is None:
            for each in places:
                self._stages(each)
            return
        first, *others = (Values(self, each) for each in places)
        for result in range(len(self.kernel.values)):
            first.store_interleaved(result, others)

    def _stages(self, place: Place) -> None:
        kernel, kept = self.kernel, kept_in_result(self.kernel, self.schedule)
        if any(stage.kind == "scan" for stage in kernel.stages):
            self._scan(place)
            return
        for number, stage in enumerate(kernel.stages, 1):
            last = number == len(kernel.stages)
            total = self._stage(place, stage, kept if last else None)
            place = replace(place, stages=(*place.stages, total))
        narrow = [i for i, wide in enumerate(kernel.wide) if not wide]
        if narrow:
            values = Values(self, place)
            for i in narrow:
                values.store(i)
        if len(narrow) < len(kernel.values):

            def store(inner: Place) -> None:
                values = Values(self, inner)
                if kept is not None:
                    values.recall(*kept)
                for i, wide in enumerate(kernel.wide):
                    if wide:
                        values.store(i)

            self._over_reduced(place, store)

    def _over_reduced(
        self, place: Place, body: Callable[[Place], None], count: ir.Value | None = None,
        chains: int = 1,
    ) -> None:  # fmt: skip
        """Emit `body` for each index along the reduced axes, by vectors along the vector axis, as
        many at once as there are `chains`; for the first `count` ones along the only one, if it is
        given."""
        kernel, vector = self.kernel, self.schedule.vector
        inner = [a for a in range(len(kernel.kept), len(kernel.axes)) if a != vector]
        checked = not place.holds.issuperset(self.slopes)
        # Single elements are those of borders, of which each row has some.
        whole = place.lanes is not None and place.lanes.mask is None
        looped = count is not None or (checked and whole)
        written = [] if looped else self._written_out(inner)
        with ExitStack() as loops:
            index = dict(place.index)
            for axis in inner[: len(inner) - len(written)]:
                extent = self.dim(kernel.axes[axis]) if count is None else count
                index[axis] = loops.enter_context(self.builder.counted_loop(0, extent))
            last = inner[len(inner) - len(written) :]
            for numbers in itertools.product(*map(range, written)):
                index |= {axis: const(n) for axis, n in zip(last, numbers, strict=True)}
                self._along_vector(replace(place, index=dict(index)), body, chains)

    def _along_vector(self, place: Place, body: Callable[[Place], None], chains: int) -> None:
        """Emit `body` for each vector of the vector axis if that is a reduced one."""
        kernel, vector = self.kernel, self.schedule.vector
        if vector is None or vector < len(kernel.kept):
            body(place)
            return
        builder, lanes = self.builder, self.schedule.lanes
        extent, first, step = self.dim(kernel.axes[vector]), const(0), chains * lanes
        if chains > 1:
            known = isinstance(extent, ir.Constant)
            first = const(extent.constant & -step) if known else builder.and_(extent, -step)
            with builder.counted_loop(0, first, step) as base:
                for chain in range(chains):
                    own = Lanes(builder.add(base, chain * lanes), None, None, chain)
                    body(replace(place, lanes=own))
        self._by_vectors(first, extent, lambda lanes: body(replace(place, lanes=lanes)))

    def _written_out(self, axes: Sequence[int]) -> list[int]:
        """The extents of the last reduced axes that are written out rather than looped over."""
        extents: list[int] = []
        for axis in reversed(axes):
            extent = self.kernel.axes[axis]
            if not isinstance(extent, int) or math.prod([extent, *extents]) > MOST_WRITTEN_OUT:
                break
            extents.insert(0, extent)
        return extents

    def _stage(self, place: Place, stage: Stage, kept: tuple[int, int] | None) -> ir.Value:
        """The reduction of a stage. `kept`: as of `kept_in_result`."""
        if stage.kind in ("argmax", "argmin"):
            return self._position(place, stage)
        builder = self.builder
        dtype = self.kernel.steps[stage.value].dtype
        across = self.schedule.vector is not None and self.schedule.vector >= len(self.kernel.kept)
        lanes = self.schedule.lanes if across or place.lanes is not None else 0
        accumulator = accumulator_of(stage.kind, dtype, lanes)
        nothing = accumulator.neutral_element()
        chains = chains_of(self.kernel, self.schedule, stage)
        totals = [
            [builder.variable(constant, 64) for constant in accumulator.start()]
            for _ in range(chains)
        ]

        def loaded(chain: int) -> Parts:
            return [
                builder.load(total, typ=constant.type)
                for constant, total in zip(accumulator.start(), totals[chain], strict=True)
            ]

        def gather(inner: Place) -> None:
            values = Values(self, inner)
            value = values.value(stage.value)
            if kept is not None:
                step, result = kept
                values.store(result, step)
            if lanes and not elements.lanes_of(value):
                value = builder.splat(value, lanes)
            if across and inner.lanes is not None and inner.lanes.mask is not None:
                value = builder.select(inner.lanes.mask, value, nothing)
            chain = 0 if inner.lanes is None else inner.lanes.chain
            after = accumulator.gathered(builder, loaded(chain), value)
            for part, total in zip(after, totals[chain], strict=True):
                builder.store(part, total)

        count = None
        if stage.count is not None:
            values = Values(self, place)
            count = values.value(stage.count)
            # Where the indices begin, which is data as well, is not computed in each round.
            place = replace(place, known=values.known)
        self._over_reduced(place, gather, count, chains)
        parts = loaded(0)
        for chain in range(1, chains):
            parts = accumulator.combined(builder, parts, loaded(chain))
        if across:
            parts = reduced_lanes(builder, accumulator, parts)
        return accumulator.result(builder, parts)

    def _scan(self, place: Place) -> None:
        """Store the reduction so far at each index along the one reduced axis."""
        builder, kernel = self.builder, self.kernel
        (stage,) = kernel.stages
        dtype = kernel.steps[stage.value].dtype
        type_ = scalar_type(dtype)
        if place.lanes is not None:
            type_ = ir.VectorType(type_, self.schedule.lanes)
        total = builder.variable(elements.neutral(stage.combine, type_, dtype), 64)

        def advance(inner: Place) -> None:
            before = builder.load(total, typ=type_)
            value = Values(self, inner).value(stage.value)
            if place.lanes is not None and not elements.lanes_of(value):
                value = builder.splat(value, self.schedule.lanes)
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
        best = builder.variable(elements.neutral(kind, type_, dtype), 64)
        position = builder.variable(elements.zero(where), 64)
        (axis,) = range(len(self.kernel.kept), len(self.kernel.axes))

        def compare(inner: Place) -> None:
            value = Values(self, inner).value(stage.value)
            at = inner.index[axis]
            if lanes:
                value = value if elements.lanes_of(value) else builder.splat(value, lanes)
                at = builder.splat(at, lanes)
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
