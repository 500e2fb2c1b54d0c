"""Activations of ONNX, compiled: within 4 ulp of the exact value, as far as they reach."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import numpy as np
import pytest
from tests.codegen.llvm.exact import EXACT, gated
from tests.frontends.onnx_models import node_model

from ftuner.frontends.onnx.importer import import_model
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

INF, NAN = math.inf, math.nan
MICROSOFT = "com.microsoft"
MAX_ULP = 4.0
Function = Callable[[mpmath.mpf], mpmath.mpf]


def attribute(value: float) -> mpmath.mpf:
    """An attribute as a model holds it, in float32."""
    return mpmath.mpf(float(np.float32(value)))


def elu(alpha: float = 1.0, gamma: float = 1.0, divisor: float = 1.0) -> Function:
    def function(x: mpmath.mpf) -> mpmath.mpf:
        below = attribute(alpha) * EXACT["expm1"](x / attribute(divisor))
        return attribute(gamma) * (below if x < 0 else x)

    return function


def hard_sigmoid(alpha: float, beta: float) -> Function:
    def function(x: mpmath.mpf) -> mpmath.mpf:
        return min(max(attribute(alpha) * x + attribute(beta), mpmath.mpf(0)), mpmath.mpf(1))

    return function


def swish(alpha: float) -> Function:
    return lambda x: gated(x, attribute(alpha) * x)


SELU = (1.67326319217681884765625, 1.05070102214813232421875)
# The operator and its attributes, its function, and what it gives at minus and plus infinity.
CASES: Mapping[str, tuple[str, dict[str, Any], Function, tuple[float, float]]] = {
    "Tanh": ("Tanh", {}, EXACT["tanh"], (-1.0, 1.0)),
    "Sigmoid": ("Sigmoid", {}, EXACT["sigmoid"], (0.0, 1.0)),
    "Erf": ("Erf", {}, EXACT["erf"], (-1.0, 1.0)),
    "Exp": ("Exp", {}, EXACT["exp"], (0.0, INF)),
    "Softplus": ("Softplus", {}, EXACT["softplus"], (0.0, INF)),
    "Softsign": ("Softsign", {}, lambda x: x / (1 + abs(x)), (-1.0, 1.0)),
    "Mish": ("Mish", {}, EXACT["mish"], (-0.0, INF)),
    "Elu": ("Elu", {}, elu(), (-1.0, INF)),
    "Elu of 0.7": ("Elu", {"alpha": 0.7}, elu(0.7), (-np.float32(0.7), INF)),
    "Selu": ("Selu", {}, elu(*SELU), (-SELU[0] * SELU[1], INF)),
    "Celu": ("Celu", {}, elu(), (-1.0, INF)),
    "Celu of 0.3": ("Celu", {"alpha": 0.3}, elu(0.3, divisor=0.3), (-np.float32(0.3), INF)),
    "Gelu": ("Gelu", {}, EXACT["gelu"], (-0.0, INF)),
    "Gelu with tanh": ("Gelu", {"approximate": "tanh"}, EXACT["gelu_tanh"], (-0.0, INF)),
    "HardSwish": ("HardSwish", {}, EXACT["hard_swish"], (-0.0, INF)),
    "HardSigmoid": ("HardSigmoid", {}, hard_sigmoid(0.2, 0.5), (0.0, 1.0)),
    "HardSigmoid of 0.3": (
        "HardSigmoid", {"alpha": 0.3, "beta": 0.7}, hard_sigmoid(0.3, 0.7), (0.0, 1.0)),
    "Swish": ("Swish", {}, swish(1.0), (-0.0, INF)),
    "Swish of 1.702": ("Swish", {"alpha": 1.702}, swish(1.702), (-0.0, INF)),
    "Swish of -0.5": ("Swish", {"alpha": -0.5}, swish(-0.5), (-INF, 0.0)),
    "QuickGelu": ("QuickGelu", {"domain": MICROSOFT}, swish(1.702), (-0.0, INF)),
}  # fmt: skip


def run(backend: CpuBackend, op: str, attributes: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    model, feeds = node_model(op, [x], 24, **attributes)
    (found,) = Model(import_model(model).graph, backend).run(feeds)
    return found


def arguments(dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    low = -104.0 if dtype == "float32" else -745.0
    small = np.exp2(rng.uniform(-149.0 if dtype == "float32" else -1074.0, 3.0, 300))
    near = np.concatenate([[c, np.nextafter(c, 0), c * (1 + 1e-6)] for c in (-2.5, -7 / 3, -3.0)])
    parts = (rng.uniform(low, 30.0, 600), rng.uniform(-14.0, 6.0, 600), small, -small, near)
    return np.concatenate(parts).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_error_is_within_four_ulp(name: str, dtype: str, widest: CpuBackend) -> None:
    op, attributes, function, _ = CASES[name]
    if op == "QuickGelu" and dtype == "float64":
        pytest.skip("onnxruntime's operator is of float32")
    x = arguments(dtype)
    got = run(widest, op, attributes, x)
    with mpmath.workprec(160):
        for value, at in zip(got.tolist(), x.tolist(), strict=True):
            exact = function(mpmath.mpf(at))
            ulp = float(np.spacing(np.abs(np.dtype(dtype).type(float(exact)))))
            assert abs(value - exact) <= MAX_ULP * ulp, at


@pytest.mark.parametrize("name", CASES)
def test_infinities_give_the_limits(name: str, widest: CpuBackend) -> None:
    op, attributes, _, limits = CASES[name]
    got = run(widest, op, attributes, np.array([-INF, INF, NAN], np.float32))
    np.testing.assert_allclose(got, [*limits, NAN], 1e-6)
    np.testing.assert_array_equal(np.signbit(got[:2]), np.signbit(limits))
