"""LSTM, GRU and RNN: a product of the input for all steps, and a recurrence for each direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import FLOAT32, INT8, INT32
from ftuner.core.recurrence import ACTIVATIONS_OF, GATES, PEEPHOLES, Activation, Cell
from ftuner.frontends.onnx.context import NodeView
from ftuner.frontends.onnx.quantised import dynamic_levels, levels_of
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import apply_many, concat, constant, scalar
from ftuner.graph.checks import malformed, require
from ftuner.graph.ir import Array, Value

Kind = Literal["lstm", "gru", "rnn"]
DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}
"""Whether each direction is reversed."""
DEFAULTS: Mapping[Kind, tuple[str, ...]] = {
    "lstm": ("Sigmoid", "Tanh", "Tanh"),
    "gru": ("Sigmoid", "Tanh"),
    "rnn": ("Tanh",),
}


_PARAMETERS: Mapping[str, Mapping[str, float | None]] = {
    "affine": {"alpha": None, "beta": None}, "elu": {"alpha": 1.0},
    "hard_sigmoid": {"alpha": 0.20000000298023223876953125, "beta": 0.5},
    "leaky_relu": {"alpha": 0.00999999977648258209228515625},
    "scaled_tanh": {"alpha": None, "beta": None}, "thresholded_relu": {"alpha": 1.0},
    **{name: {} for name in ("relu", "sigmoid", "softplus", "softsign", "tanh")},
}  # fmt: skip
"""The defaults of the parameters of activations, by their names in `core.recurrence`; None for one
that must be given."""
_FUNCTIONS = {name.replace("_", ""): name for name in _PARAMETERS}
"""By ONNX's name in lower case, as onnxruntime reads them."""


@onnx("GRU", kind="gru")
@onnx("LSTM", kind="lstm")
@onnx("RNN", kind="rnn")
def _recurrent(node: NodeView, x: Value, w: Value, r: Value, *, kind: Kind) -> Sequence[Value]:
    return Layer(node, kind, (x, w, r)).imported()


class Levels(NamedTuple):
    """Scales and sums of operands that are levels, each of shape (directions, columns)."""

    input_scale: Value
    """The product of the scales of X and W."""
    scale: Value
    """Of the columns of R."""
    sums: Value
    """Of the levels of each column of R."""


