"""The schedule of a nest that looks elements up along the vector axis, in LLVM IR: what is resized
or mirrored along its last axis.

The vector axis alone decides where the lanes of these loads are (`looked_up`). So a block of tasks
is walked by vectors, and each vector by tasks: where its lanes are is computed once for a block.
Mostly that is within a few vectors of memory: these are loaded, and permutes put each lane in its
place. Otherwise, and where an instruction set has no permute, each lane is a load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I32, I64, const, intrinsic, type_suffix
from ftuner.codegen.llvm.ir.lanes import by_vectors, by_whole_vectors, lanes_below, mask_of
from ftuner.core.access import needs, outer_steps
from ftuner.core.frozen import dataclass
from ftuner.hardware.isa import InstructionSet
from ftuner.schedules.nest.cpu_kernel_place import Frame, Lanes, Place, Window
from ftuner.schedules.nest.cpu_kernel_tasks import digits_of, following, inner
from ftuner.schedules.nest.cpu_kernel_values import Values

TOGETHER = 16
"""Tasks of a block. Derived: finding the lanes takes about as long as what is then done for some
tasks; as many rows are one stream of memory each."""
PERMUTED_BYTES = 4
"""Size of the elements of which vectors are permuted."""
PARTS = (1, 2, 4)
"""Vectors of memory in which lanes are looked up. Derived: with more, that takes as many
instructions as a load for each lane."""


def permute_for(frame: Frame, looked: Sequence[int], isa: InstructionSet) -> str:
    """The intrinsic by which lanes of the loads `looked` are looked up; empty if there is none."""
    sizes = {frame.kernel.steps[number].dtype.itemsize for number in looked}
    whole = frame.schedule.lanes * PERMUTED_BYTES == isa.vector_bytes
    return isa.permute if whole and sizes == {PERMUTED_BYTES} else ""


@dataclass(frozen=True)
class _Reach:
    """Memory with all lanes of a load, beside what each task adds to the offset: what each lane
    adds, the least of that, and the distance from there to the most, of all loads that share it."""

    apart: ir.Value
    low: ir.Value
    last: ir.Value


_Block = Sequence[tuple[ir.Value, ir.Type]]
"""Arrays of what is known of each task of a block, and the type of their elements."""


def _joined(lanes: Place, task: Place) -> Place:
    """Some lanes of a task."""
    return replace(lanes, index=task.index, known={**lanes.known, **task.known})


class Lookups:
    """Emits a kernel with some loads of this kind."""

    def __init__(self, frame: Frame, looked: Sequence[int], permute: str) -> None:
        """`looked`: the loads; `permute`: as of `permute_for`, not empty where lanes are side by
        side under conditions."""
        self._frame, self._looked, self._permute = frame, looked, permute
        kernel, self._vector = frame.kernel, frame.schedule.along
        self._along = outer_steps(kernel, (self._vector,))
        of_tasks = set(outer_steps(kernel, frame.schedule.tasks))
        users = [n for n in range(len(kernel.steps)) if n not in of_tasks]
        needed = {*kernel.values, *(step for n in users for step in needs(kernel, n))}
        self._of_tasks = sorted(of_tasks & needed)

    def emit(self) -> None:
        frame, builder = self._frame, self._frame.builder
        if frame.slopes:
            self._copies()
        else:
            self._blocks(self._lines)
        builder.ret_void()

    def _blocks(self, emit: Callable[[_Block, ir.Value], None]) -> None:
        """Emit blocks of tasks; `emit` gets a block and its number of tasks."""
        frame, builder = self._frame, self._frame.builder
        with builder.counted_loop(frame.begin, frame.end, TOGETHER) as first:
            count = builder.minimum(builder.sub(frame.end, first), TOGETHER)
            emit(self._block(first, count), count)

    def _lines(self, block: _Block, count: ir.Value) -> None:
        """Emit all elements of a block."""
        frame, lanes = self._frame, self._frame.schedule.lanes

        def vector(base: ir.Value, exist: ir.Value | None) -> None:
            self._vector_of(Lanes(base, mask_of(frame.builder, exist, lanes), exist), block, count)

        extent = frame.dim(frame.kernel.axes[self._vector])
        by_vectors(frame.builder, const(0), extent, lanes, vector, twice=True)

    def _copies(self) -> None:
        """Emit tasks in which lanes are side by side where all conditions hold. Before and after
        that are mostly few elements: those of one vector, which reaches into the others."""
        frame, builder, lanes = self._frame, self._frame.builder, self._frame.schedule.lanes
        begin, extent = const(0), frame.dim(frame.kernel.axes[self._vector])
        low, high = inner(frame, Place({}, None), frame.slopes, begin, extent)
        last = builder.sub(extent, lanes)
        few = builder.icmp_signed(">=", builder.sub(high, low), lanes)
        few = builder.and_(few, builder.icmp_signed("<=", low, lanes))
        few = builder.and_(few, builder.icmp_signed(">=", high, last))

        def rows(places: Sequence[Place]) -> None:
            def of_block(block: _Block, count: ir.Value) -> None:
                with builder.counted_loop(0, count) as number:
                    task = self._task(block, number)
                    for place in places:
                        self._store(_joined(place, task))
                    inside = replace(task, holds=frozenset(frame.slopes))
                    here = replace(task, index={**task.index, self._vector: low})
                    by_whole_vectors(builder, low, high, lanes, lambda base: self._store(
                        replace(inside, lanes=Lanes(base, None, None))),
                        ahead=Values(frame, here).ahead())  # fmt: skip

            self._blocks(of_block)

        with builder.if_else(few, likely=True) as (ends, everywhere):
            with ends:
                places = [self._along_of(Lanes(base, None, None)) for base in (begin, last)]
                found = [self._reaches(self._apart(place)) for place in places]
                near = self._within([r for reaches in found for r in reaches.values()], 1)
                with builder.if_else(near, likely=True) as (here, elsewhere):
                    with here:
                        rows([self._looking(*pair, 1) for pair in zip(places, found, strict=True)])
                    with elsewhere:
                        rows(places)
            with everywhere:
                self._blocks(self._lines)

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
                array = builder.reserve(ir.ArrayType(value.type, TOGETHER))
                builder.store(value, builder.gep(array, [number], source_etype=value.type))
                arrays.append((array, value.type))
            return [builder.add(number, 1), *following(frame, digits)]

        start = [const(0), *digits_of(frame, first)]
        builder.carried_loop(count, start, of_task, some=True)
        return arrays

    def _along_of(self, lanes: Lanes) -> Place:
        """What is known of some lanes of all tasks."""
        # The index of a task does not matter: what is computed here does not depend on it.
        index = {axis: const(0) for axis in self._frame.schedule.tasks}
        values = Values(self._frame, Place(index, lanes))
        return Place(index, lanes, known={step: values.value(step) for step in self._along})

    def _vector_of(self, lanes: Lanes, block: _Block, count: ir.Value) -> None:
        """Emit a vector of all tasks of a block."""
        builder, along = self._frame.builder, self._along_of(lanes)

        def of_tasks(place: Place) -> None:
            with builder.counted_loop(0, count) as number:
                task = self._task(block, number)
                self._store(_joined(place, task))

        if not self._permute or lanes.mask is not None:
            of_tasks(along)
            return
        reaches = self._reaches(self._apart(along))

        def by_parts(choices: Sequence[int]) -> None:
            if not choices:
                of_tasks(along)
                return
            parts, *larger = choices
            near = self._within(reaches.values(), parts)
            with builder.if_else(near) as (here, elsewhere):
                with here:
                    of_tasks(self._looking(along, reaches, parts))
                with elsewhere:
                    by_parts(larger)

        by_parts(PARTS)

    def _apart(self, place: Place) -> dict[int, ir.Value]:
        """What each lane adds to the offset of each load."""
        values = Values(self._frame, place)
        return {number: values.apart(number) for number in self._looked}

    def _reaches(self, apart: Mapping[int, ir.Value]) -> dict[int, _Reach]:
        """What loads reach. Loads to which tasks add the same share what is loaded."""
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
            low = reduce(builder.minimum, lows)
            last = builder.sub(reduce(builder.maximum, highs), low)
            found |= {number: _Reach(apart[number], low, last) for number in numbers}
        return found

    def _within(self, reaches: Iterable[_Reach], parts: int) -> ir.Value:
        """Whether all lanes of loads are within some vectors of memory."""
        builder = self._frame.builder
        last = reduce(builder.maximum, (reach.last for reach in reaches))
        return builder.icmp_signed("<", last, parts * self._frame.schedule.lanes)

    def _looking(self, place: Place, reaches: Mapping[int, _Reach], parts: int) -> Place:
        """A place at which loads look their lanes up in some vectors of memory."""
        windows = {number: self._window(reach, parts) for number, reach in reaches.items()}
        return replace(place, windows=windows)

    def _extreme(self, vector: ir.Value, which: str) -> ir.Value:
        name = f"llvm.vector.reduce.{which}.{type_suffix(vector.type)}"
        builder = self._frame.builder
        return builder.call(intrinsic(builder.module, name, I64, [vector.type]), [vector])

    def _window(self, reach: _Reach, parts: int) -> Window:
        builder, lanes = self._frame.builder, self._frame.schedule.lanes
        from_low = builder.sub(reach.apart, builder.splat(reach.low, lanes))
        numbers = builder.trunc(from_low, ir.VectorType(I32, lanes))
        masks, above = [], []
        for part in range(parts):
            left = builder.sub(reach.last, part * lanes - 1)
            masks.append(lanes_below(builder, left, lanes))
            if part:
                first = ir.Constant(numbers.type, [part * lanes] * lanes)
                above.append(builder.icmp_signed(">=", numbers, first))
        return Window(reach.low, numbers, tuple(masks), tuple(above), self._permute)
