"""Matrix products: MatMul, Gemm, Einsum and FusedMatMul; distances; determinants."""

from __future__ import annotations

from collections.abc import Sequence

from ftuner.core.dim import minimum
from ftuner.frontends.onnx.activations import fused_activation
from ftuner.frontends.onnx.context import Context, NodeView, Table
from ftuner.frontends.onnx.records import MICROSOFT
from ftuner.graph.algebra import apply, fitting, malformed, require, sqrt
from ftuner.graph.einsum import einsum
from ftuner.graph.ir import Value


def _matmul(context: Context, node: NodeView) -> Sequence[Value]:
    return [node.input(0) @ node.input(1)]


def _gemm(context: Context, node: NodeView) -> Sequence[Value]:
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise malformed(f"product of {a.type} and {b.type}; expected two axes each")
    a = a.swapped() if node.flag("transA") else a
    b = b.swapped() if node.flag("transB") else b
    result = a @ b * node.number("alpha", 1.0)
    beta = node.number("beta", 1.0)
    if c is None or beta == 0:
        return [result]
    return [result + fitting(c * beta, result, "C")]


def _fused_gemm(context: Context, node: NodeView) -> Sequence[Value]:
    (result,) = _gemm(context, node)
    parameters = {n: node.number(f"activation_{n}", 0.0) for n in ("alpha", "beta", "gamma")}
    return [fused_activation(context, node, result, parameters)]


def _fused_matmul(context: Context, node: NodeView) -> Sequence[Value]:
    operands = []
    for number, side in ((0, "A"), (1, "B")):
        x = node.input(number)
        if node.flag(f"transBatch{side}") and x.rank > 2:
            # The batch axes move after the first axis of the matrix.
            x = x.transpose((*range(1, x.rank - 1), 0, x.rank - 1))
        if node.flag(f"trans{side}") and x.rank > 1:
            x = x.swapped()
        operands.append(x)
    a, b = operands
    return [(a @ b) * node.number("alpha", 1.0)]


def _einsum(context: Context, node: NodeView) -> Sequence[Value]:
    return [einsum(context, node.text("equation"), node.present())]


def _distances(context: Context, node: NodeView) -> Sequence[Value]:
    """Of each row of A to each row of B, by one product: `a a + b b - 2 a b`."""
    a, b = node.input(0), node.input(1)
    metric = node.text("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise malformed(f"metric {metric!r}; expected euclidean or sqeuclidean")
    if a.rank != 2 or b.rank != 2:
        raise malformed(f"distances of {a.type} and {b.type}; expected two axes each")
    require(minimum(a.shape[1], 1), 1, f"distances of {a.type} and {b.type}")
    squares = [(x * x).reduce("sum", [1]) for x in (a, b)]
    both = squares[0] + squares[1].swapped()
    twice = a @ b.swapped() * -2.0
    found = (both + twice).at_least(0)
    return [sqrt(found) if metric == "euclidean" else found]


CONTRACTIONS: Table = {
    ("", "Det"): lambda context, node: [apply("determinant", node.input(0))],
    ("", "Einsum"): _einsum,
    ("", "Gemm"): _gemm,
    ("", "MatMul"): _matmul,
    (MICROSOFT, "CDist"): _distances,
    (MICROSOFT, "FusedGemm"): _fused_gemm,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
}
