"""The cell of a recurrent layer: what one step computes of its input, its weight and its state.

A step is one or two products of the state by the recurrent weight, each followed by expressions of
elements. Both the NumPy reference and the generated code follow from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from ftuner.core.expr import Expr, Operand, applied, clip, relu
from ftuner.core.frozen import dataclass

GATES: Mapping[str, tuple[str, ...]] = {
    "lstm": ("i", "o", "f", "c"),
    "gru": ("z", "r", "h"),
    "rnn": ("h",),
}
"""The gates of each kind of cell, in the order of the columns of its weights."""
ACTIVATIONS_OF: Mapping[str, int] = {"lstm": 3, "gru": 2, "rnn": 1}
"""Number of activations of each kind of cell."""
MAX_TEAM = 16
"""Most tasks that share each step of a layer."""
PEEPHOLES = ("i", "o", "f")
"""The gates of an LSTM that may read its cell state, in the order of their weights."""

ACTIVATIONS: Mapping[str, Callable[[Expr, float, float], Expr]] = {
    "affine": lambda x, alpha, beta: x * alpha + beta,
    "elu": lambda x, alpha, beta: applied(
        "where", applied("less", x, 0.0), applied("expm1", applied("minimum", x, 0.0)) * alpha, x
    ),
    "hard_sigmoid": lambda x, alpha, beta: clip(x * alpha + beta, 0.0, 1.0),
    "leaky_relu": lambda x, alpha, beta: applied("where", applied("less", x, 0.0), x * alpha, x),
    "relu": lambda x, alpha, beta: relu(x),
    "scaled_tanh": lambda x, alpha, beta: applied("tanh", x * beta) * alpha,
    "sigmoid": lambda x, alpha, beta: applied("sigmoid", x),
    "softplus": lambda x, alpha, beta: applied("softplus", x),
    # Infinity over infinity is NaN.
    "softsign": lambda x, alpha, beta: applied(
        "where", applied("isinf", x), applied("sign", x), x / (applied("absolute", x) + 1.0)
    ),
    "tanh": lambda x, alpha, beta: applied("tanh", x),
    "thresholded_relu": lambda x, alpha, beta: applied(
        "where", applied("less_equal", alpha, x), x, 0.0
    ),
}
"""Activations of x, alpha and beta."""


_LEVELS = 255.0
_LOW, _HIGH = Operand("low", "row"), Operand("high", "row")
_SCALE, _ZERO = Operand("scale", "row"), Operand("zero", "row")
SCALE = applied("where", applied("equal", _HIGH - _LOW, 0.0), 1.0, (_HIGH - _LOW) / _LEVELS)
"""The distance of the levels of a state that is rounded to 8 bits, of `low` and `high`: its least
and its largest element, or zero. It is that of ONNX's DynamicQuantizeLinear."""
ZERO = clip(applied("rint", -_LOW / _SCALE), 0.0, _LEVELS)
"""The level of zero."""
ROUNDED = clip(applied("rint", Operand("h", "matrix") / _SCALE) + _ZERO, 0.0, _LEVELS)
"""The levels of a state."""


