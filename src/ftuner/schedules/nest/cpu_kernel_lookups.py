"""The schedule of a nest that looks elements up along the vector axis, in LLVM IR: what is resized
or mirrored along its last axis.

The vector axis alone decides where the lanes of these loads are (`looked_up`). So a block of tasks
is walked by vectors, and each vector by tasks: where its lanes are is computed once for a block.
Mostly that is within a few vectors of memory: these are loaded, and permutes put each lane in its
place. Otherwise, and where an instruction set has no permute, each lane is a load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import (
    I32,
    I64,
    const,
    intrinsic,
    maximum,
    minimum,
    reserve,
    splat,
    type_suffix,
)
from ftuner.codegen.llvm.ir.lanes import by_vectors, by_whole_vectors, lanes_below, mask_of
from ftuner.codegen.llvm.ir.loops import carried_loop, counted_loop
from ftuner.core.access import needs, outer_steps
from ftuner.hardware.isa import InstructionSet
from ftuner.schedules.nest.cpu_kernel_tasks import digits_of, following, inner
from ftuner.schedules.nest.cpu_kernel_values import Frame, Lanes, Place, Values, Window

TOGETHER = 16
"""Tasks of a block. Derived: finding the lanes takes about as long as what is then done for some
tasks; as many rows are one stream of memory each."""
PERMUTED_BYTES = 4
"""Size of the elements of which vectors are permuted."""
PARTS = (1, 2, 4)
"""Vectors of memory in which lanes are looked up. Derived: with more, that takes as many
instructions as a load for each lane."""


def emit_lookups(frame: Frame, looked: Sequence[int], isa: InstructionSet) -> None:
    """Emit a kernel with the loads `looked`."""
    kernel, lanes = frame.kernel, frame.schedule.lanes
    whole = lanes * PERMUTED_BYTES == isa.vector_bytes
    fits = whole and all(kernel.steps[n].dtype.itemsize == PERMUTED_BYTES for n in looked)
    _Lookups(frame, looked, isa.permute if fits else "").emit()


@dataclass(frozen=True)
class _Reach:
    """Memory with all lanes of some loads, beside what each task adds to the offset: the lowest
    offset, and the distance from there to the highest."""

    low: ir.Value
    last: ir.Value


_Block = Sequence[tuple[ir.Value, ir.Type]]
"""Arrays of what is known of each task of a block, and the type of their elements."""


class _Lookups:
    def __init__(self, frame: Frame, looked: Sequence[int], permute: str) -> None:
        self._frame, self._looked, self._permute = frame, looked, permute
        kernel, vector = frame.kernel, frame.schedule.vector
        assert vector is not None
        self._vector = vector
        self._along = outer_steps(kernel, (vector,))
        of_tasks = set(outer_steps(kernel, frame.schedule.tasks))
        users = [n for n in range(len(kernel.steps)) if n not in of_tasks]
        needed = {*kernel.values, *(step for n in users for step in needs(kernel, n))}
        self._of_tasks = sorted(of_tasks & needed)

    def emit(self) -> None:
        frame, builder = self._frame, self._frame.builder
        begin, extent = const(0), frame.dim(frame.kernel.axes[self._vector])
        lanes, conditions = frame.schedule.lanes, frozenset(frame.slopes)
        if conditions:
            # Where they hold lanes are side by side.
            low, high = inner(frame, Place({}, None), conditions, begin, extent)
            enough = builder.icmp_signed(">=", builder.sub(high, low), const(lanes))
            low, high = (builder.select(enough, x, extent) for x in (low, high))
        with counted_loop(builder, frame.begin, frame.end, TOGETHER) as first:
            count = minimum(builder, builder.sub(frame.end, first), const(TOGETHER))
            block = self._block(first, count)

            def looked_up(base: ir.Value, exist: ir.Value | None) -> None:
                self._of_lanes(Lanes(base, mask_of(builder, exist, lanes), exist), block, count)

            if not conditions:
                by_vectors(builder, begin, extent, lanes, looked_up, twice=True)
            else:
                self._side_by_side(block, builder.select(enough, count, begin), low, high)
                # The vectors at both ends reach into those between, unless there are none.
                with counted_loop(builder, 0, 2) as side:
                    end = minimum(builder, maximum(builder, low, const(lanes)), extent)
                    end = builder.select(builder.icmp_signed("==", low, begin), begin, end)
                    last = minimum(builder, high, builder.sub(extent, const(lanes)))
                    last = builder.select(builder.icmp_signed("==", high, extent), extent, last)
                    before = builder.icmp_signed("==", side, const(0))
                    ends = builder.select(before, begin, last), builder.select(before, end, extent)
                    by_vectors(builder, *ends, lanes, looked_up, twice=True)
        builder.ret_void()

    def _side_by_side(self, block: _Block, count: ir.Value, low: ir.Value, high: ir.Value) -> None:
        """Emit the elements `low .. high - 1` of some tasks, where all conditions hold."""
        frame, builder = self._frame, self._frame.builder
        with counted_loop(builder, 0, count) as number:
            place = replace(self._task(block, number), holds=frozenset(frame.slopes))

            def vector(base: ir.Value) -> None:
                self._store(replace(place, lanes=Lanes(base, None, None)))

            by_whole_vectors(builder, low, high, frame.schedule.lanes, vector)

    def _task(self, block: _Block, number: ir.Value) -> Place:
        """What is known of a task of a block."""
        builder, axes = self._frame.builder, self._frame.schedule.tasks
        found = [
            builder.load(builder.gep(array, [number], source_etype=kind), typ=kind)
            for array, kind in block
        ]
        steps = zip(self._of_tasks, found[len(axes) :], strict=True)
        return Place(dict(zip(axes, found, strict=False)), None, known=dict(steps))

    def _store(self, place: Place) -> None:
        values = Values(self._frame, place)
        for result in range(len(self._frame.kernel.values)):
            values.store(result)

    def _block(self, first: ir.Value, count: ir.Value) -> _Block:
        """The index of each task along each axis, and steps that depend on no other axis."""
        frame, builder = self._frame, self._frame.builder
        arrays: list[tuple[ir.Value, ir.Type]] = []

        def of_task(carried: list[ir.Value]) -> list[ir.Value]:
            number, *digits = carried
            index = dict(zip(frame.schedule.tasks, digits, strict=True))
            values = Values(frame, Place(index, None))
            for value in (*digits, *(values.value(step) for step in self._of_tasks)):
                array = reserve(builder, ir.ArrayType(value.type, TOGETHER))
                builder.store(value, builder.gep(array, [number], source_etype=value.type))
                arrays.append((array, value.type))
            return [builder.add(number, const(1)), *following(frame, digits)]

        start = [const(0), *digits_of(frame, first)]
        carried_loop(builder, count, start, of_task, some=True)
        return arrays

    def _of_lanes(self, lanes: Lanes, block: _Block, count: ir.Value) -> None:
        """Emit a vector of all tasks of a block."""
        frame, builder = self._frame, self._frame.builder
        # The index of a task does not matter: what is computed here does not depend on it.
        index = {axis: const(0) for axis in frame.schedule.tasks}
        values = Values(frame, Place(index, lanes))
        known = {step: values.value(step) for step in self._along}

        def of_tasks(windows: Mapping[int, Window]) -> None:
            with counted_loop(builder, 0, count) as number:
                task = self._task(block, number)
                steps = {**known, **task.known}
                self._store(replace(task, lanes=lanes, known=steps, windows=windows))

        if not self._permute or lanes.mask is not None:
            of_tasks({})
            return
        apart = {number: values.apart(number) for number in self._looked}
        reaches = self._reaches(apart)
        last = reduce(lambda x, y: maximum(builder, x, y), (r.last for r in reaches.values()))

        def by_parts(choices: Sequence[int]) -> None:
            if not choices:
                of_tasks({})
                return
            parts, *larger = choices
            near = builder.icmp_signed("<", last, const(parts * frame.schedule.lanes))
            with builder.if_else(near) as (here, elsewhere):
                with here:
                    of_tasks(
                        {
                            number: self._window(apart[number], reach, parts)
                            for number, reach in reaches.items()
                        }
                    )
                with elsewhere:
                    by_parts(larger)

        by_parts(PARTS)

    def _reaches(self, apart: Mapping[int, ir.Value]) -> dict[int, _Reach]:
        """What loads reach whose offsets of lanes are `apart`. Loads to which tasks add the same
        share what is loaded."""
        kernel, builder = self._frame.kernel, self._frame.builder
        alike: dict[object, list[int]] = {}
        for number in apart:
            access = kernel.accesses[number]
            assert access is not None
            own = tuple(entry for entry in access.rest if entry[0] not in self._along)
            coefficients = [c for a, c in enumerate(access.coefficients) if a != self._vector]
            key = kernel.steps[number].payload, access.constant, tuple(coefficients), own
            alike.setdefault(key, []).append(number)
        found: dict[int, _Reach] = {}
        for numbers in alike.values():
            lows, highs = (
                [self._extreme(apart[number], which) for number in numbers]
                for which in ("smin", "smax")
            )
            low = reduce(lambda x, y: minimum(builder, x, y), lows)
            high = reduce(lambda x, y: maximum(builder, x, y), highs)
            found |= dict.fromkeys(numbers, _Reach(low, builder.sub(high, low)))
        return found

    def _extreme(self, vector: ir.Value, which: str) -> ir.Value:
        name = f"llvm.vector.reduce.{which}.{type_suffix(vector.type)}"
        builder = self._frame.builder
        return builder.call(intrinsic(builder.module, name, I64, [vector.type]), [vector])

    def _window(self, apart: ir.Value, reach: _Reach, parts: int) -> Window:
        builder, lanes = self._frame.builder, self._frame.schedule.lanes
        from_low = builder.sub(apart, splat(builder, reach.low, lanes))
        numbers = builder.trunc(from_low, ir.VectorType(I32, lanes))
        masks, above = [], []
        for part in range(parts):
            left = builder.sub(reach.last, const(part * lanes - 1))
            masks.append(lanes_below(builder, left, lanes))
            if part:
                first = ir.Constant(numbers.type, [part * lanes] * lanes)
                above.append(builder.icmp_signed(">=", numbers, first))
        return Window(reach.low, numbers, tuple(masks), tuple(above), self._permute)
