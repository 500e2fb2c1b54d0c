"""The layout of product operands on a GPU, each a batch of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ftuner.core.gpu.tile import ALIGNMENT_BYTES, Order
from ftuner.runtime.gpu.arrays import Tensor


@dataclass(frozen=True)
class Axis:
    """A batch axis: its extent, and its stride in each tensor, in elements."""

    extent: int
    strides: tuple[int, ...]


def order_of(matrix: Tensor, k_axis: int) -> Order | None:
    """Returns the contiguous axis of a matrix; None if neither is. For one row or column it is k,
    if k is contiguous."""
    spatial = -3 - k_axis
    found = lying(
        matrix.shape[spatial], matrix.shape[k_axis], matrix.stride(spatial), matrix.stride(k_axis)
    )
    return None if found is None else found[0]


def between(matrix: Tensor, order: Order, k_axis: int) -> int:
    """Returns the stride of the other axis, in elements; an aligned one if it has one index."""
    outer = -3 - k_axis if order == "k" else k_axis
    return _between(matrix.shape[outer], matrix.shape[-3 - outer], matrix.stride(outer))


def lying(spatial: int, k: int, spatial_stride: int, k_stride: int) -> tuple[Order, int] | None:
    """Returns `order_of` and `between` of a matrix with these extents and strides."""
    if k_stride == 1 or k == 1:
        if spatial == 1 or spatial_stride >= k:
            return "k", _between(spatial, k, spatial_stride)
    elif spatial_stride == 1 and k_stride >= spatial:
        return "spatial", k_stride
    return None


def _between(outer: int, inner: int, stride: int) -> int:
    return stride if outer != 1 else -(-inner // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def batch_axes(shape: Sequence[int], *tensors: Tensor) -> list[Axis]:
    """Returns the batch axes of a result and of the tensors that broadcast to it. Axes that all
    tensors walk together are one; axes of one element are left out."""
    axes: list[Axis] = []
    for i in range(len(shape)):
        if shape[i] == 1:
            continue
        from_end = i - len(shape) - 2
        strides = tuple(
            0 if -from_end > x.dim() or x.shape[from_end] == 1 else x.stride(from_end)
            for x in tensors
        )
        outer = axes[-1] if axes else None
        if outer is not None and all(
            s == inner * shape[i] for s, inner in zip(outer.strides, strides, strict=True)
        ):
            axes[-1] = Axis(outer.extent * shape[i], strides)
        else:
            axes.append(Axis(shape[i], strides))
    return axes


def launches(axes: Sequence[Axis], tensors: int) -> tuple[Axis, list[tuple[int, ...]]]:
    """Returns the batch axis of one launch, the longest, and the offsets of each tensor for each
    launch. There is one launch if the batch axes are one."""
    nothing = (0,) * tensors
    if not axes:
        return Axis(1, nothing), [nothing]
    inner = max(axes, key=lambda axis: axis.extent)
    offsets = [nothing]
    for axis in axes:
        if axis is not inner:
            offsets = [
                tuple(o + i * s for o, s in zip(offset, axis.strides, strict=True))
                for offset in offsets
                for i in range(axis.extent)
            ]
    assert len(offsets) * inner.extent == math.prod(axis.extent for axis in axes)
    return inner, offsets


def moved(x: Tensor, elements: int) -> Tensor:
    """Returns a tensor that begins `elements` further on; kernels get strides as arguments."""
    if not elements:
        return x
    return x.as_strided((1,), (1,), x.storage_offset() + elements)
