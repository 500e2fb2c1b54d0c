"""Determinants of square matrices, by the LAPACK of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import Attributes, Numerics, Operator, Require, elements_of

Types = Sequence[TensorType]


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType]:
    (x,) = types
    what = f"determinant of {x}; expected square matrices"
    if x.dtype.kind != "float":
        raise GraphError(f"determinant of {x}; expected floats")
    if x.rank < 2:
        raise ShapeError(what)
    require(x.shape[-2], x.shape[-1], what)
    return (TensorType(x.dtype, x.shape[:-2]),)


def _reference(x: Any) -> Any:
    # LAPACK may take a NaN on the diagonal for a pivot of zero.
    return np.where(np.isnan(x).any((-2, -1)), np.nan, np.linalg.det(x))


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    """A multiply-add for each element and row. LAPACK does several in the time of an element."""
    (x,) = types
    return elements_of(x.shape) * elements_of(x.shape[-1:])


DETERMINANT = (
    Operator("determinant", _infer, _reference, work=_work, numerics=Numerics.REDUCTION),
)
"""The operand is (batch axes..., M, M), the result has the batch axes. A matrix of no rows has the
determinant 1."""
