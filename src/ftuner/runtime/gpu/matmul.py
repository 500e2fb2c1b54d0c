"""`matmul` of tensors on a GPU."""

from __future__ import annotations

import torch

from ftuner.core.expr import ACCUMULATOR, Expr, Operand
from ftuner.errors import DTypeError, ShapeError
from ftuner.runtime.cpu.arrays import on_gpu
from ftuner.runtime.gpu.arrays import (
    Tensor,
    as_tensor,
    matrix_dtype,
    overlap,
    same_dtype,
    writable,
)
from ftuner.runtime.gpu.backend import session_of
from ftuner.runtime.gpu.operands import product_shape
from ftuner.runtime.gpu.products import Products

BEFORE = Operand("before", "matrix")
"""What a result held before, which is added to."""
ACCUMULATED: Expr = ACCUMULATOR + BEFORE


def matmul(a: object, b: object, out: object | None, accumulate: bool) -> Tensor:
    """As `ftuner.matmul`, of tensors of which at least one is on a GPU.

    Raises:
        ShapeError, DTypeError, OperandError: as there; other operands that are elsewhere.
        HardwareError: a chip that kernels cannot run on.
    """
    given = a if on_gpu(a) else b
    assert isinstance(given, torch.Tensor)
    return Matmul(session_of(given.device).products)(a, b, out, accumulate)


class Matmul:
    """Matrix products on one GPU."""

    def __init__(self, products: Products) -> None:
        self._products = products

    def __call__(
        self, a_given: object, b_given: object, out: object | None = None,
        accumulate: bool = False,
    ) -> Tensor:  # fmt: skip
        """As `ftuner.matmul`, of tensors on the device of the products."""
        device = self._products.device
        a, b = as_tensor(a_given, "a", device), as_tensor(b_given, "b", device)
        matrix_dtype(a, "a")
        matrix_dtype(b, "b")
        same_dtype(a, b, "b")
        if not a.dim() or not b.dim():
            raise ShapeError(
                f"a is {tuple(a.shape)} and b is {tuple(b.shape)}: a scalar is no matrix or vector"
            )
        a2 = a.unsqueeze(0) if a.dim() == 1 else a
        b2 = b.unsqueeze(1) if b.dim() == 1 else b
        full = product_shape(a2, b2)
        shape = full[:-1] if b.dim() == 1 else full
        if a.dim() == 1:
            shape = (*full[:-2], full[-1]) if b.dim() > 1 else full[:-2]
        if out is None:
            if accumulate:
                raise ShapeError("accumulate needs an out to add to")
            result = torch.empty(shape, dtype=a.dtype, device=device)
        else:
            result = writable(out, "out", device)
            if tuple(result.shape) != shape:
                raise ShapeError(
                    f"out is {tuple(result.shape)}; the product of {tuple(a.shape)} and "
                    f"{tuple(b.shape)} is {shape}"
                )
            if result.dtype != a.dtype:
                raise DTypeError(f"out has dtype {result.dtype}, the operands {a.dtype}")
        target = result.unsqueeze(-1) if b.dim() == 1 else result
        if a.dim() == 1:
            target = target.unsqueeze(-2)
        if result.numel():
            self._into(a2, b2, target, accumulate)
        return result

    def _into(self, a: Tensor, b: Tensor, c: Tensor, accumulate: bool) -> None:
        """The product of tensors of two axes or more, to `c`, whatever its strides."""
        if c.stride(-1) != 1 and c.stride(-2) == 1:
            # C lies transposed: so does the product.
            a, b, c = b.mT, a.mT, c.mT
        if overlap(c, a) or overlap(c, b) or c.stride(-1) != 1:
            whole = torch.empty(c.shape, dtype=c.dtype, device=c.device)
            if accumulate:
                whole.copy_(c)
            self._into(a, b, whole, accumulate)
            c.copy_(whole)
            return
        if accumulate:
            self._products.run(a, b, c, ACCUMULATED, {BEFORE.name: c})
        else:
            self._products.run(a, b, c)
