"""The cost of a nest: each step costs by the loops in which its schedule computes it.

Each reduction and each kind of result is a pass over the loops. A step is computed in the innermost
loop whose index it depends on, once for each vector along the vector axis, because the compiler
moves invariant code out of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ftuner.core.access import Access, Kernel, differing
from ftuner.core.cpu.schedule import (
    chains_of,
    kept_in_result,
    looked_up,
    operand_numbers,
    schedule_of,
    task_count,
)
from ftuner.core.evaluation import evaluate
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.index_expr import POSITIONAL, Stage
from ftuner.core.scaled_product import is_scaled
from ftuner.cost.functions import operation_cycles
from ftuner.cost.step import Machine, StepCost, Stream, estimate_of
from ftuner.hardware.isa import instruction_set

POSITION_INSTRUCTIONS = 4
"""Further instructions of an extremum that keeps its position: comparisons and selections of values
and of positions. Derived from the code."""

SCALED_PRODUCT_INSTRUCTIONS: Mapping[int, int] = {4: 20, 8: 16}
"""Instructions of one factor of a product of floats, by bytes of an element. Derived from
`codegen/llvm/ir/accumulators.py`; a test counts them again. AVX2 compiles them to 19 and 17."""
SCALED_PRODUCT_CHAIN_CYCLES = 5.0
"""Latency from a product of mantissas to the mantissa that the next factor needs, without the
multiplication. Derived: two additions, a minimum or exclusive or, a comparison and a blend of one
cycle each."""


LOOKED_UP = (1, 2)
"""Instructions for each vector of memory that lanes are looked up in: a permute, then a permute and
a selection. Assumed: two vectors have all lanes, as those of half a picture do."""


class Operand(NamedTuple):
    """A buffer that a nest reads or writes."""

    bytes: int
    resident_bytes: int
    """Bytes accessed between two runs of the step, if the buffer is a constant; otherwise 0,
    because it was just written."""


class _Loop(NamedTuple):
    axes: frozenset[int]
    iterations: int
    """Vectors, along the vector axis."""


class _Pass(NamedTuple):
    """Cycles of the busiest worker."""

    issue: float
    chain: float
    """Cycles of the reduction's chain of dependent operations."""
    fixed: float


