"""From an expression of Python to a dim, or to an expression of elements."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, reduce
from operator import add, mul, sub
from types import ModuleType
from typing import Any

from ftuner.core.dim import Dim, ceil_quotient, quotient, remainder, symbol, symbols_of
from ftuner.core.dim import maximum as larger
from ftuner.core.dim import minimum as smaller
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import ScheduleError, UndefinedNameError, UnsupportedStatementError
from ftuner.tasks import program as tir
from ftuner.tasks.source import Source

FUNCTIONS = {"abs": "absolute", "max": "maximum", "min": "minimum"}
"""Python's names of functions of elements."""
OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
}  # fmt: skip
_COMPARISONS = {ast.Lt: "less", ast.LtE: "less_equal", ast.Eq: "equal"}
_OF_INDICES: Mapping[type[ast.AST], Callable[[Dim, Dim], Dim]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: quotient, ast.Mod: remainder,
}  # fmt: skip
Value = tir.Expr | int | Any
"""An expression of elements, or a `Dim`."""


@dataclass
class LocalVariable:
    """A local scalar or a register tile."""

    name: str
    lane: str | None
    """The `lanes` loop that it is of."""
    shape: tuple[int, ...] = ()
    across: bool | None = None
    """Of a tile from outside of `lanes` loops: whether its last axis is along lanes."""


@dataclass
class Filling:
    """A panel that is not filled yet."""

    array: tir.Array


