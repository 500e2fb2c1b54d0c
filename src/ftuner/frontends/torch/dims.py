"""Extents of a PyTorch program as dims, and the branches on extents that it was traced along.

torch's symbols are SymPy's. Its quotients of extents round down, as those of dims do. A program
holds for extents that take the same branches. torch compares extents in its own code, too, where
programs hold on both sides: what counts are the comparisons of anyone else's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy import functions

from ftuner.core.dim import (
    Dim,
    Names,
    ceil_quotient,
    maximum,
    minimum,
    product,
    quotient,
    remainder,
)
from ftuner.core.dtype import FLOAT64, INT64
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.algebra import apply, scalar, sqrt
from ftuner.graph.checks import origin
from ftuner.graph.ir import Value, building

Symbolic = torch.SymInt | torch.SymFloat


def extent_of(x: Value) -> Dim:
    """The one element of a tensor, which is 0 or more, as an extent; named after the node that is
    imported."""
    row = x.reshape((1,)).cast(INT64)
    node = origin().partition(" ")[0]
    return apply("extents", row, counts=(f"{node}_count",)).shape[0]


class Extents:
    """The dims of torch's symbols."""

    def __init__(self) -> None:
        self.names = Names()
        self.known: dict[sympy.Symbol, Dim] = {}
        self.reals: dict[sympy.Symbol, Value] = {}
        """Floats that are elements of tensors."""
        self.parts: dict[sympy.Expr, Dim] = {}
        """Max(n, 0) for each n."""

    def bind(self, extent: int | torch.SymInt, text: str) -> Dim:
        """The dim of an extent of an input; one that is not known yet has the name `text`."""
        expression = expression_of(extent)
        if expression.is_number:
            return int(expression)
        if isinstance(expression, sympy.Symbol):
            if expression not in self.known:
                self.known[expression] = self.names.fresh(text)
            return self.known[expression]
        return self.names.fresh(text)

    def note(self, extent: int | torch.SymInt, dim: Dim) -> None:
        """Note what an extent is: if its expression has one unknown symbol, this is solved for
        it. Max(n, 0) and Max(-n, 0) together say what n is."""
        expression = expression_of(extent)
        unknown = [s for s in expression.free_symbols if s not in self.known]
        if len(unknown) != 1:
            return
        (symbol,) = unknown
        if isinstance(expression, functions.Max):
            numbers = symbol, -symbol
            self.parts |= {n: dim for n in numbers if {*expression.args} == {sympy.Integer(0), n}}
            above, below = map(self.parts.get, numbers)
            if above is not None and below is not None:
                self.known[symbol] = above - below
            return
        expression = sympy.expand(expression)
        factor = expression.coeff(symbol)
        rest = sympy.expand(expression - factor * symbol)
        if factor.is_Integer and factor != 0 and symbol not in rest.free_symbols:
            self.known[symbol] = quotient(dim - self.translated(rest), int(factor))

    def dim(self, extent: int | torch.SymInt) -> Dim:
        """An extent as a dim.

        Raises:
            UnsupportedOperatorError: dims have no such function, or no input has the symbol.
        """
        return self.translated(expression_of(extent))

    def knows(self, extent: int | Symbolic) -> bool:
        """Whether all symbols of a number are known."""
        return all(s in self.known for s in expression_of(extent).free_symbols)

    def translated(self, e: sympy.Expr) -> Dim:
        """An expression of torch's symbols as a dim. Raises as `dim`."""
        if e.is_number and e == int(e):
            return int(e)
        if isinstance(e, sympy.Symbol):
            if e not in self.known:
                raise UnsupportedOperatorError(f"no input has the extent {e}")
            return self.known[e]
        if isinstance(e, (functions.TruncToInt, functions.FloorToInt)):
            return self._scaled(e.args[0])
        if isinstance(e, functions.CeilToInt):
            return self._after_fraction(e.args[0])
        operands = [] if isinstance(e, sympy.Pow) else [self.translated(x) for x in e.args]
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
            return product([self.translated(e.base)] * int(e.exp))
        for kinds, function in _FUNCTIONS:
            if isinstance(e, kinds):
                return function(operands)
        raise UnsupportedOperatorError(f"extent {e}: dims have no {type(e).__name__}")

    def _after_fraction(self, e: sympy.Expr) -> Dim:
        """An extent, or a quotient of extents, plus a number, rounded up: how many numbers
        `arange(0.5, extent)` has. Or an extent times a number, rounded up, where products with the
        number are exact."""
        if isinstance(e, functions.FloatTrueDiv) and e.args[1] == 1.0:
            e = e.args[0]
        number, rest = e.as_coeff_Add()
        if isinstance(rest, functions.IntTrueDiv) and float(number).is_integer():
            return ceil_quotient(*map(self.translated, rest.args)) + int(number)
        factor, rest = rest.as_coeff_Mul()
        above, below = float(factor).as_integer_ratio()
        whole = below == 1 or (below <= MAX_DENOMINATOR and float(number).is_integer())
        if not isinstance(rest, functions.ToFloat) or not whole:
            raise UnsupportedOperatorError(f"extent {e}, rounded: expected an extent plus a number")
        offset = math.ceil(float(number))
        return ceil_quotient(self.translated(rest.args[0]) * above, below) + offset

    def _scaled(self, e: sympy.Expr) -> Dim:
        """A float times an extent, rounded down."""
        factor, rest = e.as_coeff_Mul()
        if not isinstance(rest, functions.ToFloat):
            raise UnsupportedOperatorError(
                f"extent {e}, rounded: expected a number times an extent"
            )
        return scaled_extent(self.translated(rest.args[0]), float(factor))

    def real(self, number: torch.SymFloat) -> Value:
        """A float that is computed from extents, as a scalar of float64.

        Raises:
            UnsupportedOperatorError: graphs have no such function, or no input has a symbol.
        """
        return self._real(expression_of(number))

    def _real(self, e: sympy.Expr) -> Value:
        if e.is_number:
            return scalar(float(e), FLOAT64)
        if e in self.reals:
            return self.reals[e]
        if e.is_integer:
            return building().dims([self.translated(e)], ()).cast(FLOAT64)
        x, *rest = (self._real(a) for a in e.args)
        if isinstance(e, (sympy.Add, sympy.Mul)):
            for y in rest:
                x = x + y if isinstance(e, sympy.Add) else x * y
            return x
        if isinstance(e, functions.ToFloat):
            return x
        if isinstance(e, (functions.FloatTrueDiv, functions.IntTrueDiv)):
            return x / rest[0]
        if isinstance(e, (sympy.Pow, functions.FloatPow)):
            return x ** rest[0]
        if type(e).__name__ == "OpaqueUnaryFn_sqrt":
            return sqrt(x)
        raise UnsupportedOperatorError(f"{e}: graphs have no {type(e).__name__} of extents")


