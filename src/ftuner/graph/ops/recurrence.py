"""Recurrent layers: the part of LSTM, GRU and RNN that steps pass on to each other.

What the input adds to the gates is one product for all steps, which comes before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ftuner.core.dim import Shape
from ftuner.core.dtype import INT8, INT32
from ftuner.core.expr_values import evaluate
from ftuner.core.recurrence import ROUNDED, SCALE, ZERO, Cell
from ftuner.errors import GraphError, ShapeError
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import Attributes, Numerics, Operator, Require, Types, elements_of


def _infer(types: Types, attributes: Attributes, require: Require) -> tuple[TensorType, ...]:
    """x (length, batch, gates * hidden): the input's part of all gates, biases included; weight
    (gates * hidden, hidden), both known, of the dtype of x, or levels of int8 if the cell rounds
    its state. Then, as far as the cell has them: its first states
    (batch, hidden); its columns (count * hidden); the lengths of sequences (batch), int32. The
    results are the states h (length, 1, batch, hidden), and each state after the last step
    (1, batch, hidden): an axis of directions, along which those of a layer are concatenated.

    The state of a sequence does not change beyond its length, and h is zero there. A reversed
    direction begins with the last step of each sequence. The last states of a sequence of length 0
    are zero.
    """
    cell: Cell = attributes["cell"]
    what = f"recurrence of {', '.join(map(str, types))}"
    expected = _operands(cell)
    if len(types) != len(expected) or [t.rank for t in types] != list(expected.values()):
        raise ShapeError(f"{what}: expected {', '.join(expected)}")
    x, weight, *others = types
    floats = types[:-1] if cell.lengths else types
    if cell.rounds and weight.dtype == INT8:
        floats = [t for t in floats if t is not weight]
    if any(t.dtype != x.dtype for t in floats) or x.dtype.kind != "float":
        raise GraphError(f"{what}: expected floats of one dtype")
    columns, hidden = weight.shape
    if not isinstance(hidden, int) or not isinstance(columns, int) or not hidden:
        raise ShapeError(f"{what}: the extents of the weight must be known")
    require(columns, len(cell.gates) * hidden, what)
    require(x.shape[2], columns, what)
    length, batch = x.shape[:2]
    shapes: list[Shape] = [(batch, hidden)] * (len(cell.states) if cell.initial else 0)
    shapes += [(len(cell.columns) * hidden,)] if cell.columns else []
    if cell.lengths:
        shapes.append((batch,))
        if types[-1].dtype != INT32:
            raise GraphError(f"{what}: expected lengths of int32")
    for other, shape in zip(others, shapes, strict=True):
        for n, wanted in zip(other.shape, shape, strict=True):
            require(n, wanted, what)
    state = TensorType(x.dtype, (1, batch, hidden))
    return (TensorType(x.dtype, (length, *state.shape)), *(state for _ in cell.states))


def _operands(cell: Cell) -> dict[str, int]:
    """The operands of a cell and their numbers of axes."""
    found = {"x": 3, "weight": 2}
    if cell.initial:
        found |= {f"first {state}": 2 for state in cell.states}
    if cell.columns:
        found["columns"] = 1
    if cell.lengths:
        found["lengths"] = 1
    return found


def _reference(
    x: Any, weight: Any, *others: Any, cell: Cell, directions: int = 1, node: str = ""
) -> tuple[Any, ...]:
    length, batch = x.shape[:2]
    hidden = weight.shape[1]
    rest = list(others)
    shape = (batch, hidden)
    planes = {plane: np.zeros(shape, x.dtype) for plane in cell.planes}
    if cell.initial:
        planes |= {state: np.array(rest.pop(0)) for state in cell.states}
    env = {}
    if cell.columns:
        given = rest.pop(0).reshape(len(cell.columns), hidden)
        env = dict(zip(cell.columns, given, strict=True))
    lengths = np.full(batch, length)
    if cell.lengths:
        (lengths,) = rest
        if np.any((lengths < 0) | (lengths > length)):
            raise IndexError(f"lengths of sequences beyond {length} steps: {lengths}")
        for plane in planes.values():
            plane[lengths == 0] = 0
    y = np.zeros((length, *shape), x.dtype)
    for t in reversed(range(length)) if cell.reverse else range(length):
        parts = zip(cell.gates, np.split(x[t], len(cell.gates), axis=-1), strict=True)
        env |= {f"x_{gate}": part for gate, part in parts}
        valid = (t < lengths)[:, None]
        for stage in cell.stages():
            if cell.rounds:
                h = planes["h"]
                env |= {"low": h.min(initial=0), "high": h.max(initial=0)}
                env |= {"scale": evaluate(SCALE, env)}
                env |= {"zero": evaluate(ZERO, env)}
                planes["rounded"] = evaluate(ROUNDED, {**env, "h": h})
            sums = np.matmul(planes[stage.multiplied], weight.T)
            parts = zip(cell.gates, np.split(sums, len(cell.gates), axis=-1), strict=True)
            env |= {f"s_{gate}": part for gate, part in parts}
            for name, expr in stage.results:
                found = evaluate(expr, {**env, **planes})
                planes[name] = np.where(valid, found, planes[name])
        y[t] = np.where(valid, planes["h"], 0)
    return (y[:, None], *(planes[state][None] for state in cell.states))


def _work(types: Types, attributes: Attributes, results: Types) -> int:
    """The products of all steps, and some operations on each gate."""
    return elements_of(results[0].shape[:3]) * elements_of(types[1].shape) + 16 * elements_of(
        types[0].shape
    )


OPERATORS = (Operator("recurrence", _infer, _reference, work=_work, numerics=Numerics.PRODUCT),)
"""`cell` is a `core.recurrence.Cell`; `directions` says how many directions of a layer run
concurrently, and `node` names the node of the model in error messages."""