def _extents(kernel: Kernel, bindings: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of the axes. Parts of a reduced one are taken to add up to all of it."""
    found = [evaluate(n, bindings) for n in kernel.axes]
    counts = {stage.count for stage in kernel.stages if stage.count is not None}
    kept = range(len(kernel.kept)) if counts else ()
    for axis in kept:
        if not counts.isdisjoint(differing(kernel, (axis,))):
            found[-1] = -(-found[-1] // max(found[axis], 1))
    return tuple(found)


class NestCost:
    """A kernel at known extents, and the loops of its schedule."""

    def __init__(self, kernel: Kernel, extents: Mapping[str, int], machine: Machine) -> None:
        self.kernel = kernel
        self.machine = machine
        self.extents = _extents(kernel, extents)
        self._tuning = machine.hardware.tuning
        self.schedule = schedule_of(
            kernel, machine.isa.vector_bytes, self._tuning.nest_block_elements
        )
        permutes = instruction_set(machine.isa.name).permute
        self._looked = frozenset(looked_up(kernel, self.schedule) if permutes else ())
        self._bindings = extents
        self._kept = len(kernel.kept)
        vector = self.schedule.vector
        self._inner = tuple(a for a in range(self._kept, len(self.extents)) if a != vector)
        exchanges = self.schedule.across is not None
        blocks = not self.schedule.tasks and vector is not None and vector < self._kept
        self._blocks = blocks and not exchanges
        self.tasks = evaluate(task_count(kernel, self.schedule), extents)
        self.tasks_of_busiest = -(-self.tasks // machine.workers)
        self._loops = self._nest_of_loops()
        self._depends = self._dependences()

    @property
    def elements_of_busiest(self) -> int:
        """Elements of a task along the vector axis, where blocks of that axis are the tasks."""
        return min(self.tasks_of_busiest * self.schedule.block, self.extents[self.schedule.along])

    @property
    def share(self) -> float:
        """The busiest worker's share of what tasks divide."""
        if not self.tasks:
            return 0.0
        if self._blocks:
            return self.elements_of_busiest / self.extents[self.schedule.along]
        return self.tasks_of_busiest / self.tasks

    def total(self, reads: Sequence[Operand], writes: Sequence[Operand]) -> StepCost:
        """The cost of the step, whose buffers are `reads` and `writes`, in their order."""
        kernel, share = self.kernel, self.share
        numbers = operand_numbers(kernel)
        touched, divided = [0] * len(reads), [True] * len(reads)
        for step, access in zip(kernel.steps, kernel.accesses, strict=True):
            if access is not None:
                i = numbers.index(step.number)
                touched[i] += step.dtype.itemsize * self._elements(self._axes_of(access))
                divided[i] &= self._divides(access)
        read = [min(t, operand.bytes) for t, operand in zip(touched, reads, strict=True)]
        written = 0
        for value, target, operand in zip(kernel.values, kernel.targets, writes, strict=True):
            size = kernel.steps[value].dtype.itemsize * self._elements(self._axes_of(target))
            written += min(size, operand.bytes)
        footprint = sum(read) + written
        streams = [Stream(written * share, footprint)]
        for size, alone, operand in zip(read, divided, reads, strict=True):
            part = share if alone or not share else 1.0
            streams.append(Stream(size * part, max(footprint, operand.resident_bytes)))
        passes = self._passes()
        issue = sum(p.issue for p in passes)
        waits = sum(max(p.chain - p.issue, 0.0) for p in passes)
        fixed = sum(p.fixed for p in passes)
        workers = max(min(self.tasks, self.machine.workers), 1)
        estimate = estimate_of(self.machine, workers, issue, waits, fixed, streams)
        return StepCost(self._flops(), sum(read), written, estimate)

    def _nest_of_loops(self) -> tuple[_Loop, ...]:
        """The loops of the busiest worker, outermost first."""
        schedule, extents, vector = self.schedule, self.extents, self.schedule.vector
        tasks = _Loop(frozenset(schedule.tasks), self.tasks_of_busiest)
        loops = [] if self._blocks else [tasks]
        along = None
        if vector is not None:
            elements = self.elements_of_busiest if self._blocks else extents[vector]
            along = _Loop(frozenset({vector}), -(-elements // schedule.lanes))
        if along is not None and vector is not None and vector < self._kept:
            loops.append(along)
        known = {a for loop in loops for a in loop.axes}
        rest = [a for a in range(self._kept) if a not in known and a != vector]
        loops += [_Loop(frozenset({a}), extents[a]) for a in (*rest, *self._inner)]
        if along is not None and vector is not None and vector >= self._kept:
            loops.append(along)
        return tuple(loops)

    def _dependences(self) -> list[frozenset[int]]:
        """The axes that each step depends on."""
        found: list[frozenset[int]] = []
        kept = frozenset(range(self._kept))
        for step, access in zip(self.kernel.steps, self.kernel.accesses, strict=True):
            if step.op == "index":
                found.append(frozenset({step.number}))
            elif step.op == "stage":
                found.append(kept)
            elif access is not None:
                found.append(self._reached(access, found))
            else:
                found.append(frozenset().union(*(found[a] for a in step.arguments)))
        return found

    def _axes_of(self, access: Access) -> frozenset[int]:
        return self._reached(access, self._depends)

    def _reached(self, access: Access, depends: Sequence[frozenset[int]]) -> frozenset[int]:
        """The axes that decide where an access goes; a broadcast one has a coefficient of zero."""
        direct = (a for a, c in enumerate(access.coefficients) if evaluate(c, self._bindings) != 0)
        return frozenset(direct).union(*(depends[step] for step, _ in access.rest))

    def _divides(self, access: Access) -> bool:
        """Whether tasks divide what an access touches."""
        vector, exchanges = self.schedule.vector, self.schedule.across is not None
        axes = set(self.schedule.tasks)
        if self._blocks or exchanges:
            axes |= {-1 if vector is None else vector}
        return not axes.isdisjoint(self._axes_of(access))

    def _elements(self, axes: Iterable[int]) -> int:
        return math.prod(self.extents[a] for a in axes)

    def _flops(self) -> int:
        kernel = self.kernel
        total = sum(
            self._elements(axes)
            for step, axes in zip(kernel.steps, self._depends, strict=True)
            if step.op in SCALAR_FUNCTIONS
            and any(kernel.steps[a].dtype.kind == "float" for a in step.arguments)
        )
        for stage in kernel.stages:
            if kernel.steps[stage.value].dtype.kind == "float":
                total += math.prod(self.extents)
        return total

    def _passes(self) -> list[_Pass]:
        kernel, everywhere = self.kernel, len(self._loops)
        if self.schedule.across is not None:
            return [self._transposition(self.schedule.across)]
        if any(stage.kind == "scan" for stage in kernel.stages):
            (stage,) = kernel.stages
            return [self._pass([stage.value], range(len(kernel.values)), everywhere, stage)]
        found = [self._pass(stage.needed, (), everywhere, stage) for stage in kernel.stages]
        wide = [i for i, w in enumerate(kernel.wide) if w]
        narrow = [i for i, w in enumerate(kernel.wide) if not w]
        reduced = set(range(self._kept, len(self.extents)))
        outer = sum(1 for loop in self._loops if reduced.isdisjoint(loop.axes))
        if narrow:
            found.append(self._pass([], narrow, outer, None))
        if wide:
            found.append(self._pass([], wide, everywhere, None))
        return found

    def _pass(
        self, values: Sequence[int], results: Iterable[int], depth: int, stage: Stage | None
    ) -> _Pass:
        """One walk of the outer `depth` loops: `values` are computed, `results` stored too."""
        kernel, isa = self.kernel, self.machine.isa
        kept = kept_in_result(kernel, self.schedule)
        iterations = [min(self.tasks, 1), *(loop.iterations for loop in self._loops[:depth])]
        times = [math.prod(iterations[: i + 1]) for i in range(len(iterations))]
        needed = set(values)
        issue = 0.0
        for result in results:
            target = kernel.targets[result]
            needed |= {kernel.values[result], *(step for step, _ in target.rest)}
            size = kernel.steps[kernel.values[result]].dtype.itemsize
            if self.schedule.interleaved is None:
                issue += times[-1] * self._access_cycles(target, size, isa.store_per_cycle)
            else:
                # Each vector is put together from those of all elements of the short axis.
                shuffles = self.extents[self.schedule.interleaved] - 1
                issue += times[-1] * (shuffles + 1.0 / isa.store_per_cycle)
            if kernel.combine:
                issue += times[-1] * self._access_cycles(target, size, isa.load_per_cycle)
        for number in reversed(range(len(kernel.steps))):
            if number not in needed:
                continue
            step, access, axes = (
                kernel.steps[number],
                kernel.accesses[number],
                self._depends[number],
            )
            if step.op == "stage":
                continue
            if kept is not None and number == kept[0] and stage in (None, kernel.stages[-1]):
                # The last reduction stores it, and the pass of results loads it.
                target, size = kernel.targets[kept[1]], step.dtype.itemsize
                per_cycle = isa.load_per_cycle if stage is None else isa.store_per_cycle
                issue += times[-1] * self._access_cycles(target, size, per_cycle)
                if stage is None:
                    continue
            needed |= set(step.arguments if access is None else (s for s, _ in access.rest))
            inside = [i for i, loop in enumerate(self._loops[:depth], 1) if loop.axes & axes]
            count = times[max(inside, default=0)]
            if access is not None and number in self._looked:
                issue += count * (len(LOOKED_UP) / isa.load_per_cycle + sum(LOOKED_UP))
            elif access is not None:
                issue += count * self._access_cycles(
                    access, step.dtype.itemsize, isa.load_per_cycle
                )
            elif step.op != "index":
                source = kernel.steps[step.arguments[0]].dtype if step.arguments else step.dtype
                issue += count * operation_cycles(
                    step.op, source, self._lanes(axes), isa, self._tuning
                )
        # The loop over tasks is entered once, and blocks are tasks.
        entered = self.tasks_of_busiest if self._blocks else times[-2] if depth > 1 else 0
        fixed = self._tuning.loop_cycles * entered
        if stage is None:
            return _Pass(issue, 0.0, fixed)
        dtype = kernel.steps[stage.value].dtype
        across = self.schedule.vector is not None and self.schedule.vector >= self._kept
        lanes = 1 if self.schedule.vector is None else self.schedule.lanes
        op = {"sum": "add", "scan": "add", "product": "multiply"}.get(stage.kind, "maximum")
        step_cycles = operation_cycles(op, dtype, lanes, isa, self._tuning)
        latency_cycles = isa.fma_latency_cycles
        if is_scaled(stage.kind, dtype):
            step_cycles *= SCALED_PRODUCT_INSTRUCTIONS[dtype.itemsize]
            latency_cycles += SCALED_PRODUCT_CHAIN_CYCLES
        if stage.kind in POSITIONAL and stage.kind != "scan":
            step_cycles += POSITION_INSTRUCTIONS * operation_cycles(
                "less", dtype, lanes, isa, self._tuning
            )
        if across:
            # Lanes are added up by halves; each addition waits for a shuffle.
            rounds = math.log2(max(lanes, 1))
            fixed += entered * rounds * (latency_cycles + 1.0)
        latency_cycles /= chains_of(kernel, self.schedule, stage)
        return _Pass(issue + times[-1] * step_cycles, times[-1] * latency_cycles, fixed)

    def _transposition(self, across: int) -> _Pass:
        """Squares of both axes: loads, a shuffle for each vector and halving, what is computed of
        it, stores."""
        isa, lanes, block = self.machine.isa, self.schedule.lanes, self.schedule.block
        columns = -(-min(block, self.extents[self.schedule.along]) // lanes)
        squares = self.tasks_of_busiest * columns * -(-self.extents[across] // lanes)
        moved = 1.0 / isa.store_per_cycle + math.log2(lanes)
        for step, access in zip(self.kernel.steps, self.kernel.accesses, strict=True):
            if access is not None:
                moved += 1.0 / isa.load_per_cycle
            elif step.arguments:
                moved += operation_cycles(step.op, step.dtype, lanes, isa, self._tuning)
        return _Pass(squares * lanes * moved, 0.0, squares * self._tuning.loop_cycles)

    def _lanes(self, axes: frozenset[int]) -> int:
        return self.schedule.lanes if self.schedule.vector in axes else 1

    def _access_cycles(self, access: Access, size: int, per_cycle: float) -> float:
        """Cycles of one vector, or of one element where nothing depends on the vector axis."""
        lanes = self._lanes(self._axes_of(access))
        if lanes == 1:
            return 1.0 / per_cycle
        along = evaluate(access.coefficients[self.schedule.along], self._bindings)
        scattered = any(self.schedule.vector in self._depends[step] for step, _ in access.rest)
        if scattered or along != 1:
            return lanes * self._tuning.gather_cycles_per_lane
        return max(lanes * size / self.machine.isa.vector_bytes, 1.0) / per_cycle
