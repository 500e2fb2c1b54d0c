"""`matmul` of tensors on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftuner.core.expr import ACCUMULATOR, BEFORE, Expr
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import Tensor, as_tensor, matrix_dtype, overlap, writable
from ftuner.runtime.gpu.call_cache import CallCache, call_key
from ftuner.runtime.gpu.kernels import BoundKernel
from ftuner.runtime.gpu.operands import Product
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.ops.operands import check_out, product_shapes, same_dtype

ACCUMULATED: Expr = ACCUMULATOR + BEFORE


class Matmul:
    """Matrix products on one GPU."""

    def __init__(self, products: Products) -> None:
        self._products = products
        self._cache = CallCache()

    def __call__(
        self, a_given: object, b_given: object, out: object | None = None, accumulate: bool = False
    ) -> Tensor:
        """`ftuner.matmul`, for tensors on the device of the products."""
        given = (a_given, b_given) if out is None else (a_given, b_given, out)
        key = call_key((bool(accumulate), out is None), given)
        found = self._cache.again(key, out)
        if found is not None:
            return found
        device = self._products.device
        a, b = as_tensor(a_given, "a", device), as_tensor(b_given, "b", device)
        matrix_dtype(a, "a")
        matrix_dtype(b, "b")
        same_dtype(a, b, "b")
        _, shape = product_shapes(a.shape, b.shape)
        a2 = a.unsqueeze(0) if a.dim() == 1 else a
        b2 = b.unsqueeze(1) if b.dim() == 1 else b
        if out is None:
            if accumulate:
                raise ShapeError("accumulate needs an out to add to")
            result = torch.empty(shape, dtype=a.dtype, device=device)
        else:
            result = writable(out, "out", device)
            check_out(result, shape, a, b)
        target = result.unsqueeze(-1) if b.dim() == 1 else result
        if a.dim() == 1:
            target = target.unsqueeze(-2)
        if result.numel():
            launches = self._into(a2, b2, target, accumulate)
            self._cache.keep(key, given, result, launches)
        return result

    def _into(
        self, a: Tensor, b: Tensor, c: Tensor, accumulate: bool
    ) -> Sequence[BoundKernel] | None:
        """Computes the product of tensors of two axes or more to `c`, of any strides; returns the
        launches as `Products.launch` does."""
        if c.stride(-1) != 1 and c.stride(-2) == 1:
            # C is contiguous along m: the transposed product is computed.
            a, b, c = b.mT, a.mT, c.mT
        if overlap(c, a) or overlap(c, b) or c.stride(-1) != 1:
            whole = torch.empty(c.shape, dtype=c.dtype, device=c.device)
            if accumulate:
                whole.copy_(c)
            self._into(a, b, whole, accumulate)
            c.copy_(whole)
            return None
        if accumulate:
            return self._products.launch(Product(a, b, c, ACCUMULATED, {BEFORE.name: c}))
        return self._products.launch(Product(a, b, c))
