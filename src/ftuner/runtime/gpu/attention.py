"""Attention on one GPU: from operands as they lie to launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from ftuner.codegen.triton.attention import attention_source
from ftuner.codegen.triton.attention_arguments import array_argument
from ftuner.core.block_attention import (
    MAX_EXTENT,
    AttentionCall,
    AttentionForm,
    AttentionKernel,
    AttentionMask,
    MaskLayout,
)
from ftuner.core.dtype import BOOL, INT32
from ftuner.core.weighting import Weighting
from ftuner.cost.blocks import loads_of
from ftuner.errors import OperandError, ShapeError
from ftuner.hardware.model import GpuHardware
from ftuner.planner.block_attention import (
    BlockAttentionPlan,
    BlockAttentionProblem,
    RequestLengths,
)
from ftuner.planner.block_attention_planner import AttentionPlanner, attention_planner
from ftuner.runtime.attention_operands import Requests
from ftuner.runtime.gpu.launching import Kernel, Kernels
from ftuner.runtime.gpu.operands import Axis, batch_axes, moved
from ftuner.runtime.gpu.tensors import ALIGNMENT_BYTES, Tensor, matrix_dtype, multiply_of
from ftuner.runtime.gpu.workspace import Counters
from ftuner.runtime.products import forget_oldest

MAX_CALLS = 4096
"""Layouts of operands whose launches are kept."""
MAX_ROWS = 2**31 - 1
"""Extents are 32-bit integers in kernels; strides and offsets have 64."""
MAX_UPLOADS = 64
"""Offsets of requests that stay on the device: the layers of a model share them."""


class _Batch(NamedTuple):
    """Batch axes as a kernel walks them, each of one element where there is none, and where the
    others lead: offsets of each array, in elements, for each launch."""

    requests: Axis
    heads: Axis
    members: Axis
    """Heads of queries that share keys and values."""
    offsets: tuple[tuple[int, ...], ...]


class _Call(NamedTuple):
    """What operands of one layout are attended by: launches with all arguments but tensors."""

    kernel: Kernel
    plan: BlockAttentionPlan
    numbers: AttentionCall
    described: Mapping[str, tuple[list[int], list[int], list[int]]]
    """Extents, strides and block of each descriptor."""
    offsets: tuple[tuple[int, ...], ...]


class _Prepared(NamedTuple):
    """Of one form: who plans, and all kernels that a plan may choose."""

    planner: AttentionPlanner
    kernels: Mapping[AttentionKernel, Kernel]


class Attentions:
    """Attention on one GPU; safe to use from several threads, each on its own stream."""

    def __init__(
        self, device: torch.device, kernels: Kernels, counters: Counters, hardware: GpuHardware
    ) -> None:
        self.device = device
        self._kernels = kernels
        self._counters = counters
        self._hardware = hardware
        self._calls: dict[tuple[object, ...], _Call] = {}
        self._prepared: dict[tuple[AttentionForm, bool], _Prepared] = {}
        self._uploads: dict[tuple[object, ...], tuple[Tensor, Tensor]] = {}

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
            ShapeError: queries longer than a kernel takes, or 2^31 rows or keys and more.
        """
        causal = "none" if past is None else "first"
        self._cut(q, k.mT, v, out, mask, weighting, (causal, past or 0, None))

    def run_requests(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, requests: Requests,
        weighting: Weighting, causal: bool,
    ) -> None:  # fmt: skip
        """The same where requests of unequal length lie one after the other along rows and keys,
        in one launch.

        Args:
            q, k, v, out: `(heads, sharing, ...)`, and then as in `run`; k and v stay along the
                second axis.
            causal: whether the last row of a request sees all of its keys, the one before all but
                the last, and so on.

        Raises:
            ShapeError: as in `run`.
            OperandError: the stream is captured in a CUDA graph.
        """
        self._cut(q, k.mT, v, out, None, weighting, ("last" if causal else "none", 0, requests))

    def _cut(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, mask: Tensor | None,
        weighting: Weighting, seen: tuple[Any, int, Requests | None],
    ) -> None:  # fmt: skip
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        target = out
        if out.stride(-1) != 1:
            target = torch.empty(out.shape, dtype=out.dtype, device=out.device)
        columns = v.shape[-1]
        masks = [] if mask is None else [_readable(mask)]
        # Values are independent of each other.
        for first in range(0, columns, MAX_EXTENT):
            part = slice(first, min(first + MAX_EXTENT, columns))
            arrays = [q, k, v[..., part], target[..., part]]
            self._run([*arrays, *masks], weighting, seen)
        if target is not out:
            out.copy_(target)

    def _run(
        self, arrays: list[Tensor], weighting: Weighting, seen: tuple[Any, int, Requests | None]
    ) -> None:
        layout = [(x.shape, x.stride(), x.data_ptr() % ALIGNMENT_BYTES) for x in arrays]
        weights = weighting.scale, weighting.hidden, weighting.safe
        dtype = matrix_dtype(arrays[0], "q")
        key = (*layout, arrays[-1].dtype, dtype, multiply_of(dtype), weights, seen)
        call = self._calls.get(key)
        if call is None:
            call = self._make(arrays, weighting, *seen)
            forget_oldest(self._calls, MAX_CALLS)
            self._calls[key] = call
        requests = seen[2]
        for offsets in call.offsets:
            self._launch(call, arrays, offsets, requests)

    def _make(
        self, arrays: list[Tensor], weighting: Weighting, causal: Any, past: int,
        requests: Requests | None,
    ) -> _Call:  # fmt: skip
        q, k, v, out, *masks = arrays
        batch = _batch(out.shape[:-2], arrays)
        (rows, depth), (keys, columns) = q.shape[-2:], v.shape[-2:]
        if max(rows, keys) > MAX_ROWS:
            raise ShapeError(f"attention of {rows} rows and {keys} keys: both end at 2^31 - 1")
        dtype = matrix_dtype(q, "q")
        multiply = multiply_of(dtype)
        count = batch.requests.extent if requests is None else len(requests.rows) - 1
        problem = BlockAttentionProblem(
            count, batch.heads.extent, batch.members.extent, rows, keys, depth, columns, past
        )
        aligned = _aligned(arrays[:4], batch) and _whole(q, depth) and _whole(v, columns)
        form = AttentionForm.over(
            dtype, multiply, depth, columns,
            causal=causal,
            mask=_mask(masks[0], batch) if masks else None,
            ragged=None if requests is None else INT32,
            aligned=aligned,
            loads=loads_of(self._hardware, multiply, aligned and _ascending([k, v], batch)),
            negative=weighting.scale < 0,
        )  # fmt: skip
        lengths = None
        if requests is not None:
            lengths = RequestLengths(_lengths(requests.rows), _lengths(requests.keys))
        prepared = self._prepare(form, problem.sharing > 1)
        plan = prepared.planner.plan(problem, lengths)
        if plan.programs > MAX_ROWS:
            raise ShapeError(f"attention in {plan.programs} tiles: at most 2^31 - 1 are launched")
        described = _described(plan.kernel, k, v, batch)
        strides = [s for i in range(4) for s in _strides(arrays, batch, i, bool(described))]
        strides += _strides(arrays, batch, 4, False) if masks else [0] * 5
        numbers = AttentionCall(
            count, problem.heads, problem.sharing, rows, keys, depth, columns, past, plan.tiles,
            plan.group, plan.parts, weighting.scale, weighting.hidden,
            0.0 if weighting.safe else math.nan, *strides,
        )  # fmt: skip
        return _Call(prepared.kernels[plan.kernel], plan, numbers, described, batch.offsets)

    def _prepare(self, form: AttentionForm, shared: bool) -> _Prepared:
        """All kernels that a plan may choose, compiled when the first of them is asked for."""
        found = self._prepared.get((form, shared))
        if found is None:
            planner = attention_planner(self._hardware, form, shared)
            sources = [attention_source(kernel) for kernel in planner.kernels]
            self._kernels.prepare(sources)
            made = map(self._kernels.kernel, sources)
            kernels = dict(zip(planner.kernels, made, strict=True))
            found = self._prepared[form, shared] = _Prepared(planner, kernels)
        return found

    def _launch(
        self, call: _Call, arrays: list[Tensor], offsets: tuple[int, ...],
        requests: Requests | None,
    ) -> None:  # fmt: skip
        plan, kernel = call.plan, call.plan.kernel
        names = ("q", "k", "v", "out", "mask")
        given: dict[str, Any] = dict(zip(names, map(moved, arrays, offsets), strict=False))
        mask = given.get("mask")
        if mask is not None and mask.dtype == torch.bool:
            given["mask"] = mask.view(torch.uint8)
        if call.described:
            bases = {name: given[name] for name in ("k", "v")}
            for name, geometry in call.described.items():
                given[name] = TensorDescriptor(bases[name[0]], *geometry)
        if requests is not None:
            given["q_offsets"], given["k_offsets"] = self._upload(requests)
        if kernel.split:
            given["workspace"] = torch.empty(
                plan.workspace_floats, dtype=torch.float32, device=self.device
            )
            given["arrivals"] = self._counters.zeros(plan.arrivals)
        call.kernel(plan.programs, *(given[name] for name in kernel.pointers), *call.numbers)

    def _upload(self, requests: Requests) -> tuple[Tensor, Tensor]:
        """Offsets on the device, kept by stream: there they are complete when a launch reads them.

        Raises OperandError while the stream is captured.
        """
        stream = 0
        if self.device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                raise OperandError(
                    "requests of unequal length cannot be captured in a CUDA graph: their offsets "
                    "are copied from the host"
                )
            stream = torch.cuda.current_stream(self.device).cuda_stream
        found = self._uploads.get((stream, requests))
        if found is None:
            rows, keys = (
                torch.tensor(each, dtype=torch.int32).to(self.device) for each in requests
            )
            forget_oldest(self._uploads, MAX_UPLOADS)
            found = self._uploads[stream, requests] = (rows, keys)
        return found


