"""Products of matrices and of tensors."""

from __future__ import annotations

from ftuner.frontends.torch.registry import aten
from ftuner.graph.ir import Value


@aten("linear")
def _linear(input: Value, weight: Value, bias: Value | None = None) -> Value:
    found = input @ (weight.swapped() if weight.rank > 1 else weight)
    return found if bias is None else found + bias


@aten("mm", "bmm", "matmul", "mv", "dot")
def _product(x: Value, y: Value) -> Value:
    return x @ y


@aten("addmm", "baddbmm", "addmv")
def _added(c: Value, x: Value, y: Value, beta: float = 1, alpha: float = 1) -> Value:
    found = x @ y * alpha
    return found if beta == 0 else c * beta + found
