"""Attention on one GPU: from operands as they lie to launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import torch

from ftuner.codegen.triton.attention import attention_source
from ftuner.core.block_attention import (
    MAX_EXTENT,
    AttentionCall,
    AttentionForm,
    AttentionMask,
)
from ftuner.core.dtype import BOOL
from ftuner.core.weighting import Weighting
from ftuner.hardware.model import GpuHardware
from ftuner.planner.block_attention import BlockAttentionProblem
from ftuner.planner.block_attention_planner import plan_attention
from ftuner.runtime.gpu.launching import Kernels
from ftuner.runtime.gpu.operands import Axis, batch_axes, moved
from ftuner.runtime.gpu.tensors import ALIGNMENT_BYTES, Tensor, matrix_dtype, multiply_of
from ftuner.runtime.gpu.workspace import Counters


class _Batch(NamedTuple):
    """Batch axes as a kernel walks them, each of one element where there is none, and where the
    others lead: offsets of each array, in elements, for each launch."""

    requests: Axis
    heads: Axis
    members: Axis
    """Heads of queries that share keys and values."""
    offsets: tuple[tuple[int, ...], ...]


class Attentions:
    """Attention on one GPU; safe to use from several threads, each on its own stream."""

    def __init__(
        self, device: torch.device, kernels: Kernels, counters: Counters, hardware: GpuHardware
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._counters = counters
        self._hardware = hardware

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None,
        weighting: Weighting, past: int | None,
    ) -> None:  # fmt: skip
        """`out = weighting(q @ k, mask) @ v`, on the current stream; nothing is empty.

        Args:
            q, k, v, out: `(..., rows, depth)`, `(..., depth, keys)`, `(..., keys, columns)` and
                `(..., rows, columns)`, with the same batch axes.
            mask: `(..., rows, keys)`, numbers or booleans; strides may be 0.
            past: the value of `weighting.causal`.

        Raises:
            ShapeError: queries longer than a kernel takes.
        """
        keys = k.mT
        q, keys, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, v))
        if out.stride(-1) != 1:
            whole = torch.empty(out.shape, dtype=out.dtype, device=out.device)
            self.run(q, keys.mT, v, whole, mask, weighting, past)
            out.copy_(whole)
            return
        columns = v.shape[-1]
        # Values are independent of each other.
        for first in range(0, columns, MAX_EXTENT):
            part = slice(first, min(first + MAX_EXTENT, columns))
            self._run(q, keys, v[..., part], out[..., part], mask, weighting, past)

    def _run(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None,
        weighting: Weighting, past: int | None,
    ) -> None:  # fmt: skip
        arrays = [q, k, v, out, *([mask] if mask is not None else [])]
        batch = _batch(out.shape[:-2], arrays)
        rows, depth = q.shape[-2:]
        dtype = matrix_dtype(q, "q")
        problem = BlockAttentionProblem(
            batch.requests.extent, batch.heads.extent, batch.members.extent, rows, k.shape[-2],
            depth, v.shape[-1], past or 0,
        )  # fmt: skip
        form = AttentionForm.over(
            dtype, multiply_of(dtype), depth, v.shape[-1],
            causal="none" if past is None else "first",
            mask=None if mask is None else _mask(mask, batch),
            aligned=_aligned(arrays[:4], batch) and _whole(q, depth) and _whole(v, v.shape[-1]),
            negative=weighting.scale < 0,
        )  # fmt: skip
        plan = plan_attention(self._hardware, form, problem)
        kernel = plan.kernel
        launched = self._kernels.kernel(attention_source(kernel))
        strides = [s for i in range(4) for s in _strides(arrays, batch, i)]
        strides += _strides(arrays, batch, 4) if mask is not None else [0] * 5
        call = AttentionCall(
            problem.batch, problem.heads, problem.sharing, rows, problem.keys, depth,
            problem.columns, problem.past, plan.tiles, plan.group, plan.parts, weighting.scale,
            weighting.hidden, 0.0 if weighting.safe else math.nan, *strides,
        )  # fmt: skip
        for offsets in batch.offsets:
            q, k, v, out, *rest = (moved(x, o) for x, o in zip(arrays, offsets, strict=True))
            given: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out}
            if mask is not None:
                given["mask"] = rest[0].view(torch.uint8) if mask.dtype == torch.bool else rest[0]
            if kernel.split:
                given["workspace"] = torch.empty(
                    plan.workspace_floats, dtype=torch.float32, device=self._device
                )
                given["arrivals"] = self._counters.zeros(plan.arrivals)
            launched(plan.programs, *(given[name] for name in kernel.pointers), *call)


def _batch(shape: Sequence[int], arrays: Sequence[Tensor]) -> _Batch:
    """The last axis along which keys and values stay is members', the next ones are heads and
    requests."""
    nothing = Axis(1, (0,) * len(arrays))
    axes = batch_axes(shape, *arrays)
    members = heads = requests = nothing
    if axes and not any(axes[-1].strides[1:3]):
        members = axes.pop()
    if axes:
        heads = axes.pop()
    if axes:
        requests = axes.pop()
    walks = [range(axis.extent) for axis in axes]
    offsets = tuple(
        tuple(
            sum(i * axis.strides[n] for i, axis in zip(at, axes, strict=True))
            for n in range(len(arrays))
        )
        for at in product(*walks)
    )
    return _Batch(requests, heads, members, offsets)


def _strides(arrays: Sequence[Tensor], batch: _Batch, number: int) -> list[int]:
    """Of one array, as `AttentionCall` has them."""
    found = [batch.requests.strides[number], batch.heads.strides[number]]
    if number not in (1, 2):
        found.append(batch.members.strides[number])
    found.append(arrays[number].stride(-2))
    if number == 4:
        found.append(arrays[number].stride(-1))
    return found


def _mask(mask: Tensor, batch: _Batch) -> AttentionMask:
    per_key = not batch.members.strides[4] and (mask.stride(-2) == 0 or mask.shape[-2] == 1)
    return AttentionMask(
        BOOL if mask.dtype == torch.bool else matrix_dtype(mask, "mask"),
        "keys" if per_key else "scores",
        "contiguous" if mask.stride(-1) == 1 else "strided",
    )


def _aligned(arrays: Sequence[Tensor], batch: _Batch) -> bool:
    """Whether addresses, and strides along all axes but the last, are multiples of what the
    widest loads ask for."""
    for number, x in enumerate(arrays):
        steps = [axis.strides[number] for axis in (batch.requests, batch.heads, batch.members)]
        steps += [x.stride(-2), *(offsets[number] for offsets in batch.offsets)]
        if x.data_ptr() % ALIGNMENT_BYTES or any(not _whole(x, step) for step in steps):
            return False
    return True


def _whole(x: Tensor, elements: int) -> bool:
    return elements * x.element_size() % ALIGNMENT_BYTES == 0
