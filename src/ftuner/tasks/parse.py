"""From the source of a Python function to a `Program`. Nothing is executed."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from types import ModuleType
from typing import Any

from ftuner.core.dim import Dim, ceil_quotient, product, quotient, remainder, symbol, symbols_of
from ftuner.core.dim import maximum as larger
from ftuner.core.dim import minimum as smaller
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import (
    MappingError,
    ScheduleError,
    UndefinedNameError,
    UnsupportedStatementError,
)
from ftuner.tasks.language import DTYPES, MAPPINGS
from ftuner.tasks.program import (
    LANES,
    RANGE,
    REPEAT,
    TASKS,
    WORKERS,
    Apply,
    Array,
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
    uses,
)

MOST_UNROLLED = 256
"""Iterations of a `repeat` of numbers, which is written out. Derived: more than the registers of
any ISA."""
FUNCTIONS = {"abs": "absolute", "max": "maximum", "min": "minimum"}
"""Python's names of functions of elements."""
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
}  # fmt: skip
_OF_INDICES: Mapping[type[ast.AST], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda x, y: x + y, ast.Sub: lambda x, y: x - y, ast.Mult: lambda x, y: x * y,
    ast.FloorDiv: quotient, ast.Mod: remainder,
}  # fmt: skip
_REDUCED = {"add": "sum", "maximum": "maximum", "minimum": "minimum"}
Value = Expr | int | Any
"""An expression of elements, or a `Dim`."""


@dataclass(frozen=True)
class Source:
    """The definition of a schedule."""

    node: ast.FunctionDef
    file: str
    globals: Mapping[str, Any]

    def error(self, kind: type[ScheduleError], line: int, message: str) -> ScheduleError:
        return kind(f"{self.file}:{line}: schedule {self.node.name!r}: {message}")


