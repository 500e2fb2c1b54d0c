"""Recurrences of definitions as programs: all axes but one in parallel, one step after the other.

A task is a block of lanes along the innermost axis that is independent, at one position of all
others. It goes through the steps in order: each computes the elements of all arrays of a group,
from those before, which are in registers, or in memory of the worker where an axis is reduced at
the end of each step. What does not depend on the step is computed or loaded before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftuner.core.dim import ceil_quotient, product
from ftuner.core.dtype import FLOAT32, FLOAT64
from ftuner.core.functions import neutral
from ftuner.define.elements import Reduction
from ftuner.define.groups import MOST_DELAYS, Group, Uses, position_of, reads_of
from ftuner.define.recurrences import Recurrence
from ftuner.define.values import Lowering
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.ir import Value, building
from ftuner.tasks import program as tir
from ftuner.tasks.cost import Tiles
from ftuner.tasks.interpret import interpret
from ftuner.tasks.recurrence_elements import BLOCK, LANE, Elements, Given
from ftuner.tasks.schedule import Scheduled
from ftuner.tasks.step import OPERATOR

LANES_OF_A_STEP = (32, 16)
"""Lanes of a task. Derived: a vector of AVX-512 is the least; two of them hide some of the latency
of a multiply-add, and more make more code than they gain."""
LANES_OF_REDUCTIONS = (16,)
"""Where a step has a loop, whose iterations do not depend on each other."""
_COMBINED = {"sum": "add", "mean": "add", "product": "multiply"}


class Recurring(Scheduled):
    """The programs of a group."""

    def __init__(self, name: str, programs: Mapping[Tiles, tir.Program], where: str) -> None:
        super().__init__(name, programs)
        self._where = where

    def reference(self, arrays: Sequence[Any], extents: Sequence[int]) -> Any:
        """The results of operands, by the interpreter."""
        values = dict(zip(self._any.extents, extents, strict=True))
        found = interpret(self._any, arrays, values, 1)
        return found[0] if len(found) == 1 else tuple(found)

    def defined(self, operands: Sequence[Value]) -> list[Value]:
        """Raise UnsupportedOperatorError: only programs compute recurrences."""
        raise UnsupportedOperatorError(f"{self._where}: recurrences run on CPUs alone so far")


def scan(lowering: Lowering, group: Group, uses: Uses) -> list[Value]:
    """What is used of the arrays of a group, as results of one node."""
    own = lowering.dtype(group.members[0].type)
    given = Given(lowering, FLOAT64 if own == FLOAT64 else FLOAT32)
    programs: dict[Tiles, tir.Program] = {}
    for lanes in LANES_OF_REDUCTIONS if uses.reductions else LANES_OF_A_STEP:
        writer = _Writer(given, group, uses, lanes)
        programs[("lanes", lanes),] = writer.program()
        if not writer.has_lanes:
            break
    arrays = tuple(one.array for one in given.operands.values())
    names = tuple(map(str, given.names.values()))
    whole = {
        tiles: tir.Program(p.name, (*arrays, *p.arrays), names, p.body)
        for tiles, p in programs.items()
    }
    made = Recurring(lowering.name, whole, group.members[0].place)
    operands = [one.value for one in given.operands.values()]
    results = building().add_many(OPERATOR, *operands, schedule=made, extents=(*given.names,))
    return [value.cast(own) for value in results]


class _Writer(Elements):
    """Writes the program of a group for some lanes of a task."""

    # The program.

    def program(self) -> tir.Program:
        """The program, without its inputs."""
        members, uses = self._group.members, self._uses
        self._make_states()
        for one in members:
            self.count(one.value)
            self._inner.append(tir.Assign(self.now(one).name, self.value(one.value), declares=True))
        outputs, ends = list[tir.Array](), list[tir.Statement]()
        dtype, axes = self._given.dtype, range(len(self._shape))
        for number, one in enumerate(uses.whole):
            outputs.append(tir.Array(f"o{number}", dtype, tuple(self._extents), True))
            self._inner.append(tir.Store(f"o{number}", tuple(self._positions), self.now(one)))
        kept = [a for a in axes if a not in self._reduced]
        for number, reduction in enumerate(uses.reductions, len(outputs)):
            shape, index = (tuple(x[a] for a in kept) for x in (self._extents, self._positions))
            outputs.append(tir.Array(f"o{number}", dtype, shape, True))
            ends.append(tir.Store(f"o{number}", index, self._total(reduction, f"t{number}")))
        for one in members:
            self._shift(one)
        step = [*self._made, *self._in_lanes([*self._step, *self._inner])]
        if self._reduced:
            rows = self._loop(sorted(self._reduced), self._in_lanes(self._inner))
            step = [*self._made, *self._in_lanes(self._step), rows, *self._in_lanes(ends)]
        body = [*self._begin, *self._in_lanes(self._before)]
        if self._panels:
            body.append(self._loop(sorted(self._reduced), self._in_lanes(self._panels)))
        body.append(self._loop([self._time], step))
        return tir.Program(self._lowering.name, tuple(outputs), (), (self._tasks(body),))

    def _tasks(self, body: Sequence[tir.Statement]) -> tir.Loop:
        names = [f"i{a}" for a in self._others if a != self._along]
        extents = [self._extents[a] for a in self._others if a != self._along]
        if self._along is not None:
            names.append(BLOCK)
            extents.append(ceil_quotient(self._extents[self._along], self._lanes))
        shape = tuple(extents) or (1,)
        factor = tir.Factor("spatial", shape, ranks=tuple(range(len(shape))))
        begins = (0,) * len(shape)
        return tir.Loop(tir.TASKS, tuple(names) or ("task",), begins, shape, tuple(body), (factor,))

    def _loop(self, axes: Sequence[int], body: Sequence[tir.Statement]) -> tir.Loop:
        names, ends = tuple(f"i{a}" for a in axes), tuple(self._extents[a] for a in axes)
        return tir.Loop(tir.RANGE, names, (0,) * len(axes), ends, tuple(body))

    def _in_lanes(self, body: Sequence[tir.Statement]) -> list[tir.Statement]:
        if self._along is None or not body:
            return [*body]
        inside = tir.Test(self._extents[self._along] - 1 - self._positions[self._along])
        return [tir.Loop(tir.LANES, (LANE,), (0,), (self._lanes,), (tir.If(inside, tuple(body)),))]

    # States.

    def _make_states(self) -> None:
        for one in self._group.members:
            name, count = self.state(one), self._delays(one)
            if count and self._reduced:
                self.make_panel(name, count)
                self._panels += [
                    tir.Store(name, self.row(n), tir.Number(0.0)) for n in range(count)
                ]
            elif count:
                self.make_tile(self._begin, name, 0.0, count)

    def _delays(self, one: Recurrence) -> int:
        """How many earlier elements of an array a step keeps."""
        reads = (r for member in self._group.members for r in reads_of(member.value, [one]))
        backs = map(self.back, reads)
        return max((b for b in backs if isinstance(b, int) and b <= MOST_DELAYS), default=0)

    def _shift(self, one: Recurrence) -> None:
        for back in range(self._delays(one), 0, -1):
            place = self.earlier(one, back)
            new = self.earlier(one, back - 1) if back > 1 else self.now(one)
            if isinstance(place, tir.Load):
                self._inner.append(tir.Store(place.array, place.index, new))
            else:
                self._inner.append(tir.SetElement(place, new))

    def _total(self, reduction: Reduction, name: str) -> tir.Expr:
        """Add a reduction to a step; gives its result."""
        self.place(position_of(reduction, self._group))
        self.count(reduction.body)
        combined = _COMBINED.get(reduction.kind, reduction.kind)
        start = neutral("sum" if reduction.kind == "mean" else reduction.kind, self._given.dtype)
        self.make_tile(self._made, name, float(start))
        total = self.element(name)
        value = tir.Apply(combined, (total, self.value(reduction.body)))
        self._inner.append(tir.SetElement(total, value))
        if reduction.kind == "mean":
            count = product(self._extents[a] for a in self._reduced)
            return tir.Apply("divide", (total, tir.IndexValue(count)))
        return total
