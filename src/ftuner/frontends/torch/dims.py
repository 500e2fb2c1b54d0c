"""Extents of a PyTorch program as dims.

torch's symbols are SymPy's. Its quotients of extents round down, as those of dims do.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from ftuner.core.dim import Dim, maximum, minimum, product, quotient, remainder
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.names import Names


class Extents:
    """The dims of torch's symbols."""

    def __init__(self) -> None:
        self.names = Names()
        self.known: dict[sympy.Symbol, Dim] = {}

    def bind(self, extent: int | torch.SymInt, text: str) -> Dim:
        """The dim of an extent of an input; a symbol that is not known yet has the name `text`."""
        expression = expression_of(extent)
        if isinstance(expression, sympy.Symbol):
            if expression not in self.known:
                self.known[expression] = self.names.fresh(text)
            return self.known[expression]
        if expression.is_number:
            return int(expression)
        return self.names.fresh(text)

    def note(self, extent: int | torch.SymInt, dim: Dim) -> None:
        """Note what a data-dependent extent is."""
        expression = expression_of(extent)
        if isinstance(expression, sympy.Symbol):
            self.known.setdefault(expression, dim)

    def dim(self, extent: int | torch.SymInt) -> Dim:
        """An extent as a dim.

        Raises:
            UnsupportedOperatorError: dims have no such function, or no input has the symbol.
        """
        return self._translated(expression_of(extent))

    def _translated(self, e: sympy.Expr) -> Dim:
        if e.is_number and e == int(e):
            return int(e)
        if isinstance(e, sympy.Symbol):
            if e not in self.known:
                raise UnsupportedOperatorError(f"no input has the extent {e}")
            return self.known[e]
        operands = [self._translated(x) for x in e.args] if not isinstance(e, sympy.Pow) else []
        if isinstance(e, sympy.Add):
            total: Dim = 0
            for x in operands:
                total = total + x
            return total
        if isinstance(e, sympy.Mul):
            return product(operands)
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
            return product([self._translated(e.base)] * int(e.exp))
        if isinstance(e, (functions.FloorDiv, functions.CleanDiv)):
            return quotient(*operands)
        if isinstance(e, (functions.PythonMod, functions.Mod)):
            return remainder(*operands)
        if isinstance(e, functions.ModularIndexing):
            return remainder(quotient(operands[0], operands[1]), operands[2])
        if isinstance(e, (functions.Max, sympy.Max)):
            return _folded(maximum, operands)
        if isinstance(e, (functions.Min, sympy.Min)):
            return _folded(minimum, operands)
        raise UnsupportedOperatorError(f"extent {e}: dims have no {type(e).__name__}")


def _folded(function: Any, operands: list[Dim]) -> Dim:
    found = operands[0]
    for x in operands[1:]:
        found = function(found, x)
    return found


def expression_of(extent: int | torch.SymInt) -> sympy.Expr:
    """The SymPy expression of an extent."""
    return extent.node.expr if isinstance(extent, torch.SymInt) else sympy.Integer(extent)
