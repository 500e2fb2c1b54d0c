"""Programs as Triton text: a Triton program is a virtual worker, a `lanes` loop goes by blocks.

Conditions are masks. Loops of numbers are written out, as are the rows of register tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product as all_of

from ftuner.codegen.triton.functions import Functions, literal, scalar_bool, type_text
from ftuner.codegen.triton.source import TRITON_TYPES, Argument, Source, function_source
from ftuner.core.dim import Dim, never_negative, product
from ftuner.core.evaluation import evaluate
from ftuner.core.functions import neutral
from ftuner.core.symbolic import Atom, Symbol
from ftuner.errors import UnsupportedStatementError
from ftuner.tasks import program as tir

BLOCK = 128
"""Lanes of a loop whose extent is known at run time. Derived: a warp of 32 threads loads 16 bytes
each."""
WARPS, STAGES = 4, 1


def kernel_source(program: tir.Program) -> Source:
    """The kernel `name(workers, *extents, *arrays)`, for as many programs as there are virtual
    workers (`program.tasks.workers`)."""
    writer = _Writer(program)
    writer.tasks()
    names = [(name, "i64") for name in (tir.WORKERS, *program.extents)]
    pointers = [(f"{a.name}_p", f"*{TRITON_TYPES[a.dtype.name]}") for a in program.arrays]
    arguments = [Argument(f"v_{name}", kind) for name, kind in names]
    arguments += [Argument(name, kind) for name, kind in pointers]
    prelude = writer.functions.prelude()
    return function_source(program.name, prelude, arguments, writer.lines, WARPS, STAGES)


class _Writer:
    def __init__(self, program: tir.Program) -> None:
        self.functions, self.lines = Functions(), list[str]()
        self._program, self._dtype = program, program.dtype
        self._depth = 0
        self._numbers: dict[str, int] = {}
        self._across = tir.tiles_across(program)
        self._wide: set[str] = set()
        """Locals and tiles that are blocks."""
        self._tiles: dict[str, tuple[int, ...]] = {}
        self._lane, self._size = "", 0
        self._masks: list[str] = []

    def _put(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    @contextmanager
    def _loop(self, name: str, begin: str, end: str, step: str = "1") -> Iterator[None]:
        self._put(f"for {name} in range({begin}, {end}, {step}):")
        self._depth += 1
        yield
        self._depth -= 1

    def tasks(self) -> None:
        loop, indices = self._program.tasks, ["0"] * len(self._program.tasks.names)
        self._put("own = tl.program_id(0).to(tl.int64)")
        with ExitStack() as loops:
            for number, factor in enumerate(loop.factors):
                inner = product(f.workers for f in loop.factors[number + 1 :])
                own = f"(own // {self._dim(inner)} % {self._dim(factor.workers)})"
                found = self._positions(factor, own, f"f{number}", loops)
                rows = zip(indices, map(self._dim, factor.extents), found, strict=True)
                indices = [f"({outer}) * {extent} + {index}" for outer, extent, index in rows]
            for name, index in zip(loop.names, indices, strict=True):
                self._put(f"v_{name} = {index}")
            self._block(loop.body)

    def _positions(self, factor: tir.Factor, own: str, name: str, loops: ExitStack) -> list[str]:
        """Open the loops over the tasks of a worker of a mapping."""
        axes, found = range(len(factor.extents)), dict[int, str]()
        ranks, sizes = factor.ranks or tuple(axes), factor.parts or factor.extents
        for axis in sorted(axes, key=ranks.__getitem__):
            extent, size = self._dim(factor.extents[axis]), self._dim(sizes[axis])
            after = product(sizes[b] for b in axes if ranks[b] > ranks[axis])
            digit, bounds = f"({own} // {self._dim(after)} % {size})", ("0", extent)
            if factor.kind == "partition":
                bounds = f"{digit} * {extent} // {size}", f"({digit} + 1) * {extent} // {size}"
            found[axis] = digit
            if factor.kind != "spatial":
                found[axis] = f"{name}_{axis}"
                loops.enter_context(self._loop(found[axis], *bounds))
        return [found[axis] for axis in axes]

    def _block(self, body: Sequence[tir.Statement]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: tir.Statement) -> None:
        match statement:
            case tir.Assign(name, value, declares):
                if declares and self._lane:
                    self._wide.add(name)
                self._set(f"l_{name}", self._value(value), name in self._wide, declares)
            case tir.MakeTile(name, shape, value):
                self._make(name, shape, value)
            case tir.MakePanel(array, line=line):
                what = f"the panel {array.name!r}, which programs of Triton do not have"
                raise self._program.error(UnsupportedStatementError, line, what)
            case tir.SetElement(tir.Element() as target, value):
                wide = target.tile in self._wide or target.tile in self._across
                self._set(self._place(target), self._value(value), wide, False)
            case tir.Reduce(target, kind, value):
                place = f"r_{self._target(target)}"
                more = f"tl.where({self._mask()}, {self._value(value)}, {self._neutral(kind)})"
                self._put(f"{place} = {self.functions.combine(kind, place, more, self._dtype)}")
            case tir.Store(array, index, value):
                found = (f"{self._full()} + " if self._lane else "") + self._value(value)
                self._put(f"tl.store({self._address(array, index)}, {found}, mask={self._mask()})")
            case tir.If(condition, body):
                self._masks.append(self._value(condition))
                self._block(body)
                self._masks.pop()
            case tir.Loop(kind, names, begins, ends, body):
                if kind == tir.LANES:
                    self._lanes(names[0], ends[0], body)
                elif kind == tir.REPEAT and statement.constant:
                    ranges = [range(evaluate(e, {})) for e in ends]
                    for task in all_of(*ranges):
                        self._numbers.update(zip(names, task, strict=True))
                        self._block(body)
                else:
                    with ExitStack() as loops:
                        for name, *bounds in zip(names, begins, ends, strict=True):
                            opened = self._loop(f"v_{name}", *map(self._dim, bounds))
                            loops.enter_context(opened)
                        self._block(body)

    def _lanes(self, name: str, extent: Dim, body: Sequence[tir.Statement]) -> None:
        self._size = 1 << max(extent - 1, 0).bit_length() if isinstance(extent, int) else BLOCK
        self._lane, outer = name, self._masks
        targets = {(t, kind): self._places_of(t) for t, kind in tir.reduced(body)}
        for (_, kind), places in targets.items():
            for place in places:
                self._put(f"r_{place} = {self._full()} + {self._neutral(kind)}")
        lanes = f"tl.arange(0, {self._size}).to(tl.int64)"
        self._masks = [*outer, f"(v_{name} < {self._dim(extent)})"]
        if isinstance(extent, int):
            self._put(f"v_{name} = {lanes}")
            self._block(body)
        else:
            with self._loop(f"b_{name}", "0", self._dim(extent), str(BLOCK)):
                self._put(f"v_{name} = b_{name} + {lanes}")
                self._block(body)
        self._masks, self._lane = outer, ""
        for (_, kind), places in targets.items():
            for place in places:
                total = self.functions.across(kind, f"r_{place}", "0", self._dtype)
                combined = self.functions.combine(kind, place, total, self._dtype)
                self._set(place, combined, False, False)

    def _make(self, name: str, shape: tuple[int, ...], value: float) -> None:
        lanes = 0
        if self._lane:
            self._wide.add(name)
            lanes = self._size
        elif name in self._across:
            lanes = 1 << (shape[-1] - 1).bit_length()
            shape = shape[:-1]
        self._tiles[name] = shape
        shaped = f"[{lanes}]" if lanes else "()"
        filled = f"tl.full({shaped}, {literal(value, self._dtype)}, {type_text(self._dtype)})"
        for place in all_of(*map(range, shape)):
            self._put(f"{self._name(name, place)} = {filled}")

    def _name(self, tile: str, place: tuple[int, ...]) -> str:
        return "_".join([f"t_{tile}", *map(str, place)])

    def _place(self, element: tir.Element) -> str:
        index = element.index[:-1] if element.tile in self._across else element.index
        return self._name(element.tile, tuple(evaluate(d, self._numbers) for d in index))

    def _target(self, target: tir.Local | tir.Element) -> str:
        return f"l_{target.name}" if isinstance(target, tir.Local) else self._place(target)

    def _places_of(self, target: str | tir.Local) -> list[str]:
        if isinstance(target, tir.Local):
            return [f"l_{target.name}"]
        return [self._name(target, place) for place in all_of(*map(range, self._tiles[target]))]

    def _set(self, place: str, value: str, wide: bool, declares: bool) -> None:
        if wide:
            value = f"{self._full()} + {value}"
        if not declares and self._masks:
            mask = " & ".join(self._masks)
            value = f"tl.where({mask}, {value}, {place})"
        self._put(f"{place} = {value}")

    def _full(self) -> str:
        """A block of zeros that keep the sign of what is added."""
        return f"tl.full([{self._size}], -0.0, {type_text(self._dtype)})"

    def _neutral(self, kind: str) -> str:
        return literal(neutral(kind, self._dtype), self._dtype)

    def _mask(self) -> str:
        """The conditions around a place: a block in a `lanes` loop."""
        block = [f"tl.full([{self._size}], 1, tl.int1)"] if self._lane else []
        return " & ".join([*block, *self._masks]) or "True"

    def _address(self, array: str, index: Sequence[Dim]) -> str:
        flat = self._program.array(array).flat(index)
        lanes = f" + tl.full([{self._size}], 0, tl.int64)" if self._lane else ""
        return f"{array}_p + {self._dim(flat)}{lanes}"

    def _dim(self, dim: Dim) -> str:
        if isinstance(dim, int):
            return str(dim)
        terms = []
        for monomial, coefficient in dim.terms:
            factors = [*map(self._atom, monomial)]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            terms.append(" * ".join(factors))
        return f"({' + '.join(terms)})"

    def _atom(self, atom: Atom | Symbol) -> str:
        if isinstance(atom, Symbol):
            number = self._numbers.get(atom.name)
            return f"v_{atom.name}" if number is None else str(number)
        x, y = self._dim(atom.x), self._dim(atom.y)
        if atom.kind in ("maximum", "minimum"):
            return f"tl.{atom.kind}({x}, {y})"
        if atom.kind == "whole":
            return x
        rest = f"({x} % {y})" if never_negative(atom.x) else f"(({x} % {y} + {y}) % {y})"
        return rest if atom.kind == "remainder" else f"(({x} - {rest}) // {y})"

    def _value(self, expr: tir.Expr) -> str:
        match expr:
            case tir.Number(number):
                return f"tl.full((), {literal(number, self._dtype)}, {type_text(self._dtype)})"
            case tir.Local(name):
                return f"l_{name}"
            case tir.Element():
                return self._place(expr)
            case tir.Load(array, index):
                return f"tl.load({self._address(array, index)}, mask={self._mask()}, other=0.0)"
            case tir.IndexValue(dim):
                return f"({self._dim(dim)} + own * 0).to({type_text(self._dtype)})"
            case tir.Test(dim, exact):
                text = f"({self._dim(dim)} {'==' if exact else '>='} 0)"
                return text if self._lane and tir.uses(dim, self._lane) else scalar_bool(text)
            case tir.Choose(condition, x, y):
                wanted = self._value(condition)
                self._masks.append(wanted)
                first = self._value(x)
                self._masks[-1] = f"({wanted} == 0)"
                second = self._value(y)
                self._masks.pop()
                return f"tl.where({wanted}, {first}, {second})"
            case tir.Apply("logical_and" | "logical_or" as word, (x, y)):
                sign = "&" if word == "logical_and" else "|"
                return f"({self._value(x)} {sign} {self._value(y)})"
            case tir.Apply("logical_not", (x,)):
                return f"({self._value(x)} == 0)"
            case tir.Apply("equal" | "less" | "less_equal" as word, (x, y)):
                sign = {"equal": "==", "less": "<", "less_equal": "<="}[word]
                return scalar_bool(f"({self._value(x)} {sign} {self._value(y)})")
            case tir.Apply("where", arguments):
                return f"tl.where({', '.join(map(self._value, arguments))})"
            case tir.Apply(function, arguments):
                given = [f"({self._value(a)})" for a in arguments]
                return f"({self.functions.apply(function, given, self._dtype)})"
        raise AssertionError(expr)
