"""`grouped_matmul` of tensors on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ftuner.errors import DTypeError
from ftuner.runtime.gpu.arrays import (
    Tensor,
    address_range,
    as_tensor,
    matrix_dtype,
    same_dtype,
    writable,
)
from ftuner.runtime.gpu.grouped_products import GroupedProducts
from ftuner.runtime.ops.grouped_operands import Groups, crossing, product_extents


class GroupedMatmul:
    """Grouped products on one GPU."""

    def __init__(self, products: GroupedProducts) -> None:
        self._products = products

    def __call__(self, groups: Groups) -> list[Tensor]:
        """As `ftuner.grouped_matmul`, of tensors on the device of the products."""
        device = self._products.device
        a = [as_tensor(x, f"a[{i}]", device) for i, x in enumerate(groups.a)]
        b = [as_tensor(x, f"b[{i}]", device) for i, x in enumerate(groups.b)]
        if not a:
            return []
        matrix_dtype(a[0], "a[0]")
        for name, tensors in (("a", a), ("b", b)):
            for i, x in enumerate(tensors):
                same_dtype(a[0], x, f"{name}[{i}]")
        if groups.out is None:
            results = [
                torch.empty(extents, dtype=a[0].dtype, device=device)
                for extents in [
                    product_extents(i, x.shape, y.shape)
                    for i, (x, y) in enumerate(zip(a, b, strict=True))
                ]
            ]
            self._into(a, b, results)
            return results
        results = [writable(x, f"out[{i}]", device) for i, x in enumerate(groups.out)]
        for i, (x, y, z) in enumerate(zip(a, b, results, strict=True)):
            product_extents(i, x.shape, y.shape, z.shape)
            if z.dtype != x.dtype:
                raise DTypeError(f"out[{i}] has dtype {z.dtype}, the operands {x.dtype}")
        # All groups are computed at once: what one of them reads, none may write.
        late = crossing([address_range(z) for z in results], [address_range(x) for x in (*a, *b)])
        targets = [
            torch.empty(z.shape, dtype=z.dtype, device=device)
            if apart or (z.stride(0) != 1 and z.stride(1) != 1)
            else z
            for z, apart in zip(results, late, strict=True)
        ]
        self._into(a, b, targets)
        for z, target in zip(results, targets, strict=True):
            if target is not z:
                z.copy_(target)
        return results

    def _into(self, a: Sequence[Tensor], b: Sequence[Tensor], c: Sequence[Tensor]) -> None:
        """The products, to tensors that are apart from all others and contiguous along an axis."""
        products = []
        for x, y, z in zip(a, b, c, strict=True):
            if not z.numel():
                continue
            if not x.shape[1]:
                z.zero_()
            elif z.stride(1) == 1:
                products.append((x, y, z))
            else:
                # C lies transposed: so does the product.
                products.append((y.mT, x.mT, z.mT))
        self._products.run(products)
