"""The layout of attention operands on a GPU: batch axes, strides, descriptors, masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch

from ftuner.core.dtype import BOOL
from ftuner.core.gpu.attention import AttentionKernel, AttentionMask, MaskLayout
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.runtime.gpu.arrays import Tensor, matrix_dtype
from ftuner.runtime.gpu.operands import Axis, batch_axes
from ftuner.schedules.attention.gpu_kernel_operands import array_argument


class AttentionBatch(NamedTuple):
    """The batch axes of a kernel, of one element if absent. Further axes are several launches."""

    requests: Axis
    heads: Axis
    members: Axis
    """Heads of queries that share keys and values."""
    offsets: tuple[tuple[int, ...], ...]
    """Offsets of each array, in elements, for each launch."""


def attention_batch(shape: Sequence[int], arrays: Sequence[Tensor]) -> AttentionBatch:
    """Returns the batch axes of arrays. The last one is that of members if keys and values are
    broadcast along it; the axes before are heads and requests."""
    nothing = Axis(1, (0,) * len(arrays))
    axes = batch_axes(shape, *arrays)
    members = axes.pop() if axes and not any(axes[-1].strides[1:3]) else nothing
    heads, requests = (axes.pop() if axes else nothing for _ in range(2))
    walks = [range(axis.extent) for axis in axes]
    offsets = tuple(
        tuple(
            sum(i * axis.strides[n] for i, axis in zip(at, axes, strict=True))
            for n in range(len(arrays))
        )
        for at in product(*walks)
    )
    return AttentionBatch(requests, heads, members, offsets)


def call_strides(
    arrays: Sequence[Tensor], batch: AttentionBatch, number: int, described: bool
) -> list[int]:
    """Returns the strides of one array in the order of `AttentionCall`, without that of a mask
    along keys."""
    found = [batch.requests.strides[number], batch.heads.strides[number]]
    if described and number in (1, 2):
        found = [int(step != 0) for step in found]
    if number not in (1, 2):
        found.append(batch.members.strides[number])
    return [*found, arrays[number].stride(-2)]


def in_rows(x: Tensor) -> Tensor:
    """Returns the tensor, or a copy, with a contiguous last axis. Broadcast axes stay broadcast."""
    if x.stride(-1) == 1:
        return x
    return _unshared(x).contiguous().expand(x.shape)


def readable_mask(mask: Tensor) -> Tensor:
    """Returns the mask, or a copy with aligned rows, unless it has one number for each key. With an
    address for each score, a tile would not fit the registers."""
    last = range(-min(mask.dim(), 3), -1)
    if all(mask.stride(axis) == 0 or mask.shape[axis] == 1 for axis in last):
        return mask
    contiguous = mask.stride(-1) == 1 and not mask.data_ptr() % ALIGNMENT_BYTES
    if contiguous and all(whole_loads(mask, step) for step in mask.stride()[:-1]):
        return mask
    shown = _unshared(mask)
    keys, load = mask.shape[-1], ALIGNMENT_BYTES // mask.element_size()
    rows = mask.new_empty((*shown.shape[:-1], -(-keys // load) * load))[..., :keys]
    return rows.copy_(shown).expand(mask.shape)


def _unshared(x: Tensor) -> Tensor:
    """Returns the tensor with one element along broadcast axes, except the last axis."""
    return x[tuple(slice(0, 1 if step == 0 else None) for step in x.stride()[:-1])]


def mask_form(mask: Tensor, batch: AttentionBatch) -> AttentionMask:
    """Returns the form of the mask, the fifth array. It does not depend on the number of keys:
    otherwise each length of a padding mask would need another kernel. A mask with one number for
    each key is so small that aligned loads would save nothing."""
    axes = batch.requests, batch.heads, batch.members
    steps = [mask.stride(-2), *(axis.strides[4] for axis in axes)]
    steps += [offsets[4] for offsets in batch.offsets]
    per_key = not batch.members.strides[4] and (mask.stride(-2) == 0 or mask.shape[-2] == 1)
    layout: MaskLayout = "strided"
    if mask.stride(-1) == 1:
        fits = not mask.data_ptr() % ALIGNMENT_BYTES and all(whole_loads(mask, n) for n in steps)
        layout = "aligned" if fits and not per_key else "contiguous"
    return AttentionMask(
        BOOL if mask.dtype == torch.bool else matrix_dtype(mask, "mask"),
        "keys" if per_key else "scores",
        layout,
    )


def all_aligned(arrays: Sequence[Tensor], batch: AttentionBatch) -> bool:
    """Whether addresses, and strides along all axes but the last, are multiples of
    `ALIGNMENT_BYTES`."""
    for number, x in enumerate(arrays):
        steps = [axis.strides[number] for axis in (batch.requests, batch.heads, batch.members)]
        steps += [x.stride(-2), *(offsets[number] for offsets in batch.offsets)]
        if x.data_ptr() % ALIGNMENT_BYTES or any(not whole_loads(x, step) for step in steps):
            return False
    return True


def whole_loads(x: Tensor, elements: int) -> bool:
    """Whether `elements` elements are a multiple of `ALIGNMENT_BYTES`."""
    return elements * x.element_size() % ALIGNMENT_BYTES == 0


def ascending(arrays: Sequence[Tensor], batch: AttentionBatch) -> bool:
    """Whether keys and values have non-negative strides and do not overlap, which descriptors
    require."""
    return all(x.stride(-2) >= x.shape[-1] or x.shape[-2] == 1 for x in arrays) and all(
        step >= 0 for axis in (batch.requests, batch.heads) for step in axis.strides[1:3]
    )


def described_keys(
    kernel: AttentionKernel, k: Tensor, v: Tensor, batch: AttentionBatch
) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """Returns extents, strides and block of each descriptor of keys and values, by argument; empty
    if they are loaded by pointers."""
    form = kernel.form
    if form.loads == "pointers":
        return {}
    found = {}
    for number, (name, x, blocks) in enumerate(
        (("k", k, form.depth_blocks), ("v", v, form.column_blocks)), 1
    ):
        keys, elements = x.shape[-2:]
        # With one key any aligned stride is valid.
        row = x.stride(-2) if keys > 1 else -(-elements // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        extents, strides = [], []
        for axis in (batch.requests, batch.heads):
            step = axis.strides[number]
            extents.append(axis.extent if step else 1)
            strides.append(step or keys * row)
        for block, size in enumerate(blocks):
            found[array_argument(name, block)] = (
                [*extents, keys, elements], [*strides, row, 1], [1, 1, kernel.tile.bk, size]
            )  # fmt: skip
    return found
