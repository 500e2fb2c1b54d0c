"""Signatures of operators, in the notation of NumPy's generalised functions.

    (m, k), (k, n) -> (m, n)
    (..., n), int64(), float32(2 * n + 1) -> (..., n), int64(...)

Each operand and result has the names of its extents in parentheses, numbers, or integer arithmetic
on both. Before them is the type: `float` (the default) and `int` stand for any dtype of the kind,
which is then the same for all that say so. `...` stands for any number of leading axes, which
broadcast as in NumPy.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from ftuner.core.frozen import dataclass
from ftuner.define.elements import FLOAT, INDEX, TYPES, Element, Extent, element, wrong

_TENSOR = re.compile(r"\s*(\w*)\s*\(")
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class TensorSignature:
    """The type and the extents of an operand or result."""

    type: str
    shape: tuple[Element, ...]
    batched: bool
    """Whether it has further leading axes."""


@dataclass(frozen=True)
class Signature:
    """The operands and results of an operator, as its signature has them."""

    text: str
    operands: tuple[TensorSignature, ...]
    results: tuple[TensorSignature, ...]


def parsed(text: object, where: str) -> Signature:
    """The signature of a text.

    Raises:
        DefinitionError: it is malformed.
    """
    if not isinstance(text, str) or text.count("->") != 1:
        raise wrong(f"signature {text!r}; expected such as '(m, k), (k, n) -> (m, n)'", where)
    left, _, right = text.partition("->")
    operands, results = (tuple(_tensors(part, text, where)) for part in (left, right))
    if not results:
        raise wrong(f"signature {text!r} has no result", where)
    own = {e.name for one in operands for e in one.shape if isinstance(e, Extent)}
    for one in (*operands, *results):
        for extent in one.shape:
            unknown = _names(extent) - own
            if unknown:
                what = f"signature {text!r}: no operand has an axis of extent {min(unknown)!r}"
                raise wrong(what, where)
    if any(one.batched for one in results) and not any(one.batched for one in operands):
        raise wrong(f"signature {text!r}: no operand has the axes '...' of the result", where)
    return Signature(text, operands, results)


def _tensors(part: str, text: str, where: str) -> list[TensorSignature]:
    found, rest = list[TensorSignature](), part.strip()
    while rest:
        begin = _TENSOR.match(rest)
        end = _closing(rest)
        if begin is None or end < 0:
            raise wrong(f"signature {text!r}: {rest!r} is no tensor, such as float32(m, n)", where)
        type_ = begin[1] or FLOAT
        if type_ not in TYPES:
            what = f"no type is called {type_!r}; there are {', '.join(TYPES)}"
            raise wrong(f"signature {text!r}: {what}", where)
        found.append(_tensor(type_, rest[begin.end() : end], text, where))
        rest = rest[end + 1 :].strip()
        if rest and (rest[0] != "," or not rest[1:].strip()):
            raise wrong(f"signature {text!r}: {rest!r} after a tensor; expected a comma", where)
        rest = rest[1:].strip()
    return found


def _closing(text: str) -> int:
    """The place of the parenthesis that closes the first one; negative if there is none."""
    depth = 0
    for i, c in enumerate(text):
        depth += {"(": 1, ")": -1}.get(c, 0)
        if c == ")" and depth == 0:
            return i
    return -1


def _tensor(type_: str, inside: str, text: str, where: str) -> TensorSignature:
    try:
        (entry,) = ast.parse(f"({inside.strip()},)" if inside.strip() else "()").body
        assert isinstance(entry, ast.Expr)
        assert isinstance(entry.value, ast.Tuple)
        entries = entry.value.elts
        first = entries[0] if entries else None
        batched = isinstance(first, ast.Constant) and first.value is ...
        shape = tuple(element(_extent(one)) for one in entries[batched:])
    except (SyntaxError, ValueError, AssertionError):
        what = f"signature {text!r}: extents ({inside}); expected names, numbers, + - * // %"
        raise wrong(what, where) from None
    return TensorSignature(type_, shape, batched)


def _extent(node: ast.expr) -> Element | int:
    match node:
        case ast.Name(name):
            return Extent(INDEX, frozenset(), "", name)
        case ast.Constant(int() as number) if type(number) is int:
            return number
        case ast.BinOp(x, sign, y) if type(sign) in _OPERATORS:
            found: Element | int = _OPERATORS[type(sign)](_extent(x), _extent(y))
            return found
    raise ValueError(ast.unparse(node))


def _names(extent: Element) -> set[str]:
    if isinstance(extent, Extent):
        return {extent.name}
    return set().union(*map(_names, getattr(extent, "arguments", ())))
