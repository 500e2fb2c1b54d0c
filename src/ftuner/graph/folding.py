"""Evaluating nodes whose operands are constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ftuner.graph.arrays import widened
from ftuner.graph.ir import Array, TensorType, Value
from ftuner.graph.operator import reference_result
from ftuner.graph.operators import OPERATORS

MAX_FOLDED_BYTES = 64 << 20
"""Constants that folding would make larger than this (a model can ask for any) are left to run
time."""


def folded(
    op: str,
    inputs: Sequence[Value],
    attributes: Mapping[str, Any],
    types: Sequence[TensorType],
) -> list[Array] | None:
    """The results of an operator, if all that it reads is known and they are not too large."""
    given = [widened(v.constant, v.dtype) for v in inputs if v.constant is not None]
    if len(given) < len(inputs) or op == "dims":
        return None
    dims = [d for v in attributes.values() if isinstance(v, tuple) for d in v]
    if not all(isinstance(d, int) for d in [*dims, *(n for t in types for n in t.shape)]):
        return None
    if max(_bytes_of(type_) for type_ in types) > MAX_FOLDED_BYTES:
        return None
    with np.errstate(all="ignore"):
        results = OPERATORS[op].reference(*given, **attributes)
    results = results if len(types) > 1 else (results,)
    return [reference_result(r, type_) for r, type_ in zip(results, types, strict=True)]


def _bytes_of(type_: TensorType) -> int:
    return math.prod(n for n in type_.shape if isinstance(n, int)) * type_.dtype.itemsize
