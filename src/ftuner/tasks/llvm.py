"""Programs in LLVM IR, for every instruction set.

`void job(record, thread)` executes tasks: a thread takes some virtual workers after the other, so
that threads that the system delays hold up no others. The record has the number of virtual workers
that are taken, how many are taken at once, the value of `workers`, the extents in the order of the
program, the address of memory for panels and the bytes of it that are each thread's, and the
address of each array. Locals and elements of tiles are on the stack, from where LLVM moves them to
registers. A `lanes` loop goes by vectors, of which the last one is under a mask. Conditions on
indices that hold for a whole task, for an iteration of a loop with loops in it, or for a whole
vector, are tested once: the code inside is written a second time without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product as all_of

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I1, PTR, begun, const
from ftuner.codegen.llvm.ir.lanes import lanes_below
from ftuner.codegen.llvm.native.thread_pool import JOB_TYPE
from ftuner.core.cpu.schedule import REDUCTION_CHAINS
from ftuner.core.dim import Dim, product, symbol
from ftuner.hardware.isa import InstructionSet
from ftuner.tasks import program as tir
from ftuner.tasks.bounds import Variable, conjuncts, decided
from ftuner.tasks.llvm_values import Values, Vector

MOST_VECTORS = 8
"""Vectors of a `lanes` loop of a number that are written out, where no tile needs it."""
_BASE = "<base>"


def emit(module: ir.Module, symbol_name: str, program: tir.Program, isa: InstructionSet) -> None:
    """Add the job of a program to a module."""
    builder, (record, thread) = begun(module, JOB_TYPE, symbol_name)
    names = (tir.WORKERS, *program.extents)
    env = {name: builder.slot(record, number) for number, name in enumerate(names, 2)}
    places = {
        array.name: builder.pointer_slot(record, 4 + len(names) + number)
        for number, array in enumerate(program.arrays)
    }
    memory, size = (builder.slot(record, 2 + len(names) + i) for i in range(2))
    own = builder.add(memory, builder.mul(size, thread))
    Emitter(builder, program, isa, env, places, builder.inttoptr(own, PTR)).tasks(record)
    builder.ret_void()


class Emitter(Values):
    """Writes the statements of a program where its builder is."""

    # Tasks and loops.

    def tasks(self, taken: ir.Value) -> None:
        """`taken`: where the number of virtual workers that are taken is."""
        loop, builder = self._program.tasks, self._builder
        count, some = self.dim(loop.workers), builder.slot(taken, 1)
        take, execute, done = (
            builder.append_basic_block(f"workers.{name}") for name in ("take", "execute", "done")
        )
        builder.branch(take)
        builder.position_at_end(take)
        first = builder.atomic_rmw("add", taken, some, "monotonic")
        builder.cbranch(builder.icmp_signed("<", first, count), execute, done)
        builder.position_at_end(execute)
        self._execute(first, builder.minimum(builder.add(first, some), count))
        builder.branch(take)
        builder.position_at_end(done)

    def shares(self, begin: ir.Value, end: ir.Value) -> None:
        """Execute shares of the virtual workers, of which there are as many as `workers`."""
        builder, parts = self._builder, self._env[tir.WORKERS]
        count = self.dim(self._program.tasks.workers)
        first, last = (builder.udiv(builder.mul(count, number), parts) for number in (begin, end))
        self._execute(first, last)

    def _execute(self, first: ir.Value, end: ir.Value) -> None:
        """Execute the tasks of some virtual workers."""
        loop = self._program.tasks
        with ExitStack() as loops:
            virtual = loops.enter_context(self._builder.counted_loop(first, end))
            self._enter(loop, virtual, loops)
            tests = self._decided(loop.body, [], loop.names)
            self._twice(tests, lambda: self.block(loop.body))

    def _enter(self, loop: tir.Loop, virtual: ir.Value, loops: ExitStack) -> None:
        """Open the loops over the tasks of a virtual worker."""
        builder, indices = self._builder, [const(0)] * len(loop.names)
        for number, factor in enumerate(loop.factors):
            inner = product(f.workers for f in loop.factors[number + 1 :])
            own = self._digit(virtual, inner, factor.workers)
            positions = self._positions(factor, own, loops)
            indices = [
                builder.add(builder.mul(outer, self.dim(extent)), position)
                for outer, extent, position in zip(indices, factor.extents, positions, strict=True)
            ]
        self._env.update(zip(loop.names, indices, strict=True))

    def _positions(self, factor: tir.Factor, own: ir.Value, loops: ExitStack) -> list[ir.Value]:
        builder, axes = self._builder, range(len(factor.extents))
        if factor.kind == "repeat":
            found: dict[int, ir.Value] = {}
            for axis in sorted(axes, key=factor.ranks.__getitem__):
                end = self.dim(factor.extents[axis])
                found[axis] = loops.enter_context(builder.counted_loop(0, end))
            return [found[axis] for axis in axes]
        sizes = factor.extents if factor.kind == "spatial" else factor.parts
        ranks = factor.ranks or tuple(axes)
        after = [product(sizes[b] for b in axes if ranks[b] > ranks[a]) for a in axes]
        digits = [self._digit(own, stride, size) for stride, size in zip(after, sizes, strict=True)]
        if factor.kind == "spatial":
            return digits
        rows = zip(map(self.dim, factor.extents), map(self.dim, factor.parts), digits, strict=True)
        cut = (builder.counted_loop(*builder.partition_bounds(*row)) for row in rows)
        return [*map(loops.enter_context, cut)]

    def _digit(self, number: ir.Value, stride: Dim, radix: Dim) -> ir.Value:
        if radix == 1:
            return const(0)
        builder = self._builder
        quotient = number if stride == 1 else builder.udiv(number, self.dim(stride))
        return builder.urem(quotient, self.dim(radix))

    def block(self, body: Sequence[tir.Statement]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: tir.Statement) -> None:
        match statement:
            case tir.Assign(name, value, declares):
                if declares:
                    self._declare(name)
                self._put(self._kept[tir.Local(name)], name in self._wide, self.value(value))
            case tir.MakeTile(name, shape, value):
                self._make_tile(name, shape, value)
            case tir.MakePanel(array):
                place = self.dim(self._panels[array.name])
                self._places[array.name] = self._builder.at(self._memory, place)
            case tir.SetElement(tir.Element() as target, value):
                wide = target.tile in self._wide or target.tile in self._across
                self._put(self._place(target), wide, self.value(value))
            case tir.Reduce():
                self._reduce(statement)
            case tir.Store():
                self._store(statement)
            case tir.If(condition, body):
                with self._under(condition):
                    self.block(body)
            case tir.Loop(kind):
                if kind == tir.LANES:
                    self._lanes_loop(statement)
                elif kind == tir.REPEAT and statement.constant:
                    self._written_out(statement)
                else:
                    self._counted(statement, 0)

    def _counted(self, loop: tir.Loop, number: int) -> None:
        if number == len(loop.names):
            self.block(loop.body)
            return
        begin, end = self.dim(loop.begins[number]), self.dim(loop.ends[number])
        with self._builder.counted_loop(begin, end) as index:
            self._env[loop.names[number]] = index
            tests = {}
            innermost = self._at is None and number == len(loop.names) - 1
            if innermost and any(isinstance(s, tir.Loop) for s in tir.statements(loop.body)):
                tests = self._decided(loop.body, [], loop.names)
            self._twice(tests, lambda: self._counted(loop, number + 1))

    def _written_out(self, loop: tir.Loop) -> None:
        ranges = [range(*map(int, ends)) for ends in zip(loop.begins, loop.ends, strict=True)]  # type: ignore[arg-type]
        for task in all_of(*ranges):
            for name, value in zip(loop.names, task, strict=True):
                self._numbers[name], self._env[name] = value, const(value)
            self.block(loop.body)

    def _lanes_loop(self, loop: tir.Loop) -> None:
        (name,), (extent,) = loop.names, loop.ends
        lanes, builder, body = self._lanes, self._builder, loop.body
        inner = [s for s in tir.statements(body) if isinstance(s, tir.Loop)]
        simple = all(s.kind == tir.REPEAT and s.constant for s in inner)
        reduces = any(isinstance(s, tir.Reduce) for s in tir.statements(body))
        sets = [self._totals(body) for _ in range(REDUCTION_CHAINS if reduces and simple else 1)]

        def vector(base: ir.Value, number: int, count: ir.Value | None, chain: int = 0) -> None:
            live = None if count is None else lanes_below(builder, count, lanes)
            self._at = Vector(name, base, number, live, totals=sets[chain])
            self._env[name] = self._env[_BASE] = base
            tests = {}
            if live is None:
                own = Variable(name, symbol(_BASE), symbol(_BASE) + lanes, tir.LANES, loop.line)
                tests = self._decided(body, [own], (name,))
            self._twice(tests, lambda: self.block(body))
            self._at = None

        vectors = -(-extent // lanes) if isinstance(extent, int) else 0
        needed = any(s in self._across for s in _tiles_of(body))
        if isinstance(extent, int) and (needed or (simple and vectors <= MOST_VECTORS)):
            for number in range(max(vectors, 0)):
                left = extent - number * lanes
                count = const(left) if left < lanes else None
                vector(const(number * lanes), number, count, number % len(sets))
        else:
            self._by_vectors(self.dim(extent), len(sets), vector)
        for target, kind in tir.reduced(body):
            self._finish(target, kind, sets)

    def _by_vectors(self, extent: ir.Value, chains: int, vector: Callable[..., None]) -> None:
        """Whole vectors, `chains` of them at once, then one by one, then the last lanes."""
        builder, lanes = self._builder, self._lanes
        done: ir.Value = const(0)
        for together in dict.fromkeys((chains, 1)):
            step = together * lanes
            whole = builder.and_(builder.maximum(extent, 0), -step)
            with builder.counted_loop(done, whole, step) as base:
                for chain in range(together):
                    vector(builder.add(base, chain * lanes), 0, None, chain)
            done = whole
        left = builder.sub(extent, done)
        with builder.if_then(builder.icmp_signed(">", left, 0)):
            vector(done, 0, left)

    # Conditions.

    def _decided(
        self, body: Sequence[tir.Statement], variables: list[Variable], names: Sequence[str]
    ) -> dict[tir.Test, Dim]:
        found = decided(body, variables, names)
        return {test: least for test, least in found.items() if test not in self._assumed}

    def _twice(self, tests: Mapping[tir.Test, Dim], body: Callable[[], None]) -> None:
        """Write a body for where all tests hold, and in general."""
        if not tests:
            body()
            return
        builder = self._builder
        inside: ir.Value = ir.Constant(I1, 1)
        for least in dict.fromkeys(tests.values()):
            holds = builder.icmp_signed(">=", self.dim(least), 0)
            inside = builder.and_(inside, holds)
        outer = self._assumed
        before, lanes = dict(self._env), self._at
        with builder.if_else(inside, likely=True) as (all_hold, otherwise):
            with all_hold:
                self._assumed = outer | set(tests)
                body()
                self._assumed = outer
            with otherwise:
                self._env, self._at = before, lanes
                body()

    @contextmanager
    def _under(self, condition: tir.Expr) -> Iterator[None]:
        """Statements under a condition: the parts of it that are the same for all lanes are a
        branch, the others narrow the mask."""
        found = [self.condition(part) for part in conjuncts(condition)]
        vectors = [v for v in found if v is not None and elements.lanes_of(v)]
        with ExitStack() as parts:
            for value in found:
                if value is not None and not elements.lanes_of(value):
                    parts.enter_context(self._builder.if_then(value))
            parts.enter_context(self._narrowed(vectors))
            yield


def _tiles_of(body: Sequence[tir.Statement]) -> Iterator[str]:
    for statement in tir.statements(body):
        for expr in tir.expressions(statement):
            if isinstance(expr, tir.Element):
                yield expr.tile
