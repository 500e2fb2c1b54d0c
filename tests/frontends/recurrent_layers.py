"""Models of one LSTM, GRU or RNN, and what they give in float64, written out step by step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from tests.frontends.onnx_models import model_of

Array = npt.NDArray[Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
FUNCTIONS: Mapping[str, Callable[[Array, float, float], Array]] = {
    "Affine": lambda x, a, b: a * x + b,
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Tanh": lambda x, a, b: np.tanh(x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
}
PARAMETERS = {
    "Affine": (0.7, 0.1), "Elu": (0.8, None), "HardSigmoid": (0.3, 0.4), "LeakyRelu": (0.1, None),
    "ScaledTanh": (1.2, 0.6), "ThresholdedRelu": (0.3, None),
}  # fmt: skip
"""What tests give those activations that have parameters."""


@dataclass(frozen=True)
class Layer:
    """A layer at given extents."""

    op: str = "LSTM"
    length: int = 5
    batch: int = 2
    width: int = 3
    hidden: int = 5
    direction: str = "forward"
    given: tuple[str, ...] = ("B",)
    """Optional operands."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    activations: tuple[str, ...] = ()
    """Of one direction; those of the second are the same, last one first."""
    dtype: str = "float32"
    constant: bool = True
    """Whether the weights are constants of the model."""

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def batch_first(self) -> bool:
        return bool(self.attributes.get("layout", 0))

    def operands(self, seed: int = 0) -> dict[str, Array]:
        """All operands by name."""
        rng = np.random.default_rng(seed)
        d, h, columns = self.directions, self.hidden, GATES[self.op] * self.hidden
        state = (self.batch, d, h) if self.batch_first else (d, self.batch, h)
        x = (self.batch, self.length) if self.batch_first else (self.length, self.batch)
        shapes = {
            "X": (*x, self.width), "W": (d, columns, self.width), "R": (d, columns, h),
            "B": (d, 2 * columns), "initial_h": state, "initial_c": state, "P": (d, 3 * h),
        }  # fmt: skip
        scales = {"W": max(self.width, 1) ** -0.5, "R": h**-0.5}
        found = {
            name: (rng.standard_normal(shape) * scales.get(name, 1)).astype(self.dtype)
            for name, shape in shapes.items()
        }
        found["sequence_lens"] = rng.integers(0, self.length + 1, self.batch).astype(np.int32)
        return {n: found[n] for n in NAMES if n in (*self.given, "X", "W", "R")}

    def functions(self) -> list[str]:
        """The activations of all directions."""
        own = list(self.activations or DEFAULTS[self.op])
        return [*own, *reversed(own)] if self.directions == 2 and self.activations else (
            own * self.directions)  # fmt: skip

    def model(self, seed: int = 0) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model with symbols for the extents of inputs, and its inputs."""
        operands = self.operands(seed)
        fixed = ("W", "R", "B", "P") if self.constant else ()
        attributes = dict(self.attributes)
        if self.activations:
            names = self.functions()
            attributes["activations"] = names
            for number, parameter in enumerate(("alpha", "beta")):
                values = [PARAMETERS.get(n, (None, None))[number] for n in names]
                values = [v for v in values if v is not None]
                if values:
                    attributes[f"activation_{parameter}"] = values
        names = [n if n in operands else "" for n in NAMES]
        while not names[-1]:
            names.pop()
        outputs = OUTPUTS[self.op]
        node = helper.make_node(self.op, names, outputs, hidden_size=self.hidden,
                                direction=self.direction, **attributes)  # fmt: skip
        feeds = {n: x for n, x in operands.items() if n not in fixed}
        dims = {
            n: (x.dtype.name, [f"{n}{i}" for i in range(x.ndim)] if n not in ("W", "R") or
                not self.constant else x.shape)
            for n, x in feeds.items()
        }  # fmt: skip
        constants = {n: x for n, x in operands.items() if n in fixed}
        return model_of([node], dims, outputs, constants, opset=17), feeds

    def truth(self, seed: int = 0) -> list[Array]:
        """The outputs in float64."""
        operands = {n: x.astype(np.float64) for n, x in self.operands(seed).items()}
        x = operands["X"]
        if self.batch_first:
            x = np.swapaxes(x, 0, 1)
            for name in ("initial_h", "initial_c"):
                if name in operands:
                    operands[name] = np.swapaxes(operands[name], 0, 1)
        lengths = self.operands(seed).get("sequence_lens", np.full(self.batch, self.length))
        found = [self._direction(operands, x, lengths, number) for number in range(self.directions)]
        ys, hs, cs = zip(*found, strict=True)
        y, last = np.stack(ys, 1), [np.stack(hs), np.stack(cs)]
        if self.batch_first:
            y, last = np.transpose(y, (2, 0, 1, 3)), [np.swapaxes(s, 0, 1) for s in last]
        return [y, *last][: len(OUTPUTS[self.op])]

    def _direction(
        self, operands: Mapping[str, Array], x: Array, lengths: Array, number: int
    ) -> tuple[Array, Array, Array]:
        h, columns = self.hidden, GATES[self.op] * self.hidden
        bias = operands.get("B", np.zeros((2, 2 * columns)))[number]
        zeros = np.zeros((2, self.batch, h))
        y = np.zeros((self.length, self.batch, h))
        states = np.zeros((2, self.batch, h))
        backwards = self.direction == "reverse" or number == 1
        for row in range(self.batch):
            # One sequence after the other: the state is a vector.
            state = operands.get("initial_h", zeros)[number, row]
            memory = operands.get("initial_c", zeros)[number, row]
            steps = range(int(lengths[row]))
            for t in reversed(steps) if backwards else steps:
                given = operands["W"][number] @ x[t, row] + bias[:columns]
                state, memory = self._step(operands, given, bias[columns:], state, memory, number)
                y[t, row] = state
            # onnxruntime's states of an empty sequence are zero.
            if lengths[row] or "sequence_lens" not in self.given:
                states[:, row] = state, memory
        return y, states[0], states[1]

    def _step(
        self, operands: Mapping[str, Array], x: Array, bias: Array, h: Array, c: Array, number: int
    ) -> tuple[Array, Array]:
        """The next states. `x`: the input's part of the gates; `bias`: that of the state's."""
        names = self.functions()
        each = len(names) // self.directions
        own = names[number * each : (number + 1) * each]
        recurrent = operands["R"][number]
        limit = self.attributes.get("clip", np.inf)

        def applied(function: int, value: Array, clipped: bool = True) -> Array:
            name = own[function]
            alpha, beta = PARAMETERS.get(name, (0.0, 0.0))
            value = np.clip(value, -limit, limit) if clipped else value
            return FUNCTIONS[name](value, alpha or 0.0, beta or 0.0)

        if self.op == "RNN":
            return applied(0, x + recurrent @ h + bias), c
        if self.op == "LSTM":
            i, o, f, g = np.split(x + recurrent @ h + bias, 4)
            holes = operands.get("P", np.zeros((2, 3 * self.hidden)))[number]
            of_i, of_o, of_f = np.split(holes, 3)
            i = applied(0, i + of_i * c)
            f = 1 - i if self.attributes.get("input_forget") else applied(0, f + of_f * c)
            c = f * c + i * applied(1, g)
            return applied(0, o + of_o * c) * applied(2, c, clipped=False), c
        (xz, xr, xh), (rz, rr, rh) = np.split(x, 3), np.split(recurrent, 3)
        bz, br, bh = np.split(bias, 3)
        z, r = applied(0, xz + rz @ h + bz), applied(0, xr + rr @ h + br)
        if self.attributes.get("linear_before_reset"):
            new = applied(1, xh + r * (rh @ h + bh))
        else:
            new = applied(1, xh + rh @ (r * h) + bh)
        return (1 - z) * new + z * h, c