_FUNCTIONS: tuple[tuple[Any, Callable[[Sequence[Dim]], Dim]], ...] = (
    (sympy.Add, sum),
    (sympy.Mul, product),
    ((functions.FloorDiv, functions.CleanDiv), lambda x: quotient(*x)),
    (functions.CeilDiv, lambda x: ceil_quotient(*x)),
    ((functions.PythonMod, functions.Mod), lambda x: remainder(*x)),
    (functions.ModularIndexing, lambda x: remainder(quotient(x[0], x[1]), x[2])),
    ((functions.Max, sympy.Max), partial(reduce, maximum)),
    ((functions.Min, sympy.Min), partial(reduce, minimum)),
    (sympy.Abs, lambda x: maximum(x[0], -x[0])),
    (functions.Identity, lambda x: x[0]),
)
"""What functions of SymPy and of torch are on dims."""


def scaled_extent(extent: Dim, factor: float) -> Dim:
    """An extent times a positive number, rounded down. That of an extent which is known only at run
    time must be close to a fraction.

    Raises:
        UnsupportedOperatorError: it is not.
    """
    if isinstance(extent, int):
        return math.floor(extent * factor)
    ratio = Fraction(factor).limit_denominator(MAX_DENOMINATOR)
    if not math.isclose(ratio, factor, rel_tol=2.0**-52):
        raise UnsupportedOperatorError(f"{factor} times {extent}: no simple fraction")
    return quotient(extent * ratio.numerator, ratio.denominator)


MAX_DENOMINATOR = 1 << 12
"""Of a factor of extents; products with its numerator fit 64 bits."""


def expression_of(extent: int | Symbolic) -> sympy.Expr:
    """The SymPy expression of an extent or of another number."""
    if isinstance(extent, (torch.SymInt, torch.SymFloat)):
        return extent.node.expr
    return sympy.Integer(extent)


_LIBRARIES = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
"""Where torch and ftuner compare extents."""
TRUTHS = "decided"
"""The function of ours that compares for the module."""
MOST_TEXT = 100
"""Characters of a line of code in a message."""


class Branch(NamedTuple):
    """A condition on extents that the module found true."""

    condition: sympy.Basic
    what: str
    """Where, for error messages."""


def branches_of(program: ExportedProgram) -> list[Branch]:
    """The branches that a program has been traced along, as far as torch kept them."""
    guards = getattr(environment_of(program), "guards", ())
    return [Branch(g.expr, _where(g.sloc.framework_loc)) for g in _of_module(guards)]


def environment_of(program: ExportedProgram) -> Any:
    """What torch knows of the symbols of a program; None if it has none."""
    values = (n.meta.get("val") for n in program.graph.find_nodes(op="placeholder"))
    modes = (getattr(value, "fake_mode", None) for value in values)
    return next((m.shape_env for m in modes if m is not None and m.shape_env is not None), None)


def _of_module(guards: Iterable[Any]) -> Iterator[Any]:
    for guard in guards:
        place = guard.sloc.framework_loc
        own = hasattr(place, "filename") and place.filename.startswith(_LIBRARIES)
        if hasattr(place, "filename") and (not own or place.name == TRUTHS):
            yield guard


def _where(place: Any) -> str:
    line = (place.line or "").strip()[:MOST_TEXT]
    return (
        f"a branch on extents, {Path(place.filename).name}:{place.lineno} ({line}), of which the "
        "program has the side of its example inputs alone"
    )


def equality(condition: sympy.Basic, dim: Callable[[sympy.Expr], Dim]) -> tuple[Dim, Dim] | None:
    """Two dims that are equal if the condition holds and else not; None if there are none such.
    `dim`: of an expression."""
    made = _RELATIONS.get(type(condition))
    return None if made is None else made(*(dim(x) for x in condition.args))


def _at_least(x: Dim, y: Dim) -> tuple[Dim, Dim]:
    return minimum(x - y, 0), 0


_RELATIONS: Mapping[type, Callable[[Dim, Dim], tuple[Dim, Dim]]] = {
    sympy.Eq: lambda x, y: (x, y),
    sympy.Ne: lambda x, y: (minimum(maximum(x - y, y - x), 1), 1),
    sympy.Ge: _at_least,
    sympy.Gt: lambda x, y: _at_least(x - 1, y),
    sympy.Le: lambda x, y: _at_least(y, x),
    sympy.Lt: lambda x, y: _at_least(y - 1, x),
}
