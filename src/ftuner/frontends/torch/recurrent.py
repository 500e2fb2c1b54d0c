"""LSTM, GRU and RNN of several layers: of each layer a product of its input for all steps, and a
recurrence for each direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from ftuner.core.dim import product
from ftuner.core.frozen import dataclass
from ftuner.core.recurrence import GATES, Activation, Cell
from ftuner.frontends.torch.registry import aten
from ftuner.graph.algebra import apply_many, concat, constant
from ftuner.graph.checks import origin, unsupported
from ftuner.graph.ir import Value

Kind = Literal["lstm", "gru", "rnn"]
ONEDNN_LSTM = 2
"""`ideep::rnn_kind::LSTM`."""
_ORDER: Mapping[Kind, tuple[int, ...]] = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Which gate of torch's weights each gate of `core.recurrence` is."""


@dataclass(frozen=True)
class _Direction:
    """The weights of one direction of a layer, in the order of gates of `core.recurrence`."""

    input: Value
    state: Value
    biases: tuple[Value, Value] | None


def _arranged(kind: Kind, x: Value) -> Value:
    gates = x.pieces(0, [x.shape[0] // len(_ORDER[kind])] * len(_ORDER[kind]))
    return concat([gates[i] for i in _ORDER[kind]], 0)


def _directions(kind: Kind, params: Sequence[Value], biased: bool) -> list[_Direction]:
    each = 4 if biased else 2
    found = []
    for i in range(0, len(params), each):
        own = [_arranged(kind, p) for p in params[i : i + each]]
        found.append(_Direction(own[0], own[1], (own[2], own[3]) if biased else None))
    return found


def _layer(
    kind: Kind, activations: tuple[str, ...], x: Value, ways: Sequence[_Direction],
    states: Sequence[Sequence[Value]], backward: bool = False,
) -> list[Value]:  # fmt: skip
    """The states of all steps (length, batch, directions times hidden), and each last state
    (directions, batch, hidden). `states`: the first ones of each direction. `backward`: whether the
    first direction is from the last step, as the second is."""
    hidden = ways[0].state.shape[1]
    columns = len(GATES[kind]) * hidden
    parts = x @ concat([way.input for way in ways], 0).swapped()
    after: list[Value] = []
    sums = []
    for way in ways:
        if way.biases is None:
            if kind == "gru":
                after.append(x.like(0).broadcast((hidden,)))
            continue
        first, second = way.biases
        if kind == "gru":
            # The bias of the state's part of the last gate is reset with it.
            kept, last = second.pieces(0, [2 * hidden, hidden])
            after.append(last)
            second = concat([kept, x.like(0).broadcast((hidden,))], 0)
        sums.append(first + second)
    if sums:
        parts = parts + concat(sums, 0)
    found = []
    for number, way in enumerate(ways):
        cell = Cell(
            kind, tuple(map(Activation, activations)), None, backward or number == 1, False,
            kind == "gru", True, False, False, False,
        )  # fmt: skip
        part = parts.slice(2, number * columns, columns)
        extra = [after[number]] if after else []
        found.append(apply_many(
            "recurrence", part, way.state, *states[number], *extra, cell=cell,
            directions=len(ways), node=origin(),
        ))  # fmt: skip
    y, *last_states = (list(values) for values in zip(*found, strict=True))
    turned = concat(y, 1).transpose((0, 2, 1, 3))
    whole = turned.reshape((*turned.shape[:2], product(turned.shape[2:])))
    return [whole, *(concat(values, 0) for values in last_states)]


_LSTM = ("sigmoid", "tanh", "tanh")


@aten("lstm.input", kind="lstm", activations=_LSTM)
@aten("gru.input", kind="gru", activations=("sigmoid", "tanh"))
@aten("rnn_tanh.input", kind="rnn", activations=("tanh",))
@aten("rnn_relu.input", kind="rnn", activations=("relu",))
def _recurrent(
    input: Value, hx: Value | Sequence[Value], params: Sequence[Value], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool, *,
    kind: Kind, activations: tuple[str, ...],
) -> Sequence[Value]:  # fmt: skip
    if train and dropout:
        raise unsupported("dropout while training; call module.eval()")
    count = 2 if bidirectional else 1
    if len(params) != num_layers * count * (4 if has_biases else 2):
        raise unsupported("an LSTM with projections")
    x = input.transpose((1, 0, 2)) if batch_first else input
    first = [hx] if isinstance(hx, Value) else hx
    ways = _directions(kind, params, has_biases)
    last: list[Sequence[Value]] = []
    for layer in range(num_layers):
        numbers = range(layer * count, (layer + 1) * count)
        states = [[s.slice(0, i, 1).squeeze([0]) for s in first] for i in numbers]
        x, *found = _layer(kind, activations, x, [ways[i] for i in numbers], states)
        last.append(found)
    x = x.transpose((1, 0, 2)) if batch_first else x
    return [x, *(concat(list(values), 0) for values in zip(*last, strict=True))]


@aten("mkldnn_rnn_layer")
def _lstm_of_onednn(
    input: Value, weight0: Value, weight1: Value, weight2: Value, weight3: Value, hx_: Value,
    cx_: Value, reverse: bool, batch_sizes: Sequence[int], mode: int, hidden_size: int,
    num_layers: int, has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> Sequence[Value]:  # fmt: skip
    """One direction of a layer: what AOTAutograd makes of an LSTM on a CPU."""
    if mode != ONEDNN_LSTM or num_layers != 1 or bidirectional or batch_first or batch_sizes:
        raise unsupported("a layer of oneDNN other than one direction of an LSTM")
    ways = _directions("lstm", [weight0, weight1, weight2, weight3], True)
    first = [hx_.squeeze([0]), cx_.squeeze([0])]
    found = _layer("lstm", _LSTM, input, ways, [first], reverse)
    return [*found, constant(np.zeros(0, np.uint8))]
