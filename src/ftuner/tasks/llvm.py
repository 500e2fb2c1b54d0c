"""Programs in LLVM IR, for every instruction set.

`void job(record, thread)` executes tasks: a thread takes some virtual workers after the other, so
that threads that the system delays hold up no others. The record has the number of virtual workers
that are taken, how many are taken at once, the value of `workers`, the extents in the order of the
program, and the address of each array. Locals and elements of tiles are on the stack, from where
LLVM moves them to registers. A `lanes` loop goes by vectors, of which the last one is under a mask.
Conditions on indices that hold for a whole task, or for a whole vector, are tested once: the code
inside is written a second time without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product as all_of

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.accumulators import across
from ftuner.codegen.llvm.ir.builder import (
    I1,
    I64,
    any_lane,
    const,
    maximum,
    minimum,
    pointer_slot,
    reserve,
    scalar_type,
    slot,
    splat,
)
from ftuner.codegen.llvm.ir.lanes import lanes_below, load_apart, load_lanes, store_lanes
from ftuner.codegen.llvm.ir.loops import counted_loop, partition_bounds
from ftuner.codegen.llvm.ir.vector_arithmetic import intrinsic
from ftuner.codegen.llvm.native.thread_pool import JOB_TYPE
from ftuner.core.dim import Dim, least_value, product, row_major_strides, symbol
from ftuner.core.evaluation import evaluate
from ftuner.core.symbolic import Atom, Symbol
from ftuner.hardware.isa import InstructionSet
from ftuner.tasks.program import (
    LANES,
    REPEAT,
    WORKERS,
    Apply,
    Assign,
    Choose,
    Element,
    Expr,
    Factor,
    If,
    IndexValue,
    Load,
    Local,
    Loop,
    MakeTile,
    Number,
    Program,
    Reduce,
    SetElement,
    Statement,
    Store,
    Test,
    expressions,
    linear,
    reduced,
    statements,
    tiles_across,
    uses,
)
from ftuner.tasks.proofs import Variable, decided

CHAINS = 4
"""Vectors of a reduction that are added independently. Derived: the latency of a multiply-add is
four cycles on most cores, at one to two of them a cycle."""
MOST_VECTORS = 8
"""Vectors of a `lanes` loop of a number that are written out, where no tile needs it."""
MOST_APART = 4
"""Distance of elements up to which vectors are shuffled from contiguous ones."""
_BASE = "<base>"


def emit(module: ir.Module, symbol_name: str, program: Program, isa: InstructionSet) -> None:
    """Add the job of a program to a module."""
    function = ir.Function(module, JOB_TYPE, symbol_name)
    record, _ = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    names = (WORKERS, *program.extents)
    env = {name: slot(builder, record, number) for number, name in enumerate(names, 2)}
    places = {
        array.name: pointer_slot(builder, record, 2 + len(names) + number)
        for number, array in enumerate(program.arrays)
    }
    _Emitter(builder, program, isa, env, places).tasks(record)
    builder.ret_void()


@dataclass
class _Lanes:
    """The vector of a `lanes` loop that is being written."""

    name: str
    base: ir.Value
    number: int
    """Of the vector, where the loop is written out."""
    live: ir.Value | None
    """The mask of lanes for which statements are executed; None for all."""
    chosen: ir.Value | None = None
    """The part of it that is due to conditions."""
    totals: Mapping[Local | tuple[str, tuple[int, ...]], ir.Value] = field(default_factory=dict)
    """The accumulators of reductions."""


class _Emitter:
    def __init__(
        self, builder: ir.IRBuilder, program: Program, isa: InstructionSet,
        env: dict[str, ir.Value], places: Mapping[str, ir.Value],
    ) -> None:  # fmt: skip
        self._builder, self._program, self._isa = builder, program, isa
        self._env, self._places = env, places
        self._numbers: dict[str, int] = {}
        """Values of variables of loops that are written out."""
        self._element = scalar_type(program.dtype)
        self._lanes = isa.vector_bytes // program.dtype.itemsize
        self._vector = ir.VectorType(self._element, self._lanes)
        self._locals: dict[str, ir.Value] = {}
        self._wide: set[str] = set()
        """Locals and tiles of a `lanes` loop."""
        self._tiles: dict[str, dict[tuple[int, ...], ir.Value]] = {}
        self._across = tiles_across(program)
        self._at: _Lanes | None = None
        self._guard: ir.Value | None = None
        """A scalar condition under which memory may be read; None if it may."""
        self._assumed: frozenset[Test] = frozenset()
        self._nothing = reserve(builder, self._vector)
        builder.store(ir.Constant(self._vector, None), self._nothing)

    # Tasks and loops.

    def tasks(self, taken: ir.Value) -> None:
        """`taken`: where the number of virtual workers that are taken is."""
        loop, builder = self._program.tasks, self._builder
        count, some = self.dim(loop.workers), slot(builder, taken, 1)
        take, execute, done = (
            builder.append_basic_block(f"workers.{name}") for name in ("take", "execute", "done")
        )
        builder.branch(take)
        builder.position_at_end(take)
        first = builder.atomic_rmw("add", taken, some, "monotonic")
        builder.cbranch(builder.icmp_signed("<", first, count), execute, done)
        builder.position_at_end(execute)
        with ExitStack() as loops:
            end = minimum(builder, builder.add(first, some), count)
            virtual = loops.enter_context(counted_loop(builder, first, end))
            self._enter(loop, virtual, loops)
            tests = self._decided(loop.body, [], loop.names)
            self._twice(tests, lambda: self.block(loop.body))
        builder.branch(take)
        builder.position_at_end(done)

    def _enter(self, loop: Loop, virtual: ir.Value, loops: ExitStack) -> None:
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

    def _positions(self, factor: Factor, own: ir.Value, loops: ExitStack) -> list[ir.Value]:
        builder, axes = self._builder, range(len(factor.extents))
        if factor.kind == "repeat":
            found: dict[int, ir.Value] = {}
            for axis in sorted(axes, key=factor.ranks.__getitem__):
                end = self.dim(factor.extents[axis])
                found[axis] = loops.enter_context(counted_loop(builder, 0, end))
            return [found[axis] for axis in axes]
        sizes = factor.extents if factor.kind == "spatial" else factor.parts
        ranks = factor.ranks or tuple(axes)
        after = [product(sizes[b] for b in axes if ranks[b] > ranks[a]) for a in axes]
        digits = [self._digit(own, stride, size) for stride, size in zip(after, sizes, strict=True)]
        if factor.kind == "spatial":
            return digits
        return [
            loops.enter_context(
                counted_loop(
                    builder,
                    *partition_bounds(builder, self.dim(extent), self.dim(parts), digit),
                )
            )
            for extent, parts, digit in zip(factor.extents, factor.parts, digits, strict=True)
        ]

    def _digit(self, number: ir.Value, stride: Dim, radix: Dim) -> ir.Value:
        if radix == 1:
            return const(0)
        builder = self._builder
        quotient = number if stride == 1 else builder.udiv(number, self.dim(stride))
        return builder.urem(quotient, self.dim(radix))

    def block(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Assign(name, value, declares):
                if declares:
                    self._declare(name)
                self._put(self._locals[name], name in self._wide, self.value(value))
            case MakeTile(name, shape, value):
                self._make_tile(name, shape, value)
            case SetElement(Element() as target, value):
                wide = target.tile in self._wide or target.tile in self._across
                self._put(self._place(target), wide, self.value(value))
            case Reduce():
                self._reduce(statement)
            case Store():
                self._store(statement)
            case If(condition, body):
                with self._under(condition) as some:
                    if some:
                        self.block(body)
            case Loop(kind):
                if kind == LANES:
                    self._lanes_loop(statement)
                elif kind == REPEAT and statement.constant:
                    self._written_out(statement)
                else:
                    self._counted(statement, 0)

    def _counted(self, loop: Loop, number: int) -> None:
        if number == len(loop.names):
            self.block(loop.body)
            return
        begin, end = self.dim(loop.begins[number]), self.dim(loop.ends[number])
        with counted_loop(self._builder, begin, end) as index:
            self._env[loop.names[number]] = index
            self._counted(loop, number + 1)

    def _written_out(self, loop: Loop) -> None:
        ranges = [range(*map(int, ends)) for ends in zip(loop.begins, loop.ends, strict=True)]  # type: ignore[arg-type]
        for task in all_of(*ranges):
            for name, value in zip(loop.names, task, strict=True):
                self._numbers[name], self._env[name] = value, const(value)
            self.block(loop.body)

    def _lanes_loop(self, loop: Loop) -> None:
        (name,), (extent,) = loop.names, loop.ends
        lanes, builder, body = self._lanes, self._builder, loop.body
        inner = [s for s in statements(body) if isinstance(s, Loop)]
        simple = all(s.kind == REPEAT and s.constant for s in inner)
        reduces = any(isinstance(s, Reduce) for s in statements(body))
        sets = [self._totals(body) for _ in range(CHAINS if reduces and simple else 1)]

        def vector(base: ir.Value, number: int, count: ir.Value | None, chain: int = 0) -> None:
            live = None if count is None else lanes_below(builder, count, lanes)
            self._at = _Lanes(name, base, number, live, totals=sets[chain])
            self._env[name] = self._env[_BASE] = base
            tests = {}
            if live is None:
                own = Variable(name, symbol(_BASE), symbol(_BASE) + lanes, LANES, loop.line)
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
        for target, kind in reduced(body):
            self._finish(target, kind, sets)

    def _by_vectors(self, extent: ir.Value, chains: int, vector: Callable[..., None]) -> None:
        """Whole vectors, `chains` of them at once, then one by one, then the last lanes."""
        builder, lanes = self._builder, self._lanes
        done: ir.Value = const(0)
        for together in dict.fromkeys((chains, 1)):
            step = together * lanes
            whole = builder.and_(maximum(builder, extent, const(0)), const(-step))
            with counted_loop(builder, done, whole, step) as base:
                for chain in range(together):
                    vector(builder.add(base, const(chain * lanes)), 0, None, chain)
            done = whole
        left = builder.sub(extent, done)
        with builder.if_then(builder.icmp_signed(">", left, const(0))):
            vector(done, 0, left)

    # Conditions that hold for a whole task or vector.

    def _decided(
        self, body: Sequence[Statement], variables: list[Variable], names: Sequence[str]
    ) -> dict[Test, Dim]:
        found = decided(body, variables, names)
        return {test: least for test, least in found.items() if test not in self._assumed}

    def _twice(self, tests: Mapping[Test, Dim], body: Callable[[], None]) -> None:
        """Write a body for where all tests hold, and in general."""
        if not tests:
            body()
            return
        builder = self._builder
        inside: ir.Value = ir.Constant(I1, 1)
        for least in dict.fromkeys(tests.values()):
            holds = builder.icmp_signed(">=", self.dim(least), const(0))
            inside = builder.and_(inside, holds)
        outer = self._assumed
        before = self._saved()
        with builder.if_else(inside, likely=True) as (all_hold, otherwise):
            with all_hold:
                self._assumed = outer | set(tests)
                body()
                self._assumed = outer
            with otherwise:
                self._restore(before)
                body()

    def _saved(self) -> tuple[dict[str, ir.Value], _Lanes | None]:
        return dict(self._env), self._at

    def _restore(self, saved: tuple[dict[str, ir.Value], _Lanes | None]) -> None:
        self._env, self._at = dict(saved[0]), saved[1]

    @contextmanager
    def _under(self, condition: Expr) -> Iterator[bool]:
        """Statements under a condition: the parts of it that are the same for all lanes are a
        branch, the others narrow the mask."""
        scalars: list[ir.Value] = []
        vectors: list[ir.Value] = []
        for part in _parts(condition):
            value = self.condition(part)
            if value is not None:
                (vectors if elements.lanes_of(value) else scalars).append(value)
        builder, lanes = self._builder, self._at
        with ExitStack() as branches:
            for value in scalars:
                branches.enter_context(builder.if_then(value))
            if lanes is not None and vectors:
                outer = lanes.live, lanes.chosen
                for value in vectors:
                    lanes.live = _both(builder, lanes.live, value)
                    lanes.chosen = _both(builder, lanes.chosen, value)
                yield True
                lanes.live, lanes.chosen = outer
            else:
                yield True

    # Locals, tiles and reductions.

    def _declare(self, name: str) -> None:
        kind = self._element if self._at is None else self._vector
        self._locals[name] = reserve(self._builder, kind)
        if self._at is not None:
            self._wide.add(name)

    def _put(self, place: ir.Value, wide: bool, value: ir.Value) -> None:
        """Store to a local, in the lanes that conditions choose."""
        builder = self._builder
        if wide and not elements.lanes_of(value):
            value = splat(builder, value, self._lanes)
        chosen = None if self._at is None else self._at.chosen
        if wide and chosen is not None:
            value = builder.select(chosen, value, builder.load(place, typ=self._vector))
        builder.store(value, place)

    def _make_tile(self, name: str, shape: tuple[int, ...], value: float) -> None:
        wide = self._at is not None or name in self._across
        if self._at is not None:
            self._wide.add(name)
        kind = self._vector if wide else self._element
        sizes = list(shape)
        if name in self._across:
            sizes[-1] = -(-shape[-1] // self._lanes)
        self._tiles[name] = {}
        for place in all_of(*map(range, sizes)):
            memory = self._tiles[name][place] = reserve(self._builder, kind)
            self._builder.store(elements.number(kind, value), memory)

    def _place(self, element: Element) -> ir.Value:
        return self._tiles[element.tile][self._index_of(element)]

    def _index_of(self, element: Element) -> tuple[int, ...]:
        index = element.index
        if element.tile in self._across:
            assert self._at is not None
            leading = tuple(evaluate(d, self._numbers) for d in index[:-1])
            return (*leading, self._at.number)
        return tuple(evaluate(d, self._numbers) for d in index)

    def _totals(
        self, body: Sequence[Statement]
    ) -> dict[Local | tuple[str, tuple[int, ...]], ir.Value]:
        found: dict[Local | tuple[str, tuple[int, ...]], ir.Value] = {}
        for target, kind in reduced(body):
            start = elements.neutral(kind, self._vector, self._program.dtype)
            for key in self._keys(target):
                found[key] = reserve(self._builder, self._vector)
                self._builder.store(start, found[key])
        return found

    def _keys(self, target: str | Local) -> list[Local | tuple[str, tuple[int, ...]]]:
        if isinstance(target, Local):
            return [target]
        return [(target, place) for place in self._tiles[target]]

    def _reduce(self, statement: Reduce) -> None:
        assert self._at is not None
        builder, target, dtype = self._builder, statement.target, self._program.dtype
        key = target if isinstance(target, Local) else (target.tile, self._index_of(target))
        place = self._at.totals[key]
        before = builder.load(place, typ=self._vector)
        match statement.value:
            case Apply("multiply", (x, y)) if statement.kind == "sum":
                after = self._multiply_add(self._widened(x), self._widened(y), before)
            case value:
                after = elements.combine(
                    builder, statement.kind, before, self._widened(value), dtype
                )
        if self._at.live is not None:
            after = builder.select(self._at.live, after, before)
        builder.store(after, place)

    def _finish(
        self, target: str | Local, kind: str,
        sets: Sequence[Mapping[Local | tuple[str, tuple[int, ...]], ir.Value]],
    ) -> None:  # fmt: skip
        """Combine the accumulators of all chains and lanes with what they are reduced into."""
        builder, dtype = self._builder, self._program.dtype
        for key in self._keys(target):
            total = builder.load(sets[0][key], typ=self._vector)
            for other in sets[1:]:
                more = builder.load(other[key], typ=self._vector)
                total = elements.combine(builder, kind, total, more, dtype)
            place = (
                self._locals[key.name] if isinstance(key, Local) else self._tiles[key[0]][key[1]]
            )
            before = builder.load(place, typ=self._element)
            all_lanes = across(builder, kind, total, dtype)
            builder.store(elements.combine(builder, kind, before, all_lanes, dtype), place)

    # Memory.

    def _flat(self, array: str, index: Sequence[Dim]) -> Dim:
        shape = self._program.array(array).shape
        total: Dim = 0
        for position, stride in zip(index, row_major_strides(shape), strict=True):
            total = total + position * stride
        return total

    def _address(self, array: str, flat: Dim, values: Mapping[str, ir.Value]) -> ir.Value:
        offset = self.dim(flat, values)
        return self._builder.gep(self._places[array], [offset], source_etype=self._element)

    def _safe(self, address: ir.Value, condition: ir.Value | None) -> ir.Value:
        """The address, or one that may be read if a condition is false."""
        if condition is None:
            return address
        return self._builder.select(condition, address, self._nothing)

    def _load(self, load: Load) -> ir.Value:
        builder, at_lanes = self._builder, self._at
        flat, align = self._flat(load.array, load.index), self._program.dtype.itemsize
        parts = None if at_lanes is None else linear(flat, at_lanes.name)
        if at_lanes is None or (parts is not None and parts[0] == 0):
            guard = self._guard
            if at_lanes is not None and at_lanes.chosen is not None:
                guard = _both(builder, guard, any_lane(builder, at_lanes.live))
            address = self._safe(self._address(load.array, flat, {}), guard)
            return builder.load(address, typ=self._element, align=align)
        step = None if parts is None else parts[0]
        live = at_lanes.live
        if step == 1:
            address = self._safe(self._address(load.array, flat, {}), self._guard)
            return load_lanes(builder, address, self._vector, align, live)
        if isinstance(step, int) and 1 < abs(step) <= MOST_APART and self._guard is None:
            address = self._address(load.array, flat, {})
            return load_apart(builder, address, self._vector, align, step, live)
        value: ir.Value = ir.Constant(self._vector, None)
        for lane in range(self._lanes):
            own = None if live is None else builder.extract_element(live, const(lane))
            address = self._lane_address(load.array, flat, lane)
            safe = self._safe(address, _both(builder, self._guard, own))
            one = builder.load(safe, typ=self._element, align=align)
            value = builder.insert_element(value, one, const(lane))
        return value

    def _lane_address(self, array: str, flat: Dim, lane: int) -> ir.Value:
        assert self._at is not None
        own = self._builder.add(self._at.base, const(lane))
        return self._address(array, flat, {self._at.name: own})

    def _store(self, statement: Store) -> None:
        builder, lanes, align = self._builder, self._at, self._program.dtype.itemsize
        flat, value = self._flat(statement.array, statement.index), self.value(statement.value)
        if lanes is None:
            builder.store(value, self._address(statement.array, flat, {}), align=align)
            return
        value = self._wide_value(value)
        parts = linear(flat, lanes.name)
        if parts is not None and parts[0] == 1:
            address = self._address(statement.array, flat, {})
            store_lanes(builder, value, address, align, lanes.live)
            return
        for lane in range(self._lanes):
            one = builder.extract_element(value, const(lane))
            with ExitStack() as branch:
                if lanes.live is not None:
                    own = builder.extract_element(lanes.live, const(lane))
                    branch.enter_context(builder.if_then(own))
                address = self._lane_address(statement.array, flat, lane)
                builder.store(one, address, align=align)

    # Values.

    def dim(self, dim: Dim, values: Mapping[str, ir.Value] | None = None) -> ir.Value:
        """An index, with other values for some symbols."""
        builder = self._builder
        if isinstance(dim, int):
            return const(dim)
        total: ir.Value | None = None
        for monomial, coefficient in dim.terms:
            term: ir.Value | None = None if coefficient == 1 and monomial else const(coefficient)
            for atom in monomial:
                part = self._atom(atom, values or {})
                term = part if term is None else builder.mul(term, part)
            assert term is not None
            total = term if total is None else builder.add(total, term)
        assert total is not None
        return total

    def _atom(self, atom: Atom | Symbol, values: Mapping[str, ir.Value]) -> ir.Value:
        builder = self._builder
        if isinstance(atom, Symbol):
            return values[atom.name] if atom.name in values else self._env[atom.name]
        x, y = self.dim(atom.x, values), self.dim(atom.y, values)
        if atom.kind in ("maximum", "minimum"):
            return (maximum if atom.kind == "maximum" else minimum)(builder, x, y)
        if atom.kind == "whole":
            return x
        low = least_value(atom.x)
        if low is not None and low >= 0:
            return (builder.udiv if atom.kind == "quotient" else builder.urem)(x, y)
        # Divisors are positive: round towards minus infinity.
        rest = builder.srem(x, y)
        negative = builder.icmp_signed("<", rest, const(0))
        if atom.kind == "remainder":
            return builder.select(negative, builder.add(rest, y), rest)
        rounded = builder.sdiv(x, y)
        return builder.select(negative, builder.sub(rounded, const(1)), rounded)

    def _each_lane(self, dim: Dim) -> ir.Value:
        """An index; a vector of them if it depends on the lanes."""
        lanes, builder = self._at, self._builder
        if lanes is None or not uses(dim, lanes.name):
            return self.dim(dim)
        parts = linear(dim, lanes.name)
        if parts is None:
            value: ir.Value = ir.Constant(ir.VectorType(I64, self._lanes), ir.Undefined)
            for lane in range(self._lanes):
                own = {lanes.name: builder.add(lanes.base, const(lane))}
                value = builder.insert_element(value, self.dim(dim, own), const(lane))
            return value
        numbers = ir.Constant(ir.VectorType(I64, self._lanes), list(range(self._lanes)))
        step = splat(builder, self.dim(parts[0]), self._lanes)
        first = splat(builder, self.dim(dim), self._lanes)
        return builder.add(first, builder.mul(numbers, step))

    def _widened(self, expr: Expr) -> ir.Value:
        return self._wide_value(self.value(expr))

    def _wide_value(self, value: ir.Value) -> ir.Value:
        return value if elements.lanes_of(value) else splat(self._builder, value, self._lanes)

    def condition(self, expr: Expr) -> ir.Value | None:
        """A condition; None if it is known to hold."""
        builder = self._builder
        match expr:
            case Test(dim, exact):
                if expr in self._assumed:
                    return None
                value = self._each_lane(dim)
                zero = elements.zero(value.type)
                return builder.icmp_signed("==" if exact else ">=", value, zero)
            case Apply("logical_and", (x, y)):
                return _both(builder, self.condition(x), self.condition(y))
        return self.value(expr)

    def value(self, expr: Expr) -> ir.Value:
        builder, dtype = self._builder, self._program.dtype
        match expr:
            case Number(number):
                return ir.Constant(self._element, number)
            case Local(name):
                kind = self._vector if name in self._wide else self._element
                return builder.load(self._locals[name], typ=kind)
            case Element(tile):
                wide = tile in self._wide or tile in self._across
                kind = self._vector if wide else self._element
                return builder.load(self._place(expr), typ=kind)
            case Load():
                return self._load(expr)
            case IndexValue(dim):
                index = self._each_lane(dim)
                return builder.sitofp(index, elements.like(index.type, self._element))
            case Choose(condition, x, y):
                return self._choice(condition, x, y)
            case Test() | Apply("logical_and"):
                found = self.condition(expr)
                return ir.Constant(I1, 1) if found is None else found
            case Apply("logical_not", (x,)):
                return builder.not_(self.value(x))
            case Apply("logical_or" | "logical_xor" as word, (x, y)):
                pair = elements.widened(builder, [self.value(x), self.value(y)])
                return (builder.or_ if word == "logical_or" else builder.xor)(*pair)
            case Apply("add", (x, Apply("multiply", (a, b)))):
                return self._multiply_add(*self._alike(a, b, x))
            case Apply("add", (Apply("multiply", (a, b)), x)):
                return self._multiply_add(*self._alike(a, b, x))
            case Apply("subtract", (x, Apply("multiply", (a, b)))):
                first, second, third = self._alike(a, b, x)
                return self._multiply_add(builder.fneg(first), second, third)
            case Apply(function, arguments):
                given = self._alike(*arguments)
                return elements.apply(builder, function, given, dtype, self._isa.fused)
        raise AssertionError(expr)

    def _alike(self, *arguments: Expr) -> list[ir.Value]:
        return elements.widened(self._builder, [self.value(a) for a in arguments])

    def _multiply_add(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if self._isa.fused:
            return intrinsic(self._builder, "fma", x, y, z)
        return self._builder.fadd(self._builder.fmul(x, y), z)

    def _choice(self, condition: Expr, x: Expr, y: Expr) -> ir.Value:
        builder = self._builder
        wanted = self.condition(condition)
        if wanted is None:
            return self.value(x)
        chosen = []
        for expr, own in ((x, wanted), (y, builder.not_(wanted))):
            guard, lanes = self._guard, self._at
            if lanes is not None and elements.lanes_of(own):
                outer = lanes.live, lanes.chosen
                lanes.live = _both(builder, lanes.live, own)
                lanes.chosen = _both(builder, lanes.chosen, own)
                chosen.append(self.value(expr))
                lanes.live, lanes.chosen = outer
            else:
                self._guard = _both(builder, guard, own)
                chosen.append(self.value(expr))
                self._guard = guard
        return builder.select(*elements.widened(builder, [wanted, *chosen]))


def _both(builder: ir.IRBuilder, x: ir.Value | None, y: ir.Value | None) -> ir.Value | None:
    """Two conditions together; None stands for true."""
    if x is None or y is None:
        return y if x is None else x
    return builder.and_(*elements.widened(builder, [x, y]))


def _parts(condition: Expr) -> Iterator[Expr]:
    match condition:
        case Apply("logical_and", (x, y)):
            yield from _parts(x)
            yield from _parts(y)
        case _:
            yield condition


def _tiles_of(body: Sequence[Statement]) -> Iterator[str]:
    for statement in statements(body):
        for expr in expressions(statement):
            if isinstance(expr, Element):
                yield expr.tile
