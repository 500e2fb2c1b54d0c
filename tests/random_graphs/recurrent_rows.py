"""Rows of recurrent layers."""

from __future__ import annotations

import numpy as np
from tests.random_graphs.drawing import DeclinedError
from tests.random_graphs.extents import BINDINGS, Extent, elements, static
from tests.random_graphs.making import Maker
from tests.random_graphs.table import row
from tests.random_graphs.tensors import MICROSOFT, TAME, Fill, Tensor

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN = (3, 1, 8, 16, 17, 33)


def _weight(maker: Maker, shape: tuple[int, ...]) -> Tensor:
    return maker.weight(shape, "float32", 1 / max(shape[-1], 1) ** 0.5)


def _lengths(maker: Maker, batch: Extent, length: Extent) -> Tensor:
    """Lengths of sequences, none beyond the data."""
    fill = Fill("uniform", (0.0,) * BINDINGS, tuple(float(n + 1) for n in length.at))
    return maker.input((batch,), "int32", fill)


def _sequence(maker: Maker) -> Tensor:
    return maker.operand(("float32",), (3,), lambda x: x.shape[2].static, TAME)


def recurrent(maker: Maker, op: str, x: Tensor, last: bool = False) -> Tensor:
    """A layer that reads a sequence. Returns a result: the last state if `last`."""
    draws = maker.draws
    length, batch, width = x.shape
    if 0 in (*length.at, *batch.at, *width.at):
        # onnxruntime refuses nothing, or gives nothing for the last states.
        raise DeclinedError("no elements")
    hidden, columns = draws.pick(HIDDEN), GATES[op]
    direction = draws.pick(("forward", "reverse", "bidirectional"))
    count = static(2 if direction == "bidirectional" else 1)
    d, columns = count.at[0], columns * hidden
    maker.spend([n * d * columns * (hidden + width.at[0]) for n in elements((length, batch))])
    state = (count, batch, static(hidden))
    inputs: list[Tensor | None] = [
        x,
        _weight(maker, (d, columns, width.at[0])),
        _weight(maker, (d, columns, hidden)),
        _weight(maker, (d, 2 * columns)) if draws.chance(0.7) else None,
        _lengths(maker, batch, length) if draws.chance(0.3) else None,
        maker.shaped(state, "float32", TAME) if draws.chance(0.4) else None,
    ]
    attributes: dict[str, object] = {"clip": 1.5 if draws.chance(0.1) else None}
    if op == "LSTM":
        inputs.append(maker.shaped(state, "float32", TAME) if draws.chance(0.4) else None)
        inputs.append(_weight(maker, (d, 3 * hidden)) if draws.chance(0.2) else None)
        attributes["input_forget"] = 1 if draws.chance(0.1) else None
    if op == "GRU":
        attributes["linear_before_reset"] = draws.pick((None, 0, 1))
    high = max([1.0, *(t.size for t in inputs[5:] if t is not None)]) + max(length.at)
    y = maker.new((length, count, batch, static(hidden)), "float32", -high, high)
    states = [maker.new(state, "float32", -high, high) for _ in range(2 if op == "LSTM" else 1)]
    kept = [y if draws.chance(0.85) else None, *(s if draws.chance(0.5) else None for s in states)]
    result = states[0] if last else y
    if last or not any(kept):
        kept[int(last)] = result
    maker.node(op, inputs, kept, hidden_size=hidden, direction=direction, **attributes)
    return result


@row("LSTM", 0.8)
def _lstm(maker: Maker) -> None:
    recurrent(maker, "LSTM", _sequence(maker))


@row("GRU", 0.6)
def _gru(maker: Maker) -> None:
    recurrent(maker, "GRU", _sequence(maker))


@row("RNN", 0.4)
def _rnn(maker: Maker) -> None:
    recurrent(maker, "RNN", _sequence(maker))


@row("DynamicQuantizeLSTM", 0.2, MICROSOFT)
def _quantised_lstm(maker: Maker) -> None:
    """Where there is more than one step, states weigh nothing: one between two levels may become
    either. No node reads the results."""
    x = maker.operand(("float32",), (3,), lambda x: x.shape[2].static, TAME)
    length, batch, width = x.shape
    if 0 in (*length.at, *batch.at, *width.at):
        raise DeclinedError("no elements")
    hidden, random = maker.draws.pick(HIDDEN), maker.random()
    maker.spend([n * 4 * hidden * (hidden + width.at[0]) for n in elements((length, batch))])
    most = 64 if max(length.at) == 1 else 1
    weights = [
        maker.constant(random.integers(1 - size, size, (1, n, 4 * hidden)).astype(np.int8))
        for n, size in ((width.at[0], 64), (hidden, most))
    ]
    scale, zero = maker.constant(np.float32([0.01])), maker.constant(np.zeros(1, np.int8))
    y = maker.new((length, static(1), batch, static(hidden)), "float32", -1, 1)
    maker.node(
        "DynamicQuantizeLSTM", [x, *weights, *[None] * 5, scale, zero, scale, zero], [y],
        MICROSOFT, hidden_size=hidden,
    )  # fmt: skip
    maker.tensors.remove(y)
    maker.ends.append(y.name)