class Activation(NamedTuple):
    """A row of `ACTIVATIONS` with its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Expr) -> Expr:
        return ACTIVATIONS[self.name](x, self.alpha, self.beta)


class Stage(NamedTuple):
    """A product and what follows from it."""

    multiplied: str
    """The plane that is multiplied by the recurrent weight."""
    gates: tuple[int, int]
    """The first gate whose columns are multiplied, and the one after the last."""
    results: tuple[tuple[str, Expr], ...]
    """Planes and their new elements, in order: an expression reads the new elements of the planes
    before it. Operands are planes, `x_G` and `s_G` (the input's part and the product's sum of gate
    G), `p_G` (its peephole), `w_G` and `t_G` (the scale of its weight, and the sum of its levels),
    `scale` and `zero` (those of the state) and `bias`."""


@dataclass(frozen=True)
class Cell:
    """A cell, and which of its optional operands are given.

    With `clip`, what enters the activations of gates is limited to [-clip, clip]; the cell state
    is not, as in onnxruntime.
    """

    kind: Literal["lstm", "gru", "rnn"]
    activations: tuple[Activation, ...]
    """Of an LSTM: of the gates i, o and f, of the gate c, of the state. Of a GRU: of z and r, of
    h."""
    clip: float | None = None
    reverse: bool = False
    """Whether the last step comes first."""
    coupled: bool = False
    """Whether an LSTM forgets what its input gate does not let in."""
    reset_after: bool = False
    """Whether a GRU resets the product of the state, not the state that is multiplied."""
    initial: bool = False
    """Whether the first state is given; it is zero otherwise."""
    peepholes: bool = False
    lengths: bool = False
    """Whether the sequences of a batch have lengths of their own."""
    rounds: bool = False
    """Of an LSTM: whether each step rounds the state of the batch to 8 bits before it is
    multiplied. The weight is then levels, too, less their zero points, and each column of each
    gate has a scale and the sum of its levels."""

    @property
    def gates(self) -> tuple[str, ...]:
        return GATES[self.kind]

    @property
    def states(self) -> tuple[str, ...]:
        """The planes that pass from step to step."""
        return ("h", "c") if self.kind == "lstm" else ("h",)

    @property
    def planes(self) -> tuple[str, ...]:
        """All planes: matrices of a row for each sequence and a column for each hidden element."""
        reset = self.kind == "gru" and not self.reset_after
        return (*self.states, *(("reset", "z") if reset else ()))

    @property
    def columns(self) -> tuple[str, ...]:
        """The operands with one value for each hidden element."""
        if self.kind == "lstm":
            peepholes = tuple(f"p_{gate}" for gate in PEEPHOLES) if self.peepholes else ()
            of_levels = (f"{what}_{gate}" for what in "wt" for gate in self.gates if self.rounds)
            return (*peepholes, *of_levels)
        return ("bias",) if self.kind == "gru" and self.reset_after else ()

    @property
    def one_phase(self) -> bool:
        """Whether a step is one product, and all sequences have it: what it computes of some
        hidden elements of them depends on the last step alone."""
        return not self.lengths and len(self.stages()) == 1

    def stages(self) -> tuple[Stage, ...]:
        """The stages of a step."""
        return {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.kind]()

    def _clipped(self, x: Expr) -> Expr:
        return x if self.clip is None else clip(x, -self.clip, self.clip)

    def _lstm(self) -> tuple[Stage, ...]:
        gate_function, cell_function, state_function = self.activations
        c = Operand("c", "matrix")

        def gate(name: str) -> Expr:
            x = _sum_of(name, self.rounds)
            if self.peepholes and name in PEEPHOLES:
                x = x + Operand(f"p_{name}", "column") * c
            return self._clipped(x)

        i = gate_function(gate("i"))
        f = 1.0 - i if self.coupled else gate_function(gate("f"))
        following = f * c + i * cell_function(gate("c"))
        # Here c is the new state, which the output gate's peephole reads.
        h = gate_function(gate("o")) * state_function(c)
        multiplied = "rounded" if self.rounds else "h"
        return (Stage(multiplied, (0, 4), (("c", following), ("h", h))),)

    def _gru(self) -> tuple[Stage, ...]:
        gate_function, function = self.activations
        h = Operand("h", "matrix")
        z, r = (gate_function(self._clipped(_sum_of(name))) for name in "zr")
        x, s = Operand("x_h", "matrix"), Operand("s_h", "matrix")
        if self.reset_after:
            new = function(self._clipped(x + r * (s + Operand("bias", "column"))))
            return (Stage("h", (0, 3), (("h", (1.0 - z) * new + z * h),)),)
        kept = Operand("z", "matrix")
        new = function(self._clipped(x + s))
        return (
            Stage("h", (0, 2), (("z", z), ("reset", r * h))),
            Stage("reset", (2, 3), (("h", (1.0 - kept) * new + kept * h),)),
        )

    def _rnn(self) -> tuple[Stage, ...]:
        (function,) = self.activations
        return (Stage("h", (0, 1), (("h", function(self._clipped(_sum_of("h")))),)),)


def _sum_of(gate: str, rounds: bool = False) -> Expr:
    """What the input and the state add up to in a gate; `rounds`: the state's part is of levels."""
    product: Expr = Operand(f"s_{gate}", "matrix")
    if rounds:
        product = product - _ZERO * Operand(f"t_{gate}", "column")
        product = product * (_SCALE * Operand(f"w_{gate}", "column"))
    return Operand(f"x_{gate}", "matrix") + product