class Layer:
    """A node with its checked operands."""

    def __init__(
        self, node: NodeView, kind: Kind, operands: tuple[Value, Value, Value],
        levels: Levels | None = None,
    ) -> None:  # fmt: skip
        """`operands`: X, W and R as ONNX has them; the others are inputs of the node. `levels`: of
        a layer whose operands are levels, and which rounds its state in each step."""
        self._node, self._kind, self._levels = node, kind, levels
        self._reversed = DIRECTIONS[node.one_of("direction", DIRECTIONS, "forward")]
        self._batch_first = node.flag("layout")
        x, self._weight, self._recurrent = operands
        for value, what in ((x, "X"), (self._weight, "W"), (self._recurrent, "R")):
            if value.rank != 3:
                raise malformed(f"{what} is {value.type}; expected three axes")
        self._x = x
        self._length, self._batch = x.shape[:2][:: -1 if self._batch_first else 1]
        last = self._recurrent.shape[2]
        self._hidden = node.positive("hidden_size", last if isinstance(last, int) else None)
        self._count = len(self._reversed)
        self._columns = len(GATES[kind]) * self._hidden

    def imported(self) -> Sequence[Value]:
        """The outputs: the sequence of states, and the last ones."""
        count, hidden = self._count, self._hidden
        parts = self._inputs()
        weight = self._shaped(self._recurrent, (count, self._columns, hidden), "R")
        lengths = self._optional(4, (self._batch,), "sequence_lens")
        if lengths is not None and lengths.dtype != INT32:
            raise malformed(f"sequence_lens are {lengths.type}; expected int32")
        states = self._states()
        columns = self._bias_after() if self._resets_after else None
        if self._kind == "lstm":
            columns = self._optional(7, (count, len(PEEPHOLES) * hidden), "P")
        peepholes = self._kind == "lstm" and columns is not None
        if self._levels is not None:
            scale = self._shaped(self._levels.scale, (count, self._columns), "the scale of R")
            given = [] if columns is None else [columns]
            columns = concat([*given, scale, self._levels.sums], 1)
        found: list[tuple[Value, ...]] = []
        for number, cell in enumerate(self._cells(bool(states), peepholes, lengths is not None)):
            part = parts.slice(2, number * self._columns, self._columns)
            part = part.transpose((1, 0, 2)) if self._batch_first else part
            operands = [part, self._of_direction(weight, 0, number)]
            operands += [self._of_direction(s, int(self._batch_first), number) for s in states]
            operands += [] if columns is None else [self._of_direction(columns, 0, number)]
            operands += [] if lengths is None else [lengths]
            found.append(apply_many(
                "recurrence", *operands, cell=cell, directions=count, node=self._node.record.label
            ))  # fmt: skip
        y, *last = (list(values) for values in zip(*found, strict=True))
        if not self._batch_first:
            return [concat(y, 1), *(concat(states, 0) for states in last)]
        turned = [[v.transpose((1, 0, 2)) for v in states] for states in last]
        return [concat(y, 1).transpose((2, 0, 1, 3)), *(concat(states, 1) for states in turned)]

    @property
    def _resets_after(self) -> bool:
        return self._kind == "gru" and self._node.flag("linear_before_reset")

    def _shaped(self, value: Value, shape: Shape, what: str) -> Value:
        """An operand of a shape; raises GraphError or ShapeError if it has another."""
        what = f"{what} is {value.type}; expected {list(shape)}"
        if value.rank != len(shape):
            raise malformed(what)
        for axis, wanted in enumerate(shape):
            require(value.shape[axis], wanted, what)
            value = value.slice(axis, 0, wanted)
        return value

    def _optional(self, number: int, shape: Shape, what: str) -> Value | None:
        value = self._node.optional(number)
        return None if value is None else self._shaped(value, shape, what)

    def _of_direction(self, value: Value, axis: int, number: int) -> Value:
        """The part of an operand that one direction has."""
        return value.slice(axis, number, 1).squeeze([axis])

    def _inputs(self) -> Value:
        """The input's part of the gates of all directions and steps, with the biases that are added
        to it."""
        count, columns = self._count, self._columns
        extent = self._weight.shape[2]
        weight = self._shaped(self._weight, (count, columns, extent), "W")
        what = f"W is {weight.type}, X {self._x.type}"
        require(self._x.shape[2], extent, what)
        parts = self._x @ weight.reshape((count * columns, extent)).swapped()
        if self._levels is not None:
            parts = parts * self._levels.input_scale.reshape((count * columns,))
        biases = self._biases()
        if biases is None:
            return parts
        first, second = biases
        if self._resets_after:
            # The bias of the state's part of the gate h is reset with it.
            kept = second.slice(1, 0, 2 * self._hidden)
            second = concat([kept, self._zeros((count, self._hidden))], 1)
        return parts + (first + second).reshape((count * columns,))

    def _biases(self) -> tuple[Value, Value] | None:
        """The biases of the input's and of the state's part, one row for each direction."""
        columns = self._columns
        bias = self._optional(3, (self._count, 2 * columns), "B")
        return None if bias is None else (bias[:, :columns], bias[:, columns:])

    def _bias_after(self) -> Value:
        """The bias of the product that a GRU resets."""
        biases = self._biases()
        if biases is None:
            return self._zeros((self._count, self._hidden))
        return biases[1].slice(1, 2 * self._hidden, self._hidden)

    def _states(self) -> list[Value]:
        """The first states, all or none."""
        shape: tuple[Dim, ...] = (self._count, self._batch, self._hidden)
        if self._batch_first:
            shape = (self._batch, self._count, self._hidden)
        names = ("initial_h", "initial_c") if self._kind == "lstm" else ("initial_h",)
        given = [self._optional(5 + i, shape, name) for i, name in enumerate(names)]
        if all(value is None for value in given):
            return []
        return [self._zeros(shape) if value is None else value for value in given]

    def _zeros(self, shape: Shape) -> Value:
        return scalar(0, self._x.dtype).broadcast(shape)

    # Attributes.

    def _cells(self, initial: bool, peepholes: bool, lengths: bool) -> list[Cell]:
        """The cell of each direction."""
        node, kind = self._node, self._kind
        clip = node.number("clip") if node.has("clip") else None
        if clip is not None and not clip > 0:
            raise malformed(f"clip is {clip}; expected more than 0")
        each = ACTIVATIONS_OF[kind]
        functions = self._activations(each * self._count)
        return [
            Cell(
                kind, tuple(functions[number * each : (number + 1) * each]), clip, is_reversed,
                kind == "lstm" and node.flag("input_forget"), self._resets_after, initial,
                peepholes, lengths, self._levels is not None,
            )
            for number, is_reversed in enumerate(self._reversed)
        ]  # fmt: skip

    def _activations(self, count: int) -> list[Activation]:
        """The activations of all directions. Their parameters are listed for those that have
        any."""
        node = self._node
        names = DEFAULTS[self._kind] * self._count
        if node.has("activations"):
            names = node.texts("activations")
            if self._kind == "rnn" and len(names) == 2 and count == 1:
                # The default of the schema, which is written out for two directions.
                names = names[:1]
        if len(names) != count:
            raise malformed(f"{len(names)} activations; expected {count}")
        given = {p: list(node.numbers(f"activation_{p}", ())) for p in ("alpha", "beta")}
        found = []
        for name in names:
            function = _FUNCTIONS.get(name.lower())
            if function is None:
                raise malformed(f"activation {name!r}")
            values = {}
            for parameter, default in _PARAMETERS[function].items():
                value = given[parameter].pop(0) if given[parameter] else default
                if value is None:
                    raise malformed(f"activation {name!r} without {parameter}")
                values[parameter] = value
            found.append(Activation(function, **values))
        return found


