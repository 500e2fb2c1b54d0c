"""Values of a program in LLVM IR: dims, elements, memory, and locals, which are on the stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from itertools import product as all_of

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.accumulators import across
from ftuner.codegen.llvm.ir.builder import I1, I64, IRBuilder, const, scalar_type
from ftuner.codegen.llvm.ir.lanes import load_apart, load_lanes, store_lanes
from ftuner.codegen.llvm.ir.vector_arithmetic import intrinsic
from ftuner.core.dim import Dim, never_negative
from ftuner.core.evaluation import evaluate
from ftuner.core.frozen import dataclass
from ftuner.core.symbolic import Atom, Symbol
from ftuner.hardware.isa import InstructionSet
from ftuner.tasks import program as tir

MOST_APART = 4
"""Distance of elements up to which vectors are shuffled from contiguous ones."""
Place = tir.Local | tuple[str, tuple[int, ...]]
"""A local, or an element of a tile."""
Totals = Mapping[Place, ir.Value]
"""The accumulators of reductions into places."""


@dataclass(frozen=True)
class Vector:
    """The vector of a `lanes` loop that is being written."""

    name: str
    base: ir.Value
    number: int
    """Of the vector, where the loop is written out."""
    live: ir.Value | None
    """The mask of lanes for which statements are executed; None for all."""
    chosen: ir.Value | None = None
    """The part of it that is due to conditions."""
    totals: Totals = field(default_factory=dict)
    """The accumulators of reductions."""


class Values:
    """Values where the builder is: scalars, and vectors in a `lanes` loop."""

    def __init__(
        self, builder: IRBuilder, program: tir.Program, isa: InstructionSet,
        env: dict[str, ir.Value], places: dict[str, ir.Value], memory: ir.Value,
    ) -> None:  # fmt: skip
        """`memory`: for the panels of a task."""
        self._builder, self._program, self._isa = builder, program, isa
        self._env, self._places, self._memory = env, places, memory
        self._panels, _ = program.panel_places()
        self._numbers: dict[str, int] = {}
        """Values of variables of loops that are written out."""
        self._element = scalar_type(program.dtype)
        self._lanes = isa.vector_bytes // program.dtype.itemsize
        self._vector = ir.VectorType(self._element, self._lanes)
        self._kept: dict[Place, ir.Value] = {}
        self._wide: set[str] = set()
        """Locals and tiles of a `lanes` loop."""
        self._across = tir.tiles_across(program)
        self._at: Vector | None = None
        self._guard: ir.Value | None = None
        """A scalar condition under which memory may be read; None if it may."""
        self._assumed: frozenset[tir.Test] = frozenset()
        self._nothing = builder.reserve(self._vector)
        builder.store(ir.Constant(self._vector, None), self._nothing)

    # Indices.

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
            return (builder.maximum if atom.kind == "maximum" else builder.minimum)(x, y)
        if atom.kind == "whole":
            return x
        if never_negative(atom.x):
            return (builder.udiv if atom.kind == "quotient" else builder.urem)(x, y)
        # Divisors are positive: round towards minus infinity.
        rest = builder.srem(x, y)
        negative = builder.icmp_signed("<", rest, 0)
        if atom.kind == "remainder":
            return builder.select(negative, builder.add(rest, y), rest)
        rounded = builder.sdiv(x, y)
        return builder.select(negative, builder.sub(rounded, 1), rounded)

    def _each_lane(self, dim: Dim) -> ir.Value:
        """An index; a vector of them if it depends on the lanes."""
        lanes, builder = self._at, self._builder
        if lanes is None or not tir.uses(dim, lanes.name):
            return self.dim(dim)
        parts = tir.linear(dim, lanes.name)
        if parts is None:
            value: ir.Value = ir.Constant(ir.VectorType(I64, self._lanes), ir.Undefined)
            for lane in range(self._lanes):
                own = {lanes.name: builder.add(lanes.base, lane)}
                value = builder.insert_element(value, self.dim(dim, own), const(lane))
            return value
        numbers = ir.Constant(ir.VectorType(I64, self._lanes), list(range(self._lanes)))
        step = builder.splat(self.dim(parts[0]), self._lanes)
        first = builder.splat(self.dim(dim), self._lanes)
        return builder.add(first, builder.mul(numbers, step))

    # Elements.

    def _widened(self, expr: tir.Expr) -> ir.Value:
        return self._wide_value(self.value(expr))

    def _wide_value(self, value: ir.Value) -> ir.Value:
        return value if elements.lanes_of(value) else self._builder.splat(value, self._lanes)

    def condition(self, expr: tir.Expr) -> ir.Value | None:
        """A condition; None if it is known to hold."""
        builder = self._builder
        match expr:
            case tir.Test(dim, exact):
                if expr in self._assumed:
                    return None
                value = self._each_lane(dim)
                zero = elements.zero(value.type)
                return builder.icmp_signed("==" if exact else ">=", value, zero)
            case tir.Apply("logical_and", (x, y)):
                return both(builder, self.condition(x), self.condition(y))
        return self.value(expr)

    def value(self, expr: tir.Expr) -> ir.Value:
        builder, dtype = self._builder, self._program.dtype
        match expr:
            case tir.Number(number):
                return ir.Constant(self._element, number)
            case tir.Local(name):
                kind = self._vector if name in self._wide else self._element
                return builder.load(self._kept[expr], typ=kind)
            case tir.Element(tile):
                wide = tile in self._wide or tile in self._across
                kind = self._vector if wide else self._element
                return builder.load(self._place(expr), typ=kind)
            case tir.Load():
                return self._load(expr)
            case tir.IndexValue(dim):
                index = self._each_lane(dim)
                return builder.sitofp(index, elements.like(index.type, self._element))
            case tir.Choose(condition, x, y):
                return self._choice(condition, x, y)
            case tir.Test() | tir.Apply("logical_and"):
                found = self.condition(expr)
                return ir.Constant(I1, 1) if found is None else found
            case tir.Apply("logical_not", (x,)):
                return builder.not_(self.value(x))
            case tir.Apply("logical_or" | "logical_xor" as word, (x, y)):
                pair = elements.widened(builder, [self.value(x), self.value(y)])
                return (builder.or_ if word == "logical_or" else builder.xor)(*pair)
            case tir.Apply("add", (x, tir.Apply("multiply", (a, b)))) | tir.Apply(
                "add", (tir.Apply("multiply", (a, b)), x)
            ):
                return self._multiply_add(*self._alike(a, b, x))
            case tir.Apply("subtract", (x, tir.Apply("multiply", (a, b)))):
                first, second, third = self._alike(a, b, x)
                return self._multiply_add(builder.fneg(first), second, third)
            case tir.Apply(function, arguments):
                given = self._alike(*arguments)
                return elements.apply(builder, function, given, dtype, self._isa.fused)
        raise AssertionError(expr)

    def _alike(self, *arguments: tir.Expr) -> list[ir.Value]:
        return elements.widened(self._builder, [self.value(a) for a in arguments])

    def _multiply_add(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if self._isa.fused:
            return intrinsic(self._builder, "fma", x, y, z)
        return self._builder.fadd(self._builder.fmul(x, y), z)

    def _choice(self, condition: tir.Expr, x: tir.Expr, y: tir.Expr) -> ir.Value:
        builder = self._builder
        wanted = self.condition(condition)
        if wanted is None:
            return self.value(x)
        chosen = []
        for expr, own in ((x, wanted), (y, builder.not_(wanted))):
            guard = self._guard
            if elements.lanes_of(own):
                with self._narrowed([own]):
                    chosen.append(self.value(expr))
            else:
                self._guard = both(builder, guard, own)
                chosen.append(self.value(expr))
                self._guard = guard
        return builder.select(*elements.widened(builder, [wanted, *chosen]))

    @contextmanager
    def _narrowed(self, conditions: Sequence[ir.Value]) -> Iterator[None]:
        """Statements in the lanes for which some vectors of conditions hold."""
        outer = self._at
        if outer is not None:
            live, chosen = outer.live, outer.chosen
            for own in conditions:
                live, chosen = both(self._builder, live, own), both(self._builder, chosen, own)
            self._at = replace(outer, live=live, chosen=chosen)
        yield
        self._at = outer

    def _place(self, element: tir.Element) -> ir.Value:
        return self._kept[element.tile, self._index_of(element)]

    def _index_of(self, element: tir.Element) -> tuple[int, ...]:
        index = element.index
        if element.tile in self._across:
            assert self._at is not None
            leading = tuple(evaluate(d, self._numbers) for d in index[:-1])
            return (*leading, self._at.number)
        return tuple(evaluate(d, self._numbers) for d in index)

    # Memory.

    def _address(
        self, array: str, flat: Dim, values: Mapping[str, ir.Value] | None = None
    ) -> ir.Value:
        offset = self.dim(flat, values)
        return self._builder.gep(self._places[array], [offset], source_etype=self._element)

    def _safe(self, address: ir.Value, condition: ir.Value | None) -> ir.Value:
        """The address, or one that may be read if a condition is false."""
        if condition is None:
            return address
        return self._builder.select(condition, address, self._nothing)

    def _load(self, load: tir.Load) -> ir.Value:
        builder, at_lanes = self._builder, self._at
        flat, align = self._program.array(load.array).flat(load.index), self._program.dtype.itemsize
        parts = None if at_lanes is None else tir.linear(flat, at_lanes.name)
        if at_lanes is None or (parts is not None and parts[0] == 0):
            guard = self._guard
            if at_lanes is not None and at_lanes.chosen is not None:
                guard = both(builder, guard, builder.any_lane(at_lanes.live))
            address = self._safe(self._address(load.array, flat), guard)
            return builder.load(address, typ=self._element, align=align)
        step = None if parts is None else parts[0]
        live = at_lanes.live
        if step == 1:
            address = self._safe(self._address(load.array, flat), self._guard)
            return load_lanes(builder, address, self._vector, align, live)
        if isinstance(step, int) and 1 < abs(step) <= MOST_APART and self._guard is None:
            address = self._address(load.array, flat)
            return load_apart(builder, address, self._vector, align, step, live)
        value: ir.Value = ir.Constant(self._vector, None)
        for lane in range(self._lanes):
            own = None if live is None else builder.extract_element(live, const(lane))
            address = self._lane_address(load.array, flat, lane)
            safe = self._safe(address, both(builder, self._guard, own))
            one = builder.load(safe, typ=self._element, align=align)
            value = builder.insert_element(value, one, const(lane))
        return value

    def _lane_address(self, array: str, flat: Dim, lane: int) -> ir.Value:
        assert self._at is not None
        own = self._builder.add(self._at.base, lane)
        return self._address(array, flat, {self._at.name: own})

    def _store(self, statement: tir.Store) -> None:
        builder, lanes, align = self._builder, self._at, self._program.dtype.itemsize
        flat = self._program.array(statement.array).flat(statement.index)
        value = self.value(statement.value)
        if lanes is None:
            builder.store(value, self._address(statement.array, flat), align=align)
            return
        value = self._wide_value(value)
        parts = tir.linear(flat, lanes.name)
        if parts is not None and parts[0] == 1:
            address = self._address(statement.array, flat)
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

    # Locals, register tiles and reductions.

    def _declare(self, name: str) -> None:
        kind = self._element if self._at is None else self._vector
        self._kept[tir.Local(name)] = self._builder.reserve(kind)
        if self._at is not None:
            self._wide.add(name)

    def _put(self, place: ir.Value, wide: bool, value: ir.Value) -> None:
        """Store to a local, in the lanes that conditions choose."""
        builder = self._builder
        if wide and not elements.lanes_of(value):
            value = builder.splat(value, self._lanes)
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
        for place in all_of(*map(range, sizes)):
            memory = self._kept[name, place] = self._builder.reserve(kind)
            self._builder.store(elements.number(kind, value), memory)

    def _totals(self, body: Sequence[tir.Statement]) -> Totals:
        found = {}
        for target, kind in tir.reduced(body):
            start = elements.neutral(kind, self._vector, self._program.dtype)
            for key in self._keys(target):
                found[key] = self._builder.reserve(self._vector)
                self._builder.store(start, found[key])
        return found

    def _keys(self, target: str | tir.Local) -> list[Place]:
        """The local, or the elements of a tile."""
        return [p for p in self._kept if target in (p, None if isinstance(p, tir.Local) else p[0])]

    def _reduce(self, statement: tir.Reduce) -> None:
        assert self._at is not None
        builder, target, dtype = self._builder, statement.target, self._program.dtype
        key = target if isinstance(target, tir.Local) else (target.tile, self._index_of(target))
        place = self._at.totals[key]
        before = builder.load(place, typ=self._vector)
        match statement.value:
            case tir.Apply("multiply", (x, y)) if statement.kind == "sum":
                after = self._multiply_add(self._widened(x), self._widened(y), before)
            case value:
                after = elements.combine(
                    builder, statement.kind, before, self._widened(value), dtype
                )
        if self._at.live is not None:
            after = builder.select(self._at.live, after, before)
        builder.store(after, place)

    def _finish(self, target: str | tir.Local, kind: str, sets: Sequence[Totals]) -> None:
        """Combine the accumulators of all chains and lanes with what they are reduced into."""
        builder, dtype = self._builder, self._program.dtype
        for key in self._keys(target):
            total = builder.load(sets[0][key], typ=self._vector)
            for other in sets[1:]:
                more = builder.load(other[key], typ=self._vector)
                total = elements.combine(builder, kind, total, more, dtype)
            before = builder.load(self._kept[key], typ=self._element)
            all_lanes = across(builder, kind, total, dtype)
            whole = elements.combine(builder, kind, before, all_lanes, dtype)
            builder.store(whole, self._kept[key])


def both(builder: IRBuilder, x: ir.Value | None, y: ir.Value | None) -> ir.Value | None:
    """Two conditions together; None stands for true."""
    if x is None or y is None:
        return y if x is None else x
    return builder.and_(*elements.widened(builder, [x, y]))
