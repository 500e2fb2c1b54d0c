"""From a `for` statement of Python to a loop, with the mappings that it goes over."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from ftuner.core.dim import Dim, never_negative, product, symbol
from ftuner.errors import MappingError
from ftuner.tasks.language import MAPPINGS
from ftuner.tasks.parse_expressions import Expressions
from ftuner.tasks.program import LANES, RANGE, REPEAT, TASKS, Factor, Loop, Statement, uses

MOST_UNROLLED = 256
"""Iterations of a `repeat` of numbers, which is written out. Derived: more than the registers of
any ISA."""


class Loops(Expressions, ABC):
    """Loops, of which the bodies are given by `_block`."""

    _copies = 1
    """How often the statement that is parsed is written out."""

    @abstractmethod
    def _block(self, body: list[ast.stmt], names: Mapping[str, Any]) -> tuple[Statement, ...]:
        """The statements of a loop, in which some names are indices."""

    # Loops.

    def _loop(self, node: ast.For) -> Statement:
        match node.iter:
            case ast.Call(func, [ast.Name("worker") as argument], []) if self._is_mapping(func):
                if self._in_tasks:
                    raise self.error(MappingError, argument, "a worker's tasks within its tasks")
                return self._task_loop(node, self._mapping(func))
            case ast.Call(func, arguments, []) if self._word(func) in (RANGE, LANES):
                return self._counted(node, self._word(func), arguments)
            case mapping if self._is_mapping(mapping):
                return self._repeated(node, self._mapping(mapping))
        what = f"a loop over `{ast.unparse(node.iter)}`"
        raise self.unsupported(node, f"{what}; expected tasks(worker), range, lanes, repeat")

    def _targets(self, node: ast.For, axes: int) -> list[str]:
        names = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        found = [n.id for n in names if isinstance(n, ast.Name)]
        if len(found) != len(names) or len(found) != axes or len(set(found)) != axes:
            what = f"`{ast.unparse(node.target)}` has {len(names)} names"
            raise self.error(MappingError, node, f"{what}; the tasks have {axes} axes")
        for name in found:
            if name in self._arrays or name in self._extents or name in self._scopes.maps[-1]:
                raise self.unsupported(node, f"the name {name!r} is taken")
        return found

    def _task_loop(self, node: ast.For, factors: tuple[Factor, ...]) -> Loop:
        axes = len(factors[0].extents)
        own = self._targets(node, axes)
        names = [self._unique(name) for name in own]
        ends = tuple(product(f.extents[axis] for f in factors) for axis in range(axes))
        self._in_tasks = True
        inner = self._block(node.body, {o: symbol(n) for o, n in zip(own, names, strict=True)})
        self._in_tasks = False
        return Loop(TASKS, tuple(names), (0,) * axes, ends, inner, factors, line=node.lineno)

    def _counted(self, node: ast.For, kind: str, arguments: list[ast.expr]) -> Loop:
        if not 1 <= len(arguments) <= (2 if kind == RANGE else 1) or not self._in_tasks:
            what = "expected lanes(n), range(n) or range(begin, end), within a task"
            raise self.unsupported(node, f"`{ast.unparse(node.iter)}`: {what}")
        bounds = [self._dim(a, f"a bound of {kind}") for a in arguments]
        begin, end = (0, bounds[0]) if len(bounds) == 1 else bounds
        (own,) = self._targets(node, 1)
        name = self._unique(own)
        if kind == RANGE:
            self._expect_for_all_lanes(node, bounds)
            index: Dim = symbol(name)
            if not never_negative(begin):
                # Symbols are zero or more: the variable counts from the first index on.
                begin, end, index = 0, end - begin, index + begin
            inner = self._block(node.body, {own: index})
        else:
            if self._lane is not None:
                raise self.unsupported(node, "a lanes loop within another one")
            self._lane, self._lane_extent = name, end
            self._reduced, self._read = set(), set()
            inner = self._block(node.body, {own: symbol(name)})
            self._lane = None
            if both := sorted(self._reduced & self._read):
                what = f"{', '.join(both)}: read in the lanes loop that reduces it"
                raise self.unsupported(node, f"{what}; its iterations have no order")
        return Loop(kind, (name,), (begin,), (end,), inner, line=node.lineno)

    def _expect_for_all_lanes(self, node: ast.For, bounds: Iterable[Dim]) -> None:
        if self._lane is not None and any(uses(bound, self._lane) for bound in bounds):
            what = f"`{ast.unparse(node.iter)}` differs between lanes, which go together"
            raise self.unsupported(
                node, f"{what}; expected a loop for all of them, with an `if` in it"
            )

    def _repeated(self, node: ast.For, factors: tuple[Factor, ...]) -> Loop:
        if any(f.kind != REPEAT for f in factors):
            what = "a mapping to workers is called: `for i in tasks(worker)`"
            raise self.error(MappingError, node, what)
        self._expect_for_all_lanes(node, (e for f in factors for e in f.extents))
        own = self._targets(node, len(factors[0].extents))
        loops = [
            (self._unique(own[axis]), factor.extents[axis], number, axis)
            for number, factor in enumerate(factors)
            for axis in sorted(range(len(own)), key=factor.ranks.__getitem__)
        ]
        indices: dict[str, Dim] = {}
        for axis, name in enumerate(own):
            total: Dim = 0
            for number, factor in enumerate(factors):
                (variable,) = (v for v, _, n, a in loops if (n, a) == (number, axis))
                total = total * factor.extents[axis] + symbol(variable)
            indices[name] = total
        names, ends = tuple(loop[0] for loop in loops), tuple(loop[1] for loop in loops)
        numbers = [e for e in ends if isinstance(e, int)]
        copies = self._copies
        if len(numbers) == len(ends):
            self._copies *= max(prod(numbers), 1)
            if self._copies > MOST_UNROLLED:
                what = f"{self._copies} iterations written out"
                raise self.unsupported(node, f"{what}; expected {MOST_UNROLLED} at most, or range")
            self._unrolled |= set(names)
        inner = self._block(node.body, indices)
        self._copies = copies
        return Loop(REPEAT, names, (0,) * len(names), ends, inner, line=node.lineno)

    # Mappings.

    def _is_mapping(self, node: ast.expr) -> bool:
        match node:
            case ast.Call(func):
                return self._word(func) in MAPPINGS
            case ast.BinOp(x, ast.Mult(), y):
                return self._is_mapping(x) or self._is_mapping(y)
            case ast.Name(name):
                return isinstance(self._scopes.get(name), tuple)
        return False

    def _mapping(self, node: ast.expr) -> tuple[Factor, ...]:
        match node:
            case ast.BinOp(x, ast.Mult(), y) if self._is_mapping(x) and self._is_mapping(y):
                factors = (*self._mapping(x), *self._mapping(y))
                ranks = {len(f.extents) for f in factors}
                if len(ranks) > 1:
                    axes = " and ".join(map(str, sorted(ranks)))
                    raise self.refused(
                        node, f": mappings of {axes} axes are composed", MappingError
                    )
                return factors
            case ast.Name():
                found: tuple[Factor, ...] = self._lookup(node)
                return found
            case ast.Call(func, arguments, keywords) if self._is_mapping(node):
                return (self._factor(node, self._word(func), arguments, keywords),)
        raise self.refused(node, ": a mapping times what is none", MappingError)

    def _factor(
        self, node: ast.Call, word: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> Factor:
        parts: tuple[Dim, ...] = ()
        if word in ("split", "grid"):
            if len(arguments) != 2 or keywords:
                raise self.error(MappingError, node, f"{word} takes extents and parts")
            rows = [a.elts if isinstance(a, ast.Tuple) else [a] for a in arguments]
            extents, parts = (
                tuple(self._dim(a, f"an extent of {word}") for a in row) for row in rows
            )
            if len(extents) != len(parts) or (word == "split" and len(extents) != 1):
                what = f"{word} of {len(extents)} extents and {len(parts)} parts"
                raise self.error(MappingError, node, what)
            if any(isinstance(p, int) and p < 1 for p in parts):
                raise self.refused(node, ": less than one part", MappingError)
            factor = Factor("partition", extents, parts)
        else:
            extents = tuple(self._dim(a, f"an extent of {word}") for a in arguments)
            ranks = self._ranks(node, keywords, len(extents))
            factor = Factor(word, extents, ranks=ranks)
        if not extents or any(isinstance(e, int) and e < 0 for e in extents):
            raise self.refused(node, ": no extents, or a negative one", MappingError)
        return factor

    def _ranks(self, node: ast.Call, keywords: list[ast.keyword], axes: int) -> tuple[int, ...]:
        if not keywords:
            return tuple(range(axes))
        match keywords:
            case [ast.keyword("ranks", ast.Tuple(values))]:
                ranks = tuple(getattr(v, "value", None) for v in values)
                if sorted(map(str, ranks)) == sorted(map(str, range(axes))):
                    return ranks  # type: ignore[return-value]
        what = f": expected ranks=(...), a permutation of its {axes} axes"
        raise self.refused(node, what, MappingError)
