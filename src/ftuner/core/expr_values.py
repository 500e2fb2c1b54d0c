"""The NumPy reference of expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.expr import Apply, Constant, Expr, Operand, flatten, operands
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.errors import ExpressionError

Array = npt.NDArray[Any]


def evaluate(expr: Expr, env: Mapping[str, Array]) -> Array:
    """The NumPy reference: `expr` on the arrays of `env`, by operand name.

    Takes tile and matrix operands of shape (..., m, n), column operands of (n,) and row operands of
    (m,); a row operand of another rank is broadcast as it is. Every operation is rounded to the
    common floating dtype of the operands (float64 if there is none), which the result has too.
    Raises ExpressionError if an operand is missing or is used with two kinds.
    """
    operands(expr)
    steps = flatten(expr)
    given = {s.node.name: _operand_value(s.node, env) for s in steps if isinstance(s.node, Operand)}
    dtype = np.result_type(*given.values()) if given else np.dtype(np.float64)
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for step in steps:
            node = step.node
            arguments = [values[i] for i in step.arguments]
            if isinstance(node, Operand):
                values.append(given[node.name])
            elif isinstance(node, Constant):
                values.append(np.asarray(node.value, dtype))
            else:
                assert isinstance(node, Apply)
                where = node.function == "where"
                function = np.where if where else SCALAR_FUNCTIONS[node.function].meaning
                values.append(function(*arguments))
    return np.asarray(values[-1])


def _operand_value(operand: Operand, env: Mapping[str, Array]) -> Array:
    if operand.name not in env:
        raise ExpressionError(
            f"operand {operand.name!r} ({operand.kind}) was not given; got {sorted(env)}"
        )
    value = np.asarray(env[operand.name])
    return value[:, None] if operand.kind == "row" and value.ndim == 1 else value
