"""From the source of a Python function to a `Program`. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from math import prod
from typing import Any

from ftuner.core.dim import Dim, symbol, symbols_of
from ftuner.errors import MappingError, ScheduleError, UndefinedNameError
from ftuner.tasks import program as tir
from ftuner.tasks.language import DTYPES
from ftuner.tasks.parse_expressions import (
    FUNCTIONS,
    OPERATORS,
    Filling,
    LocalVariable,
    is_condition,
)
from ftuner.tasks.parse_loops import MOST_UNROLLED, Loops
from ftuner.tasks.source import Source, last_name

_REDUCED = {"add": "sum", "maximum": "maximum", "minimum": "minimum"}


def parse(source: Source, tiles: Mapping[str, int]) -> tir.Program:
    """The program of a schedule with some values of its tile parameters.

    Raises:
        ScheduleError: what the language does not have; the message has the file and line.
    """
    return _Parser(source, tiles).program()


class _Parser(Loops):
    def program(self) -> tir.Program:
        arguments = self._node.args.args
        count = len(arguments) - len(self._node.args.defaults)
        for argument in arguments[:count]:
            self._parameter(argument)
        if self._node.returns is not None and not isinstance(self._node.returns, ast.Constant):
            raise self.unsupported(self._node, "a schedule returns its `Out` arrays")
        dtypes = {a.dtype for a in self._arrays.values()}
        if len(dtypes) != 1 or not any(a.is_output for a in self._arrays.values()):
            what = "expected arrays of one dtype, of them one `Out` or more"
            raise self.unsupported(self._node, what)
        body = [s for statement in self._node.body for s in self._statement(statement)]
        if len(body) != 1:
            wanted = "one `for i, j in tasks(worker)`, with all statements in it"
            raise self.error(MappingError, self._node, f"{len(body)} task loops; expected {wanted}")
        arrays = tuple(sorted(self._arrays.values(), key=lambda a: a.is_output))
        return tir.Program(
            self._node.name, arrays, tuple(self._extents), tuple(body), self._source.file
        )

    def _parameter(self, argument: ast.arg) -> None:
        annotation, is_output = argument.annotation, False
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = ast.parse(annotation.value, mode="eval").body
        if isinstance(annotation, ast.Subscript) and last_name(annotation.value) == "Out":
            annotation, is_output = annotation.slice, True
        match annotation:
            case ast.Subscript(value, axes) if last_name(value) in DTYPES:
                shape = axes.elts if isinstance(axes, ast.Tuple) else [axes]
            case _:
                wanted = 'a type such as f32["m", "n"] or Out[f32["m", "n"]]'
                raise self.unsupported(argument, f"parameter {argument.arg!r}: expected {wanted}")
        extents = tuple(self._extent(axis, argument, is_output) for axis in shape)
        self._take(argument.arg, argument)
        dtype = DTYPES[last_name(value)]
        self._arrays[argument.arg] = tir.Array(
            argument.arg, dtype, extents, is_output, line=argument.lineno
        )

    def _extent(self, axis: ast.expr, argument: ast.arg, is_output: bool) -> Dim:
        if isinstance(axis, ast.Constant) and type(axis.value) is int and axis.value >= 0:
            return axis.value
        if not (isinstance(axis, ast.Constant) and isinstance(axis.value, str)):
            wanted = 'a name, a number or arithmetic of them: "2 * k"'
            what = f"axis {ast.unparse(axis)} of {argument.arg!r}; expected {wanted}"
            raise self.unsupported(argument, what)
        try:
            tree = ast.parse(axis.value, mode="eval").body
        except SyntaxError as error:
            raise self.unsupported(argument, f"axis {axis.value!r} is no arithmetic") from error
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id not in self._scopes:
                if is_output:
                    what = (
                        f"extent {node.id!r} of the output {argument.arg!r} is of no input before"
                    )
                    raise self.error(UndefinedNameError, argument, what)
                self._extents.setdefault(node.id)
                self._take(node.id, argument)
                self._scopes[node.id] = symbol(node.id)
            ast.copy_location(node, argument)
        return self._dim(tree, f"axis {axis.value!r}")

    def _take(self, name: str, node: ast.AST) -> None:
        if name in self._arrays or (name in self._names and name not in self._extents):
            raise self.unsupported(node, f"the name {name!r} is taken")
        self._names.add(name)

    # Statements.

    def _block(self, body: list[ast.stmt], names: Mapping[str, Any]) -> tuple[tir.Statement, ...]:
        outer, self._scopes = self._scopes, self._scopes.new_child(dict(names))
        found = tuple(s for statement in body for s in self._statement(statement))
        self._scopes = outer
        return found

    def _statement(self, node: ast.stmt) -> list[tir.Statement]:
        match node:
            case ast.Pass() | ast.Expr(ast.Constant()):
                return []
            case ast.For(orelse=[]):
                return [self._loop(node)]
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if _apart(targets, values):
                pairs = zip(targets, values, strict=True)
                return [s for target, value in pairs for s in self._assignment(node, target, value)]
            case ast.Assign([target], value):
                return self._assignment(node, target, value)
            case ast.AugAssign(target, sign, value) if type(sign) in OPERATORS:
                before = ast.parse(ast.unparse(target), mode="eval").body
                for part in ast.walk(before):
                    ast.copy_location(part, node)
                whole = ast.copy_location(ast.BinOp(before, sign, value), node)
                return self._assignment(node, target, whole)
            case ast.If(test, body, []) if self._in_tasks:
                condition = self._condition(test)
                return [tir.If(condition, self._block(body, {}), line=node.lineno)]
        text = ast.unparse(node).split("\n")[0]
        hint = "; write another `if` for else" if isinstance(node, ast.If) and node.orelse else ""
        raise self.unsupported(node, f"`{text}` is not supported{hint}")

    def _assignment(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> list[tir.Statement]:
        if isinstance(target, ast.Name):
            return self._assign(node, target, value)
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            return [self._set(node, target, value)]
        wanted = "a name, or an element of a tile or an output"
        raise self.unsupported(node, f"`{ast.unparse(target)} = ...`; expected {wanted}")

    def _assign(self, node: ast.stmt, target: ast.Name, value: ast.expr) -> list[tir.Statement]:
        name = target.id
        if name in self._arrays:
            raise self.unsupported(node, f"the array {name!r} is assigned")
        if self._is_mapping(value):
            self._scopes[name] = self._mapping(value)
            return []
        if isinstance(value, ast.Call) and self._word(value.func) == "tile":
            return [self._tile(node, name, value)]
        if isinstance(value, ast.Call) and self._word(value.func) == "pack":
            return self._pack(node, name, value)
        known = self._scopes.get(name)
        if isinstance(known, LocalVariable) and known.shape:
            raise self.unsupported(node, f"{name!r} is a tile, assigned again")
        if known is not None and not isinstance(known, LocalVariable):
            what = "is an index, assigned again; a number that changes begins as 0.0"
            raise self.unsupported(node, f"{name!r} {what}")
        if known is not None and known.lane != self._lane:
            reduction = self._reduction(node, target, value)
            return [tir.Reduce(tir.Local(known.name), *reduction, line=node.lineno)]
        found = self._value(value)
        is_alias = not isinstance(found, tir.Expr) or _is_of_indices(found)
        if known is None and is_alias:
            self._scopes[name] = found
            return []
        element = self._element(found, value)
        if not self._in_tasks:
            raise self.unsupported(node, f"{name!r} is computed outside of the tasks")
        declares = known is None
        if known is None:
            known = self._scopes[name] = LocalVariable(self._unique(name), self._lane)
        return [tir.Assign(known.name, element, declares, line=node.lineno)]

    def _reduction(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> tuple[str, tir.Expr]:
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
            what = f"{text!r} is from outside of the lanes loop, whose iterations have no order"
            wanted = f"`{text} += x`, `{text} = max({text}, x)` or min"
            raise self.unsupported(node, f"{what}; expected {wanted}")
        self._reduced.add(text.split("[")[0])
        found = self._number(other)
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
            found = tir.Apply("negative", (found,))
        return kind, found

    def _tile(self, node: ast.stmt, name: str, call: ast.Call) -> tir.MakeTile:
        shape = tuple(self._dim(a, "an extent of a tile") for a in call.args)
        value: tir.Expr = tir.Number(0.0)
        for keyword in call.keywords:
            if keyword.arg != "value":
                raise self.unsupported(node, f"tile(..., {keyword.arg}=...)")
            value = self._number(keyword.value)
        numbers = tuple(n for n in shape if isinstance(n, int) and n > 0)
        if not shape or numbers != shape or prod(numbers) > 4 * MOST_UNROLLED:
            what = f"a tile of extents {', '.join(map(str, shape))}"
            wanted = f"positive numbers, {4 * MOST_UNROLLED} elements at most"
            raise self.unsupported(node, f"{what}; expected {wanted}")
        if not isinstance(value, tir.Number):
            raise self.unsupported(node, "the value of a tile is a number")
        if name in self._scopes.maps[0] or not self._in_tasks:
            raise self.unsupported(node, f"{name!r}: a tile of a task, made once")
        made = self._scopes[name] = LocalVariable(self._unique(name), self._lane, numbers)
        return tir.MakeTile(made.name, numbers, value.value, line=node.lineno)

    def _pack(self, node: ast.stmt, name: str, call: ast.Call) -> list[tir.Statement]:
        """The panel, and the loops that fill it."""
        match call:
            case ast.Call(_, [ast.GeneratorExp(element, loops)], []) if not any(
                loop.ifs for loop in loops
            ):
                targets, iterables = [g.target for g in loops], [g.iter for g in loops]
            case _:
                raise self._not_packed(node)
        shape = []
        for iterable in iterables:
            match iterable:
                case ast.Call(func, [extent], []) if self._word(func) in (tir.RANGE, tir.LANES):
                    shape.append(self._dim(extent, "an extent of a panel"))
                case _:
                    raise self._not_packed(node)
        if unknown := set(symbols_of(shape)) - {*self._extents, tir.WORKERS}:
            what = f"{', '.join(sorted(unknown))} in the extents of a panel"
            raise self.unsupported(node, f"{name!r}: {what}, which are those of arrays and numbers")
        if name in self._scopes.maps[0] or not self._in_tasks or self._lane is not None:
            what = "a panel of a task, outside of lanes, made once"
            raise self.unsupported(node, f"{name!r}: {what}")
        dtype = next(iter(self._arrays.values())).dtype
        panel = tir.Array(self._unique(name), dtype, tuple(shape), False, line=node.lineno)
        index = ast.Tuple(list(targets), ast.Load())
        body: ast.stmt = ast.Assign([ast.Subscript(ast.Name(name), index)], element)
        for target, iterable in zip(reversed(targets), reversed(iterables), strict=True):
            body = ast.For(target, iterable, [body], [])
        for part in ast.walk(body):
            ast.copy_location(part, node)
        self._scopes[name] = Filling(panel)
        filled = self._statement(body)
        self._scopes[name] = panel
        return [tir.MakePanel(panel, line=node.lineno), *filled]

    def _not_packed(self, node: ast.stmt) -> ScheduleError:
        return self.refused(node, "; expected pack(x for p in range(k) for q in lanes(n))")

    def _set(self, node: ast.stmt, target: ast.Subscript, value: ast.expr) -> tir.Statement:
        assert isinstance(target.value, ast.Name)
        name = target.value.id
        array = self._arrays.get(name)
        panel = self._scopes.get(name)
        if isinstance(panel, Filling):
            index = self._index(target, len(panel.array.shape))
            return tir.Store(panel.array.name, index, self._number(value), line=node.lineno)
        if isinstance(panel, tir.Array):
            raise self.unsupported(node, f"the panel {name!r} is stored; it is packed once")
        if array is not None:
            if not array.is_output:
                raise self.unsupported(node, f"{name!r} is an input; it is stored")
            if isinstance(node, ast.AugAssign):
                what = "is stored, not added to; keep the sum in a local or a tile"
                raise self.unsupported(node, f"{name!r} {what}")
            index = self._index(target, len(array.shape))
            return tir.Store(name, index, self._number(value), line=node.lineno)
        entry, element, across = self._tile_element(target)
        if entry.lane != self._lane and not across:
            kind, found = self._reduction(node, target, value)
            return tir.Reduce(element, kind, found, line=node.lineno)
        return tir.SetElement(element, self._number(value), line=node.lineno)


def _apart(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether assignments at once are the same as one after the other."""
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    read = {n.id for v in values for n in ast.walk(v) if isinstance(n, ast.Name)}
    return len(targets) == len(values) == len(names) and names.isdisjoint(read)


def _is_of_indices(expr: tir.Expr) -> bool:
    """Whether an expression is a condition on indices alone, which nothing changes."""
    read = any(
        isinstance(part, (tir.Load, tir.Local, tir.Element)) for part in tir.expressions(expr)
    )
    return is_condition(expr) and not read
