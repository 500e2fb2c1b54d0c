"""The table of the generator: a row an operator, which says how a node of it is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import ONE, Extent, derived, static
from tests.random_graphs.making import Maker
from tests.random_graphs.tensors import DTYPES, Tensor

Make = Callable[[Maker], None]
LATEST = 1000


@dataclass(frozen=True)
class Row:
    """How nodes of an operator, or of an idiom of several, are drawn."""

    op: str
    """The type of a node, or what an idiom is called."""
    domain: str
    make: Make
    weight: float
    """How often it is drawn, beside others."""
    since: int
    until: int
    """Versions of ONNX's operators that have it."""
    idiom: bool
    """Whether several nodes stand for what is recognised as one."""

    @property
    def name(self) -> str:
        return f"{self.domain}.{self.op}" if self.domain else self.op


ROWS: list[Row] = []


def row(
    op: str, weight: float = 1.0, domain: str = "", since: int = 7, until: int = LATEST,
    idiom: bool = False,
) -> Callable[[Make], Make]:  # fmt: skip
    """Enter a function as the row of an operator."""

    def enter(make: Make) -> Make:
        ROWS.append(Row(op, domain, make, weight, since, until, idiom))
        return make

    return enter


def named(name: str) -> Row | None:
    """The row of a name; None for the empty one."""
    return {row.name: row for row in ROWS}[name] if name else None


SYMBOL = re.compile(r"n\d+")


@cache
def schema_dtypes(op: str, opset: int, operand: int = 0) -> tuple[str, ...]:
    """The element types that a version of an operator takes, of those that models may have."""
    schema = onnx.defs.get_schema(op, opset)
    kind = schema.inputs[min(operand, len(schema.inputs) - 1)].type_str
    (allowed,) = (t.allowed_type_strs for t in schema.type_constraints if t.type_param_str == kind)
    names = {"float": "float32", "double": "float64"}
    found = {t.removeprefix("tensor(").removesuffix(")") for t in allowed}
    found = {names.get(t, t) for t in found}
    return tuple(t for t in DTYPES if t in found)


def dtypes_of(maker: Maker, op: str, wanted: Sequence[str], operand: int = 0) -> tuple[str, ...]:
    """Those of some element types that the model's version of an operator takes.

    Raises:
        DeclinedError: there are none.
    """
    allowed = schema_dtypes(op, maker.opset, operand)
    found = tuple(t for t in wanted if t in allowed)
    if not found:
        raise DeclinedError(f"{op} takes none of {wanted}")
    return found


def _together(x: Extent, y: Extent) -> Extent:
    """The extent of two axes that are broadcast.

    Raises:
        DeclinedError: they do not fit at some binding.
    """
    if y.key == "1" or x.at == y.at:
        return x if x.static or x.at != y.at else y
    if x.key == "1":
        return y
    if set(SYMBOL.findall(x.key)) & set(SYMBOL.findall(y.key)):
        # Extents of one symbol must be equal; that one of them is one by chance is not looked for.
        raise DeclinedError("extents of one symbol")
    at = []
    for a, b in zip(x.at, y.at, strict=True):
        if a != b and 1 not in (a, b):
            raise DeclinedError("extents that do not fit")
        at.append(b if a == 1 else a)
    if tuple(at) == x.at:
        return x
    return y if tuple(at) == y.at else derived(f"{x.key}|{y.key}", at)


def broadcast(shapes: Sequence[Sequence[Extent]]) -> tuple[Extent, ...]:
    """The shape that NumPy's broadcasting gives."""
    rank = max(map(len, shapes))
    found = [ONE] * rank
    for shape in shapes:
        for i, extent in enumerate(reversed(shape)):
            found[rank - 1 - i] = _together(found[rank - 1 - i], extent)
    return tuple(found)


def partner(maker: Maker, x: Tensor, dtype: str | None = None) -> Tensor:
    """A tensor that broadcasts with another."""
    draws = maker.draws
    dtype = x.dtype if dtype is None else dtype
    kinds = ("scalar", "same", "row", "ones", "known", "wider", "itself")
    kind = draws.weighted(kinds, (0.2, 0.25, 0.2, 0.12, 0.13, 0.05, 0.05))
    if kind == "itself" and x.dtype == dtype:
        return x
    if kind == "same":
        return maker.shaped(x.shape, dtype)
    if kind == "row" and x.rank:
        return maker.shaped(x.shape[draws.below(x.rank) :], dtype)
    if kind == "ones" and x.rank:
        kept = [e if draws.chance(0.5) else ONE for e in x.shape]
        return maker.shaped(tuple(kept), dtype)
    if kind == "wider" and x.rank < 4:
        front = draws.pick((static(2), ONE, static(3)))
        shape = [e if e.key != "1" or draws.chance(0.5) else static(4) for e in x.shape]
        return maker.shaped((front, *shape), dtype)
    if kind == "known":
        known = []
        for y in reversed(maker.tensors):
            if y.dtype == dtype:
                try:
                    broadcast([x.shape, y.shape])
                except DeclinedError:
                    continue
                known.append(y)
        if known:
            return draws.pick(known)
    if dtype == "bool":
        return maker.scalar(draws.chance(0.5), dtype)
    return maker.scalar(draws.pick((1, 2, 3, 0, 7)) if dtype.startswith("u") else
                        draws.pick((1, 2, -1, 3, 0.5 if x.floating else 5, 0)), dtype)  # fmt: skip