def source_of(function: Callable[..., Any]) -> Source:
    """The source of a function.

    Raises:
        ScheduleError: it has none, as what is typed into Python's prompt.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "?"
    except (OSError, TypeError) as error:
        raise ScheduleError(f"no source of {function!r}: write it into a file") from error
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    (node,) = tree.body
    if not isinstance(node, ast.FunctionDef):
        raise ScheduleError(f"{file}:{first}: expected a function")
    closed = inspect.getclosurevars(function).nonlocals
    return Source(node, file, {**function.__globals__, **closed})


def tile_parameters(source: Source) -> dict[str, tuple[int, ...]]:
    """The candidates of each tile parameter."""
    arguments = source.node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise source.error(
            UnsupportedStatementError, source.node.lineno, "plain parameters are expected"
        )
    found = {}
    given = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    for argument, default in zip(given, arguments.defaults, strict=True):
        values = _candidates(default)
        if not values or _last_name(argument.annotation) != "Tile":
            raise source.error(
                UnsupportedStatementError, argument.lineno,
                f"parameter {argument.arg!r} has a default; only `{argument.arg}: Tile = "
                "candidates(1, 2)` with positive integers has one",
            )  # fmt: skip
        found[argument.arg] = values
    return found


def _candidates(node: ast.expr) -> tuple[int, ...]:
    match node:
        case ast.Call(func, [*values], []) if _last_name(func) == "candidates":
            found = tuple(getattr(v, "value", None) for v in values)
            if all(type(v) is int and v > 0 for v in found):
                return found  # type: ignore[return-value]
    return ()


def _last_name(node: ast.expr | None) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""


def parse(source: Source, tiles: Mapping[str, int]) -> Program:
    """The program of a schedule with some values of its tile parameters.

    Raises:
        ScheduleError: what the language does not have; the message has the file and line.
    """
    return _Parser(source, tiles).program()


@dataclass
class _Variable:
    """A local scalar or a register tile."""

    name: str
    lane: str | None
    """The `lanes` loop that it is of."""
    shape: tuple[int, ...] = ()
    across: bool | None = None
    """Of a tile from outside of `lanes` loops: whether its last axis is along lanes."""


class _Parser:
    def __init__(self, source: Source, tiles: Mapping[str, int]) -> None:
        self._source = source
        self._node = source.node
        self._arrays: dict[str, Array] = {}
        self._extents: dict[str, None] = {}
        self._scopes: list[dict[str, Any]] = [dict(tiles)]
        """Dims, variables, mappings (tuples of factors)."""
        self._names: set[str] = {WORKERS}
        self._lane: str | None = None
        self._lane_extent: Dim = 0
        self._unrolled: set[str] = set()
        self._copies = 1
        """How often the statement that is parsed is written out."""
        self._reduced: set[str] = set()
        self._read: set[str] = set()
        self._in_tasks = False

    def error(self, kind: type[ScheduleError], node: ast.AST, message: str) -> ScheduleError:
        return self._source.error(kind, getattr(node, "lineno", self._node.lineno), message)

    def program(self) -> Program:
        arguments = self._node.args.args
        count = len(arguments) - len(self._node.args.defaults)
        for argument in arguments[:count]:
            self._parameter(argument)
        if self._node.returns is not None and not isinstance(self._node.returns, ast.Constant):
            raise self.error(
                UnsupportedStatementError, self._node, "a schedule returns its `Out` arrays"
            )
        dtypes = {a.dtype for a in self._arrays.values()}
        if len(dtypes) != 1 or not any(a.is_output for a in self._arrays.values()):
            raise self.error(
                UnsupportedStatementError, self._node,
                "expected arrays of one dtype, of them one `Out` or more",
            )  # fmt: skip
        body = [s for statement in self._node.body for s in self._statement(statement)]
        if len(body) != 1:
            raise self.error(
                MappingError, self._node, f"{len(body)} task loops; expected one "
                "`for i, j in tasks(worker)`, with all statements in it",
            )  # fmt: skip
        arrays = (*(a for a in self._arrays.values() if not a.is_output),
                  *(a for a in self._arrays.values() if a.is_output))  # fmt: skip
        return Program(
            self._node.name, arrays, tuple(self._extents), tuple(body), self._source.file
        )

    def _parameter(self, argument: ast.arg) -> None:
        annotation, is_output = argument.annotation, False
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.Subscript) and _last_name(annotation.value) == "Out":
            annotation, is_output = annotation.slice, True
        match annotation:
            case ast.Subscript(value, axes) if _last_name(value) in DTYPES:
                shape = axes.elts if isinstance(axes, ast.Tuple) else [axes]
            case _:
                raise self.error(
                    UnsupportedStatementError, argument,
                    f'parameter {argument.arg!r}: expected a type such as f32["m", "n"] or '
                    'Out[f32["m", "n"]]',
                )  # fmt: skip
        extents = tuple(self._extent(axis, argument, is_output) for axis in shape)
        self._take(argument.arg, argument)
        dtype = DTYPES[_last_name(value)]
        self._arrays[argument.arg] = Array(
            argument.arg, dtype, extents, is_output, line=argument.lineno
        )

    def _extent(self, axis: ast.expr, argument: ast.arg, is_output: bool) -> Dim:
        if isinstance(axis, ast.Constant) and type(axis.value) is int and axis.value >= 0:
            return axis.value
        if not (isinstance(axis, ast.Constant) and isinstance(axis.value, str)):
            raise self.error(
                UnsupportedStatementError, argument,
                f"axis {ast.unparse(axis)} of {argument.arg!r}; expected a name, a number or "
                'arithmetic of them: "2 * k"',
            )  # fmt: skip
        try:
            tree = ast.parse(axis.value, mode="eval").body
        except SyntaxError as error:
            raise self.error(
                UnsupportedStatementError, argument, f"axis {axis.value!r} is no arithmetic"
            ) from error
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in self._scopes[0]:
                if is_output:
                    raise self.error(
                        UndefinedNameError, argument,
                        f"extent {node.id!r} of the output {argument.arg!r} is of no input before",
                    )  # fmt: skip
                self._extents.setdefault(node.id)
                self._take(node.id, argument)
                self._scopes[0][node.id] = symbol(node.id)
            ast.copy_location(node, argument)
        return self._dim(tree, f"axis {axis.value!r}")

    def _take(self, name: str, node: ast.AST) -> None:
        if name in self._arrays or (name in self._names and name not in self._extents):
            raise self.error(UnsupportedStatementError, node, f"the name {name!r} is taken")
        self._names.add(name)

    # Names.

    def _lookup(self, node: ast.Name) -> Any:
        for scope in reversed(self._scopes):
            if node.id in scope:
                return scope[node.id]
        if node.id == WORKERS:
            return symbol(WORKERS)
        value = self._source.globals.get(node.id)
        if type(value) in (int, float):
            return value if isinstance(value, int) else Number(float(value or 0.0))
        known = [n for scope in self._scopes for n in scope] + [*self._arrays]
        close = get_close_matches(node.id, known, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        outside = f" (it is {type(value).__name__})" if value is not None else ""
        raise self.error(
            UndefinedNameError, node, f"{node.id!r} is not defined here{outside}{meant}"
        )

    def _word(self, node: ast.expr) -> str:
        """The word that a call names: as itself, or as an attribute of a module."""
        match node:
            case ast.Name(name) if not any(name in scope for scope in self._scopes):
                return name
            case ast.Attribute(ast.Name(base), name):
                if isinstance(self._source.globals.get(base), ModuleType):
                    return name
        return ""

    def _unique(self, name: str) -> str:
        found, number = name, 2
        while found in self._names:
            found, number = f"{name}_{number}", number + 1
        self._names.add(found)
        return found

    # Statements.

    def _block(self, body: list[ast.stmt], names: Mapping[str, Any]) -> tuple[Statement, ...]:
        self._scopes.append(dict(names))
        found = tuple(s for statement in body for s in self._statement(statement))
        self._scopes.pop()
        return found

    def _statement(self, node: ast.stmt) -> list[Statement]:
        match node:
            case ast.Pass() | ast.Expr(ast.Constant()):
                return []
            case ast.For(target, iterable, body, []):
                return [self._loop(node, target, iterable, body)]
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if _apart(targets, values):
                pairs = zip(targets, values, strict=True)
                return [s for target, value in pairs for s in self._assignment(node, target, value)]
            case ast.Assign([target], value):
                return self._assignment(node, target, value)
            case ast.AugAssign(target, sign, value) if type(sign) in _OPERATORS:
                before = ast.parse(ast.unparse(target), mode="eval").body
                for part in ast.walk(before):
                    ast.copy_location(part, node)
                whole = ast.copy_location(ast.BinOp(before, sign, value), node)
                return self._assignment(node, target, whole)
            case ast.If(test, body, []) if self._in_tasks:
                condition = self._condition(test)
                return [If(condition, self._block(body, {}), line=node.lineno)]
        text = ast.unparse(node).split("\n")[0]
        hint = "; write another `if` for else" if isinstance(node, ast.If) and node.orelse else ""
        raise self.error(UnsupportedStatementError, node, f"`{text}` is not supported{hint}")

    def _assignment(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> list[Statement]:
        if isinstance(target, ast.Name):
            return self._assign(node, target, value)
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            return [self._set(node, target, value)]
        raise self.error(
            UnsupportedStatementError, node,
            f"`{ast.unparse(target)} = ...`; expected a name, or an element of a tile or an output",
        )  # fmt: skip

    def _assign(self, node: ast.stmt, target: ast.Name, value: ast.expr) -> list[Statement]:
        name = target.id
        if name in self._arrays:
            raise self.error(UnsupportedStatementError, node, f"the array {name!r} is assigned")
        if self._is_mapping(value):
            self._scopes[-1][name] = self._mapping(value)
            return []
        if isinstance(value, ast.Call) and self._word(value.func) == "tile":
            return [self._tile(node, name, value)]
        known = next((s[name] for s in reversed(self._scopes) if name in s), None)
        if known is not None and not (isinstance(known, _Variable) and not known.shape):
            what = "a tile" if isinstance(known, _Variable) else "an index"
            hint = "" if isinstance(known, _Variable) else "; a number that changes begins as 0.0"
            raise self.error(
                UnsupportedStatementError, node, f"{name!r} is {what}, assigned again{hint}"
            )
        reduction = None
        if known is not None and known.lane != self._lane:
            reduction = self._reduction(node, target, value)
            return [Reduce(Local(known.name), *reduction, line=node.lineno)]
        found = self._value(value)
        is_alias = not isinstance(found, Expr) or _is_of_indices(found)
        if known is None and is_alias:
            self._scopes[-1][name] = found
            return []
        element = self._element(found, value)
        if not self._in_tasks:
            raise self.error(
                UnsupportedStatementError, node, f"{name!r} is computed outside of the tasks"
            )
        if known is None:
            known = self._scopes[-1][name] = _Variable(self._unique(name), self._lane)
            return [Assign(known.name, element, True, line=node.lineno)]
        return [Assign(known.name, element, False, line=node.lineno)]

    def _reduction(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> tuple[str, Expr]:
        """The kind and the elements of a reduction across lanes."""
        text = ast.unparse(target)
        kind, other = "", None
        match value:
            case ast.BinOp(x, ast.Add() | ast.Sub(), y) if ast.unparse(x) == text:
                kind, other = "sum", y
            case ast.Call(func, [x, y], []) if ast.unparse(x) == text:
                word = self._word(func)
                kind, other = _REDUCED.get(FUNCTIONS.get(word, word), ""), y
        if not kind or other is None or self._lane is None:
            raise self.error(
                UnsupportedStatementError, node,
                f"{text!r} is from outside of the lanes loop, whose iterations have no order; "
                f"expected `{text} += x`, `{text} = max({text}, x)` or min",
            )  # fmt: skip
        self._reduced.add(text.split("[")[0])
        found = self._element(self._value(other), other)
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
            found = Apply("negative", (found,))
        return kind, found

    def _tile(self, node: ast.stmt, name: str, call: ast.Call) -> MakeTile:
        shape = tuple(self._dim(a, "an extent of a tile") for a in call.args)
        value: Expr = Number(0.0)
        for keyword in call.keywords:
            if keyword.arg != "value":
                raise self.error(UnsupportedStatementError, node, f"tile(..., {keyword.arg}=...)")
            value = self._element(self._value(keyword.value), keyword.value)
        numbers = tuple(n for n in shape if isinstance(n, int) and n > 0)
        if not shape or numbers != shape or prod(numbers) > 4 * MOST_UNROLLED:
            raise self.error(
                UnsupportedStatementError, node,
                f"a tile of extents {', '.join(map(str, shape))}; expected positive numbers, "
                f"{4 * MOST_UNROLLED} elements at most",
            )  # fmt: skip
        if not isinstance(value, Number):
            raise self.error(UnsupportedStatementError, node, "the value of a tile is a number")
        if name in self._scopes[-1] or not self._in_tasks:
            raise self.error(
                UnsupportedStatementError, node, f"{name!r}: a tile of a task, made once"
            )
        made = self._scopes[-1][name] = _Variable(self._unique(name), self._lane, numbers)
        return MakeTile(made.name, numbers, value.value, line=node.lineno)

    def _set(self, node: ast.stmt, target: ast.Subscript, value: ast.expr) -> Statement:
        assert isinstance(target.value, ast.Name)
        name = target.value.id
        array = self._arrays.get(name)
        if array is not None:
            if not array.is_output:
                raise self.error(
                    UnsupportedStatementError, node, f"{name!r} is an input; it is stored"
                )
            if isinstance(node, ast.AugAssign):
                raise self.error(
                    UnsupportedStatementError, node,
                    f"{name!r} is stored, not added to; keep the sum in a local or a tile",
                )  # fmt: skip
            index = self._index(target, len(array.shape))
            return Store(name, index, self._element(self._value(value), value), line=node.lineno)
        entry = self._lookup(target.value)
        if not isinstance(entry, _Variable) or not entry.shape:
            raise self.error(UnsupportedStatementError, node, f"{name!r} is no array and no tile")
        element, across = self._tile_element(entry, target)
        if entry.lane != self._lane and not across:
            kind, found = self._reduction(node, target, value)
            return Reduce(element, kind, found, line=node.lineno)
        return SetElement(element, self._element(self._value(value), value), line=node.lineno)

    # Loops.

    def _loop(
        self, node: ast.For, target: ast.expr, iterable: ast.expr, body: list[ast.stmt]
    ) -> Statement:
        match iterable:
            case ast.Call(func, [ast.Name("worker") as argument], []) if self._is_mapping(func):
                if self._in_tasks:
                    raise self.error(MappingError, argument, "a worker's tasks within its tasks")
                return self._task_loop(node, target, self._mapping(func), body)
            case ast.Call(func, arguments, []) if self._word(func) in (RANGE, LANES):
                return self._counted(node, target, self._word(func), arguments, body)
            case _ if self._is_mapping(iterable):
                return self._repeated(node, target, self._mapping(iterable), body)
        raise self.error(
            UnsupportedStatementError, node,
            f"a loop over `{ast.unparse(iterable)}`; expected tasks(worker), range, lanes, repeat",
        )  # fmt: skip

    def _targets(self, node: ast.For, target: ast.expr, axes: int) -> list[str]:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        found = [n.id for n in names if isinstance(n, ast.Name)]
        if len(found) != len(names) or len(found) != axes or len(set(found)) != axes:
            raise self.error(
                MappingError, node,
                f"`{ast.unparse(target)}` has {len(names)} names; the tasks have {axes} axes",
            )  # fmt: skip
        for name in found:
            if name in self._arrays or name in self._extents or name in self._scopes[0]:
                raise self.error(UnsupportedStatementError, node, f"the name {name!r} is taken")
        return found

    def _task_loop(
        self, node: ast.For, target: ast.expr, factors: tuple[Factor, ...], body: list[ast.stmt]
    ) -> Loop:
        axes = len(factors[0].extents)
        own = self._targets(node, target, axes)
        names = [self._unique(name) for name in own]
        ends = tuple(product(f.extents[axis] for f in factors) for axis in range(axes))
        self._in_tasks = True
        inner = self._block(body, {o: symbol(n) for o, n in zip(own, names, strict=True)})
        self._in_tasks = False
        return Loop(TASKS, tuple(names), (0,) * axes, ends, inner, factors, line=node.lineno)

    def _counted(
        self, node: ast.For, target: ast.expr, kind: str, arguments: list[ast.expr],
        body: list[ast.stmt],
    ) -> Loop:  # fmt: skip
        if not 1 <= len(arguments) <= (2 if kind == RANGE else 1) or not self._in_tasks:
            raise self.error(
                UnsupportedStatementError, node, f"`{ast.unparse(node.iter)}`: expected lanes(n), "
                "range(n) or range(begin, end), within a task",
            )  # fmt: skip
        bounds = [self._dim(a, f"a bound of {kind}") for a in arguments]
        begin, end = (0, bounds[0]) if len(bounds) == 1 else bounds
        (own,) = self._targets(node, target, 1)
        name = self._unique(own)
        if kind == RANGE:
            inner = self._block(body, {own: symbol(name)})
        else:
            if self._lane is not None:
                raise self.error(UnsupportedStatementError, node, "a lanes loop within another one")
            self._lane, self._lane_extent = name, end
            self._reduced, self._read = set(), set()
            inner = self._block(body, {own: symbol(name)})
            self._lane = None
            if both := sorted(self._reduced & self._read):
                raise self.error(
                    UnsupportedStatementError, node,
                    f"{', '.join(both)}: read in the lanes loop that reduces it; its iterations "
                    "have no order",
                )  # fmt: skip
        return Loop(kind, (name,), (begin,), (end,), inner, line=node.lineno)

    def _repeated(
        self, node: ast.For, target: ast.expr, factors: tuple[Factor, ...], body: list[ast.stmt]
    ) -> Loop:
        if any(f.kind != REPEAT for f in factors):
            raise self.error(
                MappingError, node, "a mapping to workers is called: `for i in tasks(worker)`"
            )
        own = self._targets(node, target, len(factors[0].extents))
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
                raise self.error(
                    UnsupportedStatementError, node, f"{self._copies} iterations written out; "
                    f"expected {MOST_UNROLLED} at most, or range",
                )  # fmt: skip
            self._unrolled |= set(names)
        inner = self._block(body, indices)
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
                return any(isinstance(scope.get(name), tuple) for scope in self._scopes)
        return False

    def _mapping(self, node: ast.expr) -> tuple[Factor, ...]:
        match node:
            case ast.BinOp(x, ast.Mult(), y) if self._is_mapping(x) and self._is_mapping(y):
                factors = (*self._mapping(x), *self._mapping(y))
                ranks = {len(f.extents) for f in factors}
                if len(ranks) > 1:
                    raise self.error(
                        MappingError, node, f"`{ast.unparse(node)}`: mappings of "
                        f"{' and '.join(map(str, sorted(ranks)))} axes are composed",
                    )  # fmt: skip
                return factors
            case ast.Name():
                found: tuple[Factor, ...] = self._lookup(node)
                return found
            case ast.Call(func, arguments, keywords) if self._is_mapping(node):
                return (self._factor(node, self._word(func), arguments, keywords),)
        raise self.error(MappingError, node, f"`{ast.unparse(node)}`: a mapping times what is none")

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
                raise self.error(
                    MappingError, node, f"{word} of {len(extents)} extents and {len(parts)} parts"
                )
            if any(isinstance(p, int) and p < 1 for p in parts):
                raise self.error(MappingError, node, f"`{ast.unparse(node)}`: less than one part")
            factor = Factor("partition", extents, parts)
        else:
            extents = tuple(self._dim(a, f"an extent of {word}") for a in arguments)
            ranks = self._ranks(node, keywords, len(extents))
            factor = Factor(word, extents, ranks=ranks)
        if not extents or any(isinstance(e, int) and e < 0 for e in extents):
            raise self.error(
                MappingError, node, f"`{ast.unparse(node)}`: no extents, or a negative one"
            )
        return factor

    def _ranks(self, node: ast.Call, keywords: list[ast.keyword], axes: int) -> tuple[int, ...]:
        if not keywords:
            return tuple(range(axes))
        match keywords:
            case [ast.keyword("ranks", ast.Tuple(values))]:
                ranks = tuple(getattr(v, "value", None) for v in values)
                if sorted(map(str, ranks)) == sorted(map(str, range(axes))):
                    return ranks  # type: ignore[return-value]
        raise self.error(
            MappingError, node,
            f"`{ast.unparse(node)}`: expected ranks=(...), a permutation of its {axes} axes",
        )  # fmt: skip

    # Expressions.

    def _dim(self, node: ast.expr, what: str) -> Dim:
        value = self._value(node)
        if isinstance(value, Expr):
            raise self.error(
                UnsupportedStatementError, node,
                f"{what} is `{ast.unparse(node)}`, a number with a fraction; expected an index",
            )  # fmt: skip
        found: Dim = value
        return found

    def _index(self, node: ast.Subscript, axes: int) -> tuple[Dim, ...]:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, (ast.Slice, ast.Starred)):
                raise self.error(UnsupportedStatementError, node, f"`{ast.unparse(node)}`: a slice")
        if len(parts) != axes:
            raise self.error(
                UnsupportedStatementError, node,
                f"`{ast.unparse(node)}` has {len(parts)} indices; it has {axes} axes",
            )  # fmt: skip
        return tuple(self._dim(part, "an index") for part in parts)

    def _tile_element(self, entry: _Variable, node: ast.Subscript) -> tuple[Element, bool]:
        """The element, and whether its last index is the variable of the lanes loop."""
        index = self._index(node, len(entry.shape))
        across = False
        if self._lane is not None and entry.lane is None and uses(index[-1], self._lane):
            across = index[-1] == symbol(self._lane)
            if not across or self._lane_extent != entry.shape[-1]:
                raise self.error(
                    UnsupportedStatementError, node,
                    f"`{ast.unparse(node)}`: along lanes the last index is that of "
                    f"`lanes({entry.shape[-1]})` alone",
                )  # fmt: skip
        if entry.across not in (None, across):
            raise self.error(
                UnsupportedStatementError, node,
                f"`{ast.unparse(node)}`: the tile is used along lanes and by numbers",
            )  # fmt: skip
        entry.across = across
        for position in index[: len(index) - across]:
            if unknown := set(symbols_of((position,))) - self._unrolled:
                raise self.error(
                    UnsupportedStatementError, node,
                    f"`{ast.unparse(node)}`: {', '.join(sorted(unknown))} is not known when it is "
                    "compiled; registers have no addresses: use `repeat` of numbers",
                )  # fmt: skip
        return Element(entry.name, index), across

    def _condition(self, node: ast.expr) -> Expr:
        value = self._value(node)
        if not (isinstance(value, Expr) and is_condition(value)):
            raise self.error(
                UnsupportedStatementError, node, f"`{ast.unparse(node)}` is no condition"
            )
        return value

    def _element(self, value: Value, node: ast.expr) -> Expr:
        """A number: an index becomes one."""
        if isinstance(value, int):
            return Number(float(value))
        if not isinstance(value, Expr):
            return IndexValue(value)
        if is_condition(value):
            raise self.error(
                UnsupportedStatementError, node,
                f"`{ast.unparse(node)}` is a condition; expected a number",
            )  # fmt: skip
        return value

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(bool()) | ast.Constant(str()):
                pass
            case ast.Constant(int() as number):
                return number
            case ast.Constant(float() as number):
                return Number(number)
            case ast.Name():
                return self._named(node)
            case ast.Attribute(ast.Name(base), name):
                value = getattr(self._source.globals.get(base), name, None)
                if type(value) is float:
                    return Number(value)
                raise self.error(UndefinedNameError, node, f"`{ast.unparse(node)}` is no float")
            case ast.Subscript(ast.Name(name)):
                return self._subscript(node, name)
            case ast.BinOp(x, sign, y):
                return self._operation(node, self._value(x), sign, self._value(y))
            case ast.UnaryOp(ast.USub(), x):
                value = self._value(x)
                if isinstance(value, Number):
                    return Number(-value.value)
                if isinstance(value, Expr):
                    return Apply("negative", (self._element(value, x),))
                return -value
            case ast.UnaryOp(ast.Not(), x):
                return Apply("logical_not", (self._condition(x),))
            case ast.BoolOp(sign, values):
                word = "logical_and" if isinstance(sign, ast.And) else "logical_or"
                found, *others = map(self._condition, values)
                for other in others:
                    found = Apply(word, (found, other))
                return found
            case ast.Compare(first, signs, others):
                operands = [self._value(x) for x in (first, *others)]
                tests = [
                    self._comparison(node, x, sign, y)
                    for x, sign, y in zip(operands, signs, operands[1:], strict=False)
                ]
                found = tests[0]
                for test in tests[1:]:
                    found = Apply("logical_and", (found, test))
                return found
            case ast.IfExp(test, x, y):
                condition = self._condition(test)
                return Choose(
                    condition, self._element(self._value(x), x), self._element(self._value(y), y)
                )
            case ast.Call(func, arguments, []):
                return self._call(node, func, arguments)
        raise self.error(UnsupportedStatementError, node, f"`{ast.unparse(node)}` is not supported")

    def _named(self, node: ast.Name) -> Value:
        if node.id in self._arrays:
            raise self.error(
                UnsupportedStatementError, node, f"the array {node.id!r} without an index"
            )
        value = self._lookup(node)
        if isinstance(value, tuple):
            raise self.error(
                UnsupportedStatementError, node, f"the mapping {node.id!r} in arithmetic"
            )
        if isinstance(value, _Variable):
            if value.shape:
                raise self.error(
                    UnsupportedStatementError, node, f"the tile {node.id!r} without an index"
                )
            self._read.add(node.id)
            return Local(value.name)
        return value

    def _subscript(self, node: ast.Subscript, name: str) -> Expr:
        array = self._arrays.get(name)
        if array is not None:
            if not self._in_tasks:
                raise self.error(
                    UnsupportedStatementError, node, f"{name!r} is read outside of the tasks"
                )
            return Load(name, self._index(node, len(array.shape)), line=node.lineno)
        assert isinstance(node.value, ast.Name)
        entry = self._lookup(node.value)
        if not isinstance(entry, _Variable) or not entry.shape:
            raise self.error(UnsupportedStatementError, node, f"{name!r} is no array and no tile")
        element, across = self._tile_element(entry, node)
        if not across:
            self._read.add(name)
        return element

    def _operation(self, node: ast.BinOp, x: Value, sign: ast.operator, y: Value) -> Value:
        if not isinstance(x, Expr) and not isinstance(y, Expr):
            operation = _OF_INDICES.get(type(sign))
            if operation is not None:
                if isinstance(sign, (ast.FloorDiv, ast.Mod)) and not (isinstance(y, int) and y > 0):
                    raise self.error(
                        UnsupportedStatementError, node,
                        f"`{ast.unparse(node)}`: an index is divided by positive numbers alone",
                    )  # fmt: skip
                return operation(x, y)
        elements = (self._element(x, node.left), self._element(y, node.right))
        if isinstance(sign, ast.Pow) and y == 2:
            return Apply("multiply", (elements[0], elements[0]))
        if isinstance(sign, ast.Pow):
            return Apply("power", elements)
        if type(sign) not in _OPERATORS:
            raise self.error(
                UnsupportedStatementError, node, f"`{ast.unparse(node)}`: only indices have it"
            )
        if all(isinstance(e, Number) for e in elements) and not isinstance(sign, ast.Div):
            row = SCALAR_FUNCTIONS[_OPERATORS[type(sign)]]
            return Number(float(row.reference(*(e.value for e in elements))))  # type: ignore[attr-defined]
        return Apply(_OPERATORS[type(sign)], elements)

    def _comparison(self, node: ast.Compare, x: Value, sign: ast.cmpop, y: Value) -> Expr:
        if not isinstance(x, Expr) and not isinstance(y, Expr):
            match sign:
                case ast.Lt():
                    return Test(y - x - 1)
                case ast.LtE():
                    return Test(y - x)
                case ast.Gt():
                    return Test(x - y - 1)
                case ast.GtE():
                    return Test(x - y)
                case ast.Eq():
                    return Test(x - y, exact=True)
                case ast.NotEq():
                    return Apply("logical_not", (Test(x - y, exact=True),))
        a, b = self._element(x, node), self._element(y, node)
        match sign:
            case ast.Lt():
                return Apply("less", (a, b))
            case ast.LtE():
                return Apply("less_equal", (a, b))
            case ast.Gt():
                return Apply("less", (b, a))
            case ast.GtE():
                return Apply("less_equal", (b, a))
            case ast.Eq():
                return Apply("equal", (a, b))
            case ast.NotEq():
                return Apply("logical_not", (Apply("equal", (a, b)),))
        raise self.error(UnsupportedStatementError, node, f"`{ast.unparse(node)}` is not supported")

    def _call(self, node: ast.Call, func: ast.expr, arguments: list[ast.expr]) -> Value:
        word = self._word(func)
        values = [self._value(a) for a in arguments]
        if word == "ceil_div" and len(values) == 2:
            if isinstance(values[0], Expr) or type(values[1]) is not int or values[1] < 1:
                raise self.error(
                    UnsupportedStatementError, node,
                    f"`{ast.unparse(node)}`: expected an index and a positive number",
                )  # fmt: skip
            return ceil_quotient(values[0], values[1])
        name = FUNCTIONS.get(word, word)
        if word == "where" and len(values) == 3:
            condition = self._condition(arguments[0])
            x, y = (self._element(v, a) for v, a in zip(values[1:], arguments[1:], strict=True))
            return Apply("where", (condition, x, y))
        row = SCALAR_FUNCTIONS.get(name)
        if row is None or "float" not in row.kinds:
            close = get_close_matches(word, SCALAR_FUNCTIONS, 1) if word else []
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise self.error(UndefinedNameError, node, f"no function `{ast.unparse(func)}`{meant}")
        if len(values) != row.arity:
            raise self.error(
                UnsupportedStatementError, node,
                f"{name} of {len(values)} arguments; expected {row.arity}",
            )  # fmt: skip
        if not any(isinstance(v, Expr) for v in values) and name in ("maximum", "minimum"):
            return (larger if name == "maximum" else smaller)(*values)
        elements = (self._element(v, a) for v, a in zip(values, arguments, strict=True))
        return Apply(name, tuple(elements))


def _apart(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether assignments at once are the same as one after the other."""
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    read = {n.id for v in values for n in ast.walk(v) if isinstance(n, ast.Name)}
    return len(targets) == len(values) == len(names) and names.isdisjoint(read)


def _is_of_indices(expr: Expr) -> bool:
    """Whether an expression is a condition on indices alone, which nothing changes."""
    read = any(isinstance(part, (Load, Local, Element)) for part in expressions(expr))
    return is_condition(expr) and not read


def is_condition(expr: Expr) -> bool:
    """Whether the elements of an expression are bool."""
    if isinstance(expr, Test):
        return True
    if not isinstance(expr, Apply) or expr.function == "where":
        return False
    row = SCALAR_FUNCTIONS[expr.function]
    return row.result == "bool" or row.kinds == {"bool"}
