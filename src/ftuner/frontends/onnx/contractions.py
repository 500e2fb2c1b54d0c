"""Matrix products: MatMul, Gemm, Einsum and FusedMatMul; distances."""

from __future__ import annotations

from typing import Literal

from ftuner.core.dim import minimum
from ftuner.frontends.onnx.activations import fused_activation
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import sqrt
from ftuner.graph.checks import fitting, malformed, require
from ftuner.graph.einsum import einsum
from ftuner.graph.ir import Value


@onnx("MatMul")
def _matmul(x: Value, y: Value) -> Value:
    return x @ y


@onnx("Gemm")
def _gemm(
    a: Value, b: Value, c: Value | None, transA: bool = False, transB: bool = False,
    alpha: float = 1.0, beta: float = 1.0,
) -> Value:  # fmt: skip
    if a.rank != 2 or b.rank != 2:
        raise malformed(f"product of {a.type} and {b.type}; expected two axes each")
    result = (a.swapped() if transA else a) @ (b.swapped() if transB else b) * alpha
    return result if c is None or beta == 0 else result + fitting(c * beta, result, "C")


@onnx("FusedGemm", domain=MICROSOFT)
def _fused_gemm(
    a: Value, b: Value, c: Value | None, transA: bool = False, transB: bool = False,
    alpha: float = 1.0, beta: float = 1.0, activation: str = "", activation_alpha: float = 0.0,
    activation_beta: float = 0.0, activation_gamma: float = 0.0,
) -> Value:  # fmt: skip
    parameters = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    return fused_activation(activation, _gemm(a, b, c, transA, transB, alpha, beta), parameters)


@onnx("FusedMatMul", domain=MICROSOFT)
def _fused_matmul(
    a: Value, b: Value, alpha: float = 1.0, transA: bool = False, transB: bool = False,
    transBatchA: bool = False, transBatchB: bool = False,
) -> Value:  # fmt: skip
    def arranged(x: Value, swaps: bool, moves: bool) -> Value:
        if moves and x.rank > 2:
            # The batch axes move after the first axis of the matrix.
            x = x.moved(0, x.rank - 2)
        return x.swapped() if swaps and x.rank > 1 else x

    return arranged(a, transA, transBatchA) @ arranged(b, transB, transBatchB) * alpha


@onnx("Einsum")
def _einsum(*xs: Value, equation: str) -> Value:
    return einsum(equation, xs)


@onnx("CDist", domain=MICROSOFT)
def _distances(
    a: Value, b: Value, metric: Literal["euclidean", "sqeuclidean"] = "sqeuclidean"
) -> Value:
    """The squared distance of each row of A to each row of B: `a a + b b - 2 a b`, by one
    product."""
    if a.rank != 2 or b.rank != 2:
        raise malformed(f"distances of {a.type} and {b.type}; expected two axes each")
    require(minimum(a.shape[1], 1), 1, f"distances of {a.type} and {b.type}")
    squares = [(x * x).reduce("sum", [1]) for x in (a, b)]
    found = (squares[0] + squares[1].swapped() + a @ b.swapped() * -2.0).at_least(0)
    return sqrt(found) if metric == "euclidean" else found