def _lengths(offsets: Sequence[int]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in pairwise(offsets))


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


def _strides(arrays: Sequence[Tensor], batch: _Batch, number: int, described: bool) -> list[int]:
    """Of one array, as `AttentionCall` has them."""
    found = [batch.requests.strides[number], batch.heads.strides[number]]
    if described and number in (1, 2):
        found = [int(step != 0) for step in found]
    if number not in (1, 2):
        found.append(batch.members.strides[number])
    found.append(arrays[number].stride(-2))
    if number == 4:
        found.append(arrays[number].stride(-1))
    return found


def _readable(mask: Tensor) -> Tensor:
    """The mask, or a copy in rows that whole loads may be taken of, unless it has one number for a
    key: by an address of its own for each score, a tile would have no registers left."""
    last = range(-min(mask.dim(), 3), -1)
    if all(mask.stride(axis) == 0 or mask.shape[axis] == 1 for axis in last):
        return mask
    lies = mask.stride(-1) == 1 and not mask.data_ptr() % ALIGNMENT_BYTES
    if lies and all(_whole(mask, step) for step in mask.stride()[:-1]):
        return mask
    shown = mask[tuple(slice(0, 1 if step == 0 else None) for step in mask.stride()[:-1])]
    keys, whole = mask.shape[-1], ALIGNMENT_BYTES // mask.element_size()
    rows = mask.new_empty((*shown.shape[:-1], -(-keys // whole) * whole))[..., :keys]
    return rows.copy_(shown).expand(mask.shape)


def _mask(mask: Tensor, batch: _Batch) -> AttentionMask:
    axes = batch.requests, batch.heads, batch.members
    steps = [mask.stride(-2), *(axis.strides[4] for axis in axes)]
    steps += [offsets[4] for offsets in batch.offsets]
    per_key = not batch.members.strides[4] and (mask.stride(-2) == 0 or mask.shape[-2] == 1)
    layout: MaskLayout = "strided"
    if mask.stride(-1) == 1:
        whole = not mask.data_ptr() % ALIGNMENT_BYTES and all(_whole(mask, n) for n in steps)
        layout = "aligned" if whole else "contiguous"
    return AttentionMask(
        BOOL if mask.dtype == torch.bool else matrix_dtype(mask, "mask"),
        "keys" if per_key else "scores",
        layout,
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


def _ascending(arrays: Sequence[Tensor], batch: _Batch) -> bool:
    """Whether keys, and values, follow each other: a descriptor has no other strides."""
    return all(x.stride(-2) >= x.shape[-1] or x.shape[-2] == 1 for x in arrays) and all(
        step >= 0 for axis in (batch.requests, batch.heads) for step in axis.strides[1:3]
    )


def _described(
    kernel: AttentionKernel, k: Tensor, v: Tensor, batch: _Batch
) -> dict[str, tuple[list[int], list[int], list[int]]]:
    """What the copy engine is told of keys and values, by argument; nothing if they come by
    pointers."""
    form = kernel.form
    if form.loads == "pointers":
        return {}
    found = {}
    for number, (name, x, blocks) in enumerate(
        (("k", k, form.depth_blocks), ("v", v, form.column_blocks)), 1
    ):
        keys, elements = x.shape[-2:]
        # Of one key there is no next one: any stride will do that is aligned.
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
