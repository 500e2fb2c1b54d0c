"""Locals, register tiles and reductions in LLVM IR. They are on the stack, from where LLVM moves
them to registers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as all_of

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.accumulators import across
from ftuner.tasks.llvm_values import Totals, Values
from ftuner.tasks.program import Apply, Local, Reduce, Statement, reduced


class Locals(Values):
    """What changes while a task is executed."""

    def _declare(self, name: str) -> None:
        kind = self._element if self._at is None else self._vector
        self._locals[name] = self._builder.reserve(kind)
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
        self._tiles[name] = {}
        for place in all_of(*map(range, sizes)):
            memory = self._tiles[name][place] = self._builder.reserve(kind)
            self._builder.store(elements.number(kind, value), memory)

    def _totals(self, body: Sequence[Statement]) -> Totals:
        found = {}
        for target, kind in reduced(body):
            start = elements.neutral(kind, self._vector, self._program.dtype)
            for key in self._keys(target):
                found[key] = self._builder.reserve(self._vector)
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

    def _finish(self, target: str | Local, kind: str, sets: Sequence[Totals]) -> None:
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