def _weight(node: NodeView, number: int, scale: int) -> tuple[Value, Value, Array | None]:
    """W or R as levels less their zero point, with the axes of ONNX's LSTM: the quantised ones are
    (directions, k, columns). Then the scales of the columns, (directions, columns), and the levels
    if these are known, and of 8 bits. `scale`: the input that is the scale; the zero point follows
    it. Both are given for each direction, or for each of its columns."""
    weight = node.input(number)
    if weight.rank != 3:
        raise malformed(f"input {number} is {weight.type}; expected three axes")
    factor, zero = (_of_columns(node.input(i), weight) for i in (scale, scale + 1))
    levels = levels_of(weight, zero, FLOAT32).swapped()
    factor = factor.broadcast((levels.shape[0], 1, levels.shape[1])).squeeze([1])
    if weight.constant is None or zero.constant is None or weight.dtype.itemsize > 1:
        return levels, factor, None
    return levels, factor, (weight.constant.astype(np.int16) - zero.constant).swapaxes(1, 2)


def _of_columns(parameter: Value, weight: Value) -> Value:
    """A scale or zero point, broadcastable to a weight."""
    directions, _, columns = weight.shape
    what = f"a scale or zero point is {parameter.type} for {weight.type}"
    if parameter.rank not in (1, 2):
        raise malformed(what)
    for have, wanted in zip(parameter.shape, (directions, columns), strict=False):
        require(have, wanted, what)
    return parameter.unsqueeze([1, 2] if parameter.rank == 1 else [1])


@onnx("DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_lstm(node: NodeView, x: Value) -> Sequence[Value]:
    """X is rounded to levels of its range, and the states of a batch to levels of theirs, in each
    step."""
    levels, scale, zero = dynamic_levels(x)
    weight, factor, _ = _weight(node, 1, 8)
    recurrent, scales, known = _weight(node, 2, 10)
    if known is None:
        sums = recurrent.reduce("sum", [2], keep=False)
    else:
        sums = constant(known.sum(2), FLOAT32)
        if (np.abs(known + 0.5) < 128).all():
            recurrent = constant(known, INT8)
    operands = levels_of(levels, zero, FLOAT32), weight, recurrent
    return Layer(node, "lstm", operands, Levels(scale * factor, scales, sums)).imported()