class Expressions:
    """The names that are known where a schedule is parsed, and what expressions of them mean."""

    def __init__(self, source: Source, tiles: Mapping[str, int]) -> None:
        self._source = source
        self._node = source.node
        self._arrays: dict[str, tir.Array] = {}
        self._extents: dict[str, None] = {}
        self._scopes: ChainMap[str, Any] = ChainMap(dict(tiles))
        """Dims, variables, mappings (tuples of factors)."""
        self._names: set[str] = {tir.WORKERS}
        self._lane: str | None = None
        self._lane_extent: Dim = 0
        self._unrolled: set[str] = set()
        self._reduced: set[str] = set()
        self._read: set[str] = set()
        self._in_tasks = False

    def error(self, kind: type[ScheduleError], node: ast.AST, message: str) -> ScheduleError:
        return self._source.error(kind, getattr(node, "lineno", self._node.lineno), message)

    def unsupported(self, node: ast.AST, message: str) -> ScheduleError:
        return self.error(UnsupportedStatementError, node, message)

    def refused(
        self, node: ast.AST, what: str, kind: type[ScheduleError] = UnsupportedStatementError
    ) -> ScheduleError:
        """The error whose message begins with the text of a node."""
        return self.error(kind, node, f"`{ast.unparse(node)}`{what}")

    # Names.

    def _lookup(self, node: ast.Name) -> Any:
        if node.id in self._scopes:
            return self._scopes[node.id]
        if node.id == tir.WORKERS:
            return symbol(tir.WORKERS)
        value = self._source.globals.get(node.id)
        if type(value) in (int, float):
            return value if isinstance(value, int) else tir.Number(float(value or 0.0))
        meant = _meant(node.id, [*self._scopes, *self._arrays])
        outside = f" (it is {type(value).__name__})" if value is not None else ""
        what = f"{node.id!r} is not defined here{outside}{meant}"
        raise self.error(UndefinedNameError, node, what)

    def _word(self, node: ast.expr) -> str:
        """The word that a call names: as itself, or as an attribute of a module."""
        match node:
            case ast.Name(name) if name not in self._scopes:
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

    # Indices.

    def _dim(self, node: ast.expr, what: str) -> Dim:
        value = self._value(node)
        if isinstance(value, tir.Expr):
            what = f"{what} is `{ast.unparse(node)}`, a number with a fraction; expected an index"
            raise self.unsupported(node, what)
        found: Dim = value
        return found

    def _index(self, node: ast.Subscript, axes: int) -> tuple[Dim, ...]:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, (ast.Slice, ast.Starred)):
                raise self.refused(node, ": a slice")
        if len(parts) != axes:
            raise self.refused(node, f" has {len(parts)} indices; it has {axes} axes")
        return tuple(self._dim(part, "an index") for part in parts)

    def _tile_element(self, node: ast.Subscript) -> tuple[LocalVariable, tir.Element, bool]:
        """The tile, the element, and whether its last index is the variable of the lanes loop."""
        assert isinstance(node.value, ast.Name)
        entry = self._lookup(node.value)
        if not isinstance(entry, LocalVariable) or not entry.shape:
            raise self.unsupported(node, f"{node.value.id!r} is no array and no tile")
        index = self._index(node, len(entry.shape))
        across = False
        if self._lane is not None and entry.lane is None and tir.uses(index[-1], self._lane):
            across = index[-1] == symbol(self._lane)
            if not across or self._lane_extent != entry.shape[-1]:
                own = f"`lanes({entry.shape[-1]})` alone"
                raise self.refused(node, f": along lanes the last index is that of {own}")
        if entry.across not in (None, across):
            raise self.refused(node, ": the tile is used along lanes and by numbers")
        entry.across = across
        for position in index[: len(index) - across]:
            if unknown := set(symbols_of((position,))) - self._unrolled:
                what = f": {', '.join(sorted(unknown))} is not known when it is compiled"
                why = "registers have no addresses: use `repeat` of numbers"
                raise self.refused(node, f"{what}; {why}")
        return entry, tir.Element(entry.name, index), across

    # Values.

    def _condition(self, node: ast.expr) -> tir.Expr:
        value = self._value(node)
        if not (isinstance(value, tir.Expr) and is_condition(value)):
            raise self.refused(node, " is not a condition")
        return value

    def _element(self, value: Value, node: ast.expr) -> tir.Expr:
        """A number: an index becomes one."""
        if isinstance(value, int):
            return tir.Number(float(value))
        if not isinstance(value, tir.Expr):
            return tir.IndexValue(value)
        if is_condition(value):
            raise self.refused(node, " is a condition; expected a number")
        return value

    def _number(self, node: ast.expr) -> tir.Expr:
        return self._element(self._value(node), node)

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(bool()) | ast.Constant(str()):
                pass
            case ast.Constant(int() as number):
                return number
            case ast.Constant(float() as number):
                return tir.Number(number)
            case ast.Name():
                return self._named(node)
            case ast.Attribute(ast.Name(base), name):
                value = getattr(self._source.globals.get(base), name, None)
                if type(value) is float:
                    return tir.Number(value)
                raise self.error(UndefinedNameError, node, f"`{ast.unparse(node)}` is no float")
            case ast.Subscript(ast.Name(name)):
                return self._subscript(node, name)
            case ast.BinOp(x, sign, y):
                return self._operation(node, self._value(x), sign, self._value(y))
            case ast.UnaryOp(ast.USub(), x):
                value = self._value(x)
                if isinstance(value, tir.Number):
                    return tir.Number(-value.value)
                if isinstance(value, tir.Expr):
                    return tir.Apply("negative", (self._element(value, x),))
                return -value
            case ast.UnaryOp(ast.Not(), x):
                return tir.Apply("logical_not", (self._condition(x),))
            case ast.BoolOp(sign, values):
                word = "logical_and" if isinstance(sign, ast.And) else "logical_or"
                return reduce(lambda x, y: tir.Apply(word, (x, y)), map(self._condition, values))
            case ast.Compare(first, signs, others):
                operands = [self._value(x) for x in (first, *others)]
                tests = map(partial(self._comparison, node), operands, signs, operands[1:])
                return reduce(lambda x, y: tir.Apply("logical_and", (x, y)), tests)
            case ast.IfExp(test, x, y):
                return tir.Choose(self._condition(test), self._number(x), self._number(y))
            case ast.Call(func, arguments, []):
                return self._call(node, func, arguments)
        raise self.refused(node, " is not supported")

    def _named(self, node: ast.Name) -> Value:
        if node.id in self._arrays:
            raise self.unsupported(node, f"the array {node.id!r} without an index")
        value = self._lookup(node)
        if isinstance(value, tuple):
            raise self.unsupported(node, f"the mapping {node.id!r} in arithmetic")
        if isinstance(value, tir.Array | Filling):
            raise self.unsupported(node, f"the panel {node.id!r} without an index")
        if isinstance(value, LocalVariable):
            if value.shape:
                raise self.unsupported(node, f"the tile {node.id!r} without an index")
            self._read.add(node.id)
            return tir.Local(value.name)
        return value

    def _subscript(self, node: ast.Subscript, name: str) -> tir.Expr:
        array = self._arrays.get(name)
        if array is None:
            panel = self._lookup(node.value)  # type: ignore[arg-type]
            if isinstance(panel, Filling):
                raise self.unsupported(node, f"the panel {name!r} is read before it is packed")
            array = panel if isinstance(panel, tir.Array) else None
        if array is not None:
            if not self._in_tasks:
                raise self.unsupported(node, f"{name!r} is read outside of the tasks")
            return tir.Load(array.name, self._index(node, len(array.shape)), line=node.lineno)
        _, element, across = self._tile_element(node)
        if not across:
            self._read.add(name)
        return element

    def _operation(self, node: ast.BinOp, x: Value, sign: ast.operator, y: Value) -> Value:
        if not isinstance(x, tir.Expr) and not isinstance(y, tir.Expr):
            operation = _OF_INDICES.get(type(sign))
            if operation is not None:
                if isinstance(sign, (ast.FloorDiv, ast.Mod)) and not (isinstance(y, int) and y > 0):
                    raise self.refused(node, ": an index is divided by positive numbers alone")
                return operation(x, y)
        elements = (self._element(x, node.left), self._element(y, node.right))
        if isinstance(sign, ast.Pow) and y == 2:
            return tir.Apply("multiply", (elements[0], elements[0]))
        if isinstance(sign, ast.Pow):
            return tir.Apply("power", elements)
        if type(sign) not in OPERATORS:
            raise self.refused(node, ": only indices have it")
        if all(isinstance(e, tir.Number) for e in elements) and not isinstance(sign, ast.Div):
            row = SCALAR_FUNCTIONS[OPERATORS[type(sign)]]
            return tir.Number(float(row.meaning(*(e.value for e in elements))))  # type: ignore[attr-defined]
        return tir.Apply(OPERATORS[type(sign)], elements)

    def _comparison(self, node: ast.Compare, x: Value, sign: ast.cmpop, y: Value) -> tir.Expr:
        match sign:
            case ast.NotEq():
                return tir.Apply("logical_not", (self._comparison(node, x, ast.Eq(), y),))
            case ast.Gt():
                return self._comparison(node, y, ast.Lt(), x)
            case ast.GtE():
                return self._comparison(node, y, ast.LtE(), x)
            case ast.Lt() | ast.LtE() | ast.Eq():
                if isinstance(x, tir.Expr) or isinstance(y, tir.Expr):
                    operands = (self._element(x, node), self._element(y, node))
                    return tir.Apply(_COMPARISONS[type(sign)], operands)
                if isinstance(sign, ast.Eq):
                    return tir.Test(x - y, exact=True)
                return tir.Test(y - x - 1 if isinstance(sign, ast.Lt) else y - x)
        raise self.refused(node, " is not supported")

    def _call(self, node: ast.Call, func: ast.expr, arguments: list[ast.expr]) -> Value:
        word = self._word(func)
        values = [self._value(a) for a in arguments]
        if word == "ceil_div" and len(values) == 2:
            if isinstance(values[0], tir.Expr) or type(values[1]) is not int or values[1] < 1:
                raise self.refused(node, ": expected an index and a positive number")
            return ceil_quotient(values[0], values[1])
        name = FUNCTIONS.get(word, word)
        if word == "where" and len(values) == 3:
            chosen = map(self._element, values[1:], arguments[1:])
            return tir.Apply("where", (self._condition(arguments[0]), *chosen))
        row = SCALAR_FUNCTIONS.get(name)
        if row is None or "float" not in row.kinds:
            meant = _meant(word, SCALAR_FUNCTIONS)
            raise self.error(UndefinedNameError, node, f"no function `{ast.unparse(func)}`{meant}")
        if len(values) != row.arity:
            raise self.unsupported(node, f"{name} of {len(values)} arguments; expected {row.arity}")
        if not any(isinstance(v, tir.Expr) for v in values) and name in ("maximum", "minimum"):
            return (larger if name == "maximum" else smaller)(*values)
        return tir.Apply(name, tuple(map(self._element, values, arguments)))


def _meant(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, [*known], 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def is_condition(expr: tir.Expr) -> bool:
    """Whether the elements of an expression are bool."""
    if isinstance(expr, tir.Test):
        return True
    if not isinstance(expr, tir.Apply) or expr.function == "where":
        return False
    row = SCALAR_FUNCTIONS[expr.function]
    return row.result == "bool" or row.kinds == {"bool"}
