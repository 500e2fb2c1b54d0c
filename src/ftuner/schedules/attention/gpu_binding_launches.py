"""Attention on one GPU: from operands of any layout to launches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import is_
from typing import NamedTuple

import torch
import triton

from ftuner.codegen.triton.gluon import VERSIONS
from ftuner.codegen.triton.source import Source
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.caching import RecentlyUsed
from ftuner.core.dtype import FLOAT32, INT32
from ftuner.core.gpu.attention import (
    MAX_EXTENT,
    AttentionCall,
    AttentionForm,
    AttentionKernel,
    Causal,
)
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, MOST_COUNTED
from ftuner.cost.gpu.tile import loads_of, multiplied_on
from ftuner.errors import ShapeError, UnsupportedKernelError
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.planner.gpu.plan import AttentionPlan, AttentionProblem, RequestLengths
from ftuner.runtime.gpu.arrays import Tensor, allows_tf32, copied_bytes, matrix_dtype, multiply_of
from ftuner.runtime.gpu.call_cache import MAX_CALLS
from ftuner.runtime.gpu.kernels import LATE, BoundKernel, Geometry, Kernel, Kernels
from ftuner.runtime.gpu.launching import current_stream, is_capturing
from ftuner.runtime.gpu.operands import moved
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.ops.attention_operands import Requests
from ftuner.schedules.attention.gpu_binding_layout import (
    AttentionBatch,
    all_aligned,
    ascending,
    attention_batch,
    call_strides,
    described_keys,
    in_rows,
    mask_form,
    readable_mask,
    whole_loads,
)
from ftuner.schedules.attention.gpu_kernel import attention_source
from ftuner.schedules.attention.gpu_plan import AttentionPlanner, attention_planner

MAX_UPLOADS = 64
"""Offsets of requests that are kept on the device, because the layers of a model share them."""


class Bits(NamedTuple):
    """What decides the bits of a result, beside its operands."""

    kernel: AttentionKernel
    split_keys: int


class Operands(NamedTuple):
    """The operands and the result, with the same batch axes. Where nothing is launched, they may
    have no data."""

    q: Tensor
    """`(..., rows, depth)`."""
    k: Tensor
    """`(..., depth, keys)`."""
    v: Tensor
    """`(..., keys, columns)`."""
    out: Tensor
    """`(..., rows, columns)`, not empty."""
    mask: Tensor | None = None
    """`(..., rows, keys)`, numbers or booleans; strides may be 0. One number for each key of all
    requests where these are of unequal length."""
    sinks: Tensor | None = None
    """`(..., rows, 1)`, numbers, if `softmax.sinks`; strides may be 0."""

    def arrays(self) -> list[Tensor]:
        """Returns those that there are, with keys as `(..., keys, depth)`."""
        q, k = self.q, self.k.mT
        if q.shape[-1] == 0:
            # Without elements all scores are 0, as for one element that is 0.
            q, k = (x.new_zeros((*x.shape[:-1], 1)) for x in (q, k))
        optional = [x for x in (self.mask, self.sinks) if x is not None]
        return [q, k, self.v, self.out, *optional]


class How(NamedTuple):
    """The softmax, the keys that rows see, and how float32 is multiplied."""

    softmax: AttentionSoftmax
    """Without `AttentionSoftmax.causal`."""
    causal: Causal
    past: int
    tf32: bool
    requests: Requests | None = None
    """Requests of unequal length, concatenated along rows and keys; there are at most two batch
    axes, and k and v are broadcast along the second one."""
    bits: Bits | None = None
    """Those that the requests have alone; None if they may be others."""

    @classmethod
    def of(cls, softmax: AttentionSoftmax, past: int | None, tf32: bool | None = None) -> How:
        """`past`: the value of `AttentionSoftmax.causal`. `tf32`: by default as torch says."""
        causal: Causal = "none" if past is None else "first"
        return cls(softmax, causal, past or 0, allows_tf32() if tf32 is None else tf32)


class _Call(NamedTuple):
    """The launches for operands of one layout, with all arguments except tensors."""

    kernel: Kernel
    plan: AttentionPlan
    numbers: AttentionCall
    described: Mapping[str, Geometry]
    """Descriptors of keys and values, by argument."""
    offsets: tuple[tuple[int, ...], ...]


def planned_for(hardware: GpuHardware, device: torch.device) -> GpuHardware:
    """Returns a chip without specialised warps where no kernel has these: in Triton's interpreter,
    and by another version of Triton than `codegen.triton.gluon.VERSIONS`."""
    if device.type == "cuda" and triton.__version__ in VERSIONS:
        return hardware
    tuning = replace(hardware.tuning, specialised_warpgroups=1)
    return hardware if tuning == hardware.tuning else replace(hardware, tuning=tuning)


class _Prepared(NamedTuple):
    """The planner of a form, and all kernels that a plan may choose."""

    planner: AttentionPlanner
    kernels: Mapping[AttentionKernel, Kernel]


class Attentions:
    """Attention on one GPU; safe to use from several threads, each on its own stream."""

    def __init__(
        self, device: torch.device, kernels: Kernels, scratch: Scratch, hardware: GpuHardware
    ) -> None:
        self.device = device
        self._kernels = kernels
        self._scratch = scratch
        self._hardware = planned_for(hardware, device)
        self._calls: RecentlyUsed[tuple[object, ...], _Call] = RecentlyUsed(MAX_CALLS)
        """By the layout of operands."""
        self._written: dict[tuple[AttentionForm, bool], dict[AttentionKernel, Source]] = {}
        """The sources of a form: a model asks for the same ones at all extents of its
        rehearsals."""
        self._prepared: dict[tuple[AttentionForm, bool], _Prepared] = {}
        self._of_alone: dict[AttentionKernel, Source] = {}
        """The sources of kernels that compute requests of unequal length as others compute each
        alone."""
        self._uploads: RecentlyUsed[tuple[object, ...], tuple[Tensor, Tensor]] = RecentlyUsed(
            MAX_UPLOADS
        )

    def run(self, operands: Operands, how: How) -> list[BoundKernel] | None:
        """`out = softmax(q @ k, mask) @ v`, on the current stream; requests in one launch.

        Returns:
            The launches, valid for all tensors of the same layout at the same addresses; None if
            an operand or the result was copied.

        Raises:
            ShapeError: queries longer than a kernel takes; or more than `MOST_COUNTED` rows, keys,
                tiles, or parts of these.
            UnsupportedKernelError: the stream is captured in a CUDA graph, and there are requests.
        """
        out = operands.out
        if operands.v.shape[-2] == 0:
            # The result of attention over no keys is zero.
            out.zero_()
            return None
        given = operands.arrays()
        arrays = _readable(given, how.softmax)
        launches = [x for piece in _pieces(arrays) for x in self._bound(piece, how)]
        for bound in launches:
            bound.launch()
        if arrays[3] is not out:
            out.copy_(arrays[3])
        in_place = operands.q is arrays[0] and all(map(is_, arrays, given))
        return launches if in_place else None

    def wanted(self, operands: Operands, how: How) -> dict[AttentionKernel, Source]:
        """Returns what `run` may launch for operands of these layouts."""
        found: dict[AttentionKernel, Source] = {}
        if operands.v.shape[-2] > 0:
            for arrays in _pieces(_readable(operands.arrays(), how.softmax)):
                found |= self._sources(*self._form_of(arrays, how))
        return found

    def wanted_together(
        self, operands: Operands, how: How, alone: Iterable[AttentionKernel]
    ) -> list[Source]:
        """Returns what `run` may launch for operands of these layouts, if they are of requests that
        launch some of `alone` by themselves."""
        ends = 0, operands.q.shape[-2]
        how = how._replace(requests=Requests(ends, ends))
        form, shared = self._form_of(_readable(operands.arrays(), how.softmax), how)
        found = [*self._sources(form, shared).values()]
        forms = [replace(x, form=form) for x in alone if not x.tile.specialised]
        return [*found, *map(self._as_alone, forms)]

    @property
    def calls(self) -> Iterator[_Call]:
        """Plans and kernels of the layouts of operands that are kept."""
        return self._calls.values()

    def workspace_bytes(self, operands: Operands, how: How) -> int:
        """Returns the bytes that `run` allocates: copies of operands, and one launch's partial
        sums."""
        if operands.v.shape[-2] == 0:
            return 0
        given = operands.arrays()
        arrays = _readable(given, how.softmax)
        floats = max(self._call(piece, how).plan.workspace_floats for piece in _pieces(arrays))
        return copied_bytes(arrays, given) + FLOAT32.itemsize * floats

    def bits(self, operands: Operands, how: How) -> Bits:
        """Returns what decides the bits of `run`, for operands of these layouts; values have at
        most `MAX_EXTENT` columns."""
        plan = self._call(_readable(operands.arrays(), how.softmax), how).plan
        return Bits(plan.kernel, plan.split_keys)

    def _call(self, arrays: list[Tensor], how: How) -> _Call:
        layout = [(x.shape, x.stride(), x.data_ptr() % ALIGNMENT_BYTES) for x in arrays]
        dtype = matrix_dtype(arrays[0], "q")
        key = (*layout, *(x.dtype for x in arrays[4:]), dtype, how)
        call = self._calls.get(key)
        if call is None:
            call = self._make(arrays, how)
            self._calls.add(key, call)
        return call

    def _form_of(self, arrays: list[Tensor], how: How) -> tuple[AttentionForm, bool]:
        """Returns the form of kernels, and whether heads share keys."""
        batch = attention_batch(arrays[3].shape[:-2], arrays)
        return self._form(arrays, batch, how), batch.members.extent > 1

    def _form(self, arrays: list[Tensor], batch: AttentionBatch, how: How) -> AttentionForm:
        softmax, (q, k, v, *_) = how.softmax, arrays
        mask, sinks = _optional_numbers(arrays, softmax)
        depth, columns = q.shape[-1], v.shape[-1]
        dtype = matrix_dtype(q, "q")
        multiply = multiplied_on(self._hardware, multiply_of(dtype, how.tf32))
        aligned = all_aligned(arrays[:4], batch)
        aligned = aligned and whole_loads(q, depth) and whole_loads(v, columns)
        return AttentionForm.over(
            dtype, multiply, depth, columns,
            causal=how.causal,
            mask=None if mask is None else mask_form(arrays[mask], batch),
            ragged=None if how.requests is None else INT32,
            aligned=aligned,
            loads=loads_of(self._hardware, multiply, aligned and ascending([k, v], batch)),
            negative=softmax.scale < 0,
            capped=bool(softmax.softcap),
            sinks=None if sinks is None else matrix_dtype(arrays[sinks], "sinks"),
        )  # fmt: skip

    def _make(self, arrays: list[Tensor], how: How) -> _Call:
        softmax, past, requests = how.softmax, how.past, how.requests
        q, k, v, out, *_ = arrays
        batch = attention_batch(out.shape[:-2], arrays)
        (rows, depth), (keys, columns) = q.shape[-2:], v.shape[-2:]
        # Beyond these limits rows see all keys, or none.
        past = max(min(past, keys), -rows)
        if max(rows, keys, rows + past) > MOST_COUNTED:
            raise ShapeError(
                f"attention of {rows} rows and {keys} keys, {past} of them before the rows: each "
                f"of these, and rows plus keys before them, is at most {MOST_COUNTED}"
            )
        count = batch.requests.extent if requests is None else len(requests.rows) - 1
        problem = AttentionProblem(
            count, batch.heads.extent, batch.members.extent, rows, keys, depth, columns, past
        )
        form = self._form(arrays, batch, how)
        lengths = None
        if requests is not None:
            lengths = RequestLengths(_lengths(requests.rows), _lengths(requests.keys))
        if how.bits is None:
            plan, kernel = self._planned(form, problem, lengths)
        else:
            plan, kernel = self._planned_by(form, problem, how.bits)
        counted = max(plan.programs, plan.blocks * plan.split_keys, plan.packed_rows)
        if counted > MOST_COUNTED:
            raise ShapeError(
                f"attention in {counted} parts of tiles, parts of blocks of keys, or rows of heads "
                f"that share keys: at most {MOST_COUNTED} are possible"
            )
        described = described_keys(plan.kernel, k, v, batch)
        strides = [s for i in range(4) for s in call_strides(arrays, batch, i, bool(described))]
        mask, sinks = _optional_numbers(arrays, softmax)
        if mask is None:
            strides += [0] * 5
        else:
            strides += [*call_strides(arrays, batch, mask, False), arrays[mask].stride(-1)]
        strides += [0] * 4 if sinks is None else call_strides(arrays, batch, sinks, False)
        numbers = AttentionCall(
            count, problem.heads, problem.sharing, rows, keys, depth, columns, past, plan.tiles,
            plan.l2_heads, plan.split_keys, softmax.inner_scale, softmax.softcap, softmax.hidden,
            0.0 if softmax.safe or softmax.hides_nan else math.nan,
            0.0 if softmax.hides_nan else math.nan, *strides,
        )  # fmt: skip
        return _Call(kernel, plan, numbers, described, batch.offsets)

    def _planned(
        self, form: AttentionForm, problem: AttentionProblem, lengths: RequestLengths | None
    ) -> tuple[AttentionPlan, Kernel]:
        prepared = self._prepare(form, problem.sharing > 1)
        plan = prepared.planner.plan(problem, lengths)
        return plan, prepared.kernels[plan.kernel]

    def _planned_by(
        self, form: AttentionForm, problem: AttentionProblem, bits: Bits
    ) -> tuple[AttentionPlan, Kernel]:
        planner = attention_planner(self._hardware, form, problem.sharing > 1)
        plan = planner.plan_by(problem, replace(bits.kernel, form=form), bits.split_keys)
        return plan, self._kernels.kernel(self._as_alone(plan.kernel))

    def _as_alone(self, kernel: AttentionKernel) -> Source:
        found = self._of_alone.get(kernel)
        if found is None:
            found = self._of_alone[kernel] = attention_source(kernel)
        return found

    def _sources(self, form: AttentionForm, shared: bool) -> dict[AttentionKernel, Source]:
        """Returns the sources of all kernels that a plan may choose."""
        found = self._written.get((form, shared))
        if found is None:
            kernels = attention_planner(self._hardware, form, shared).kernels
            found = {kernel: attention_source(kernel) for kernel in kernels}
            self._written[form, shared] = found
        return found

    def _prepare(self, form: AttentionForm, shared: bool) -> _Prepared:
        """Returns the planner and all kernels of a form; compiles them on the first call."""
        found = self._prepared.get((form, shared))
        if found is None:
            sources = self._sources(form, shared)
            self._kernels.prepare(list(sources.values()))
            kernels = {kernel: self._kernels.kernel(source) for kernel, source in sources.items()}
            planner = attention_planner(self._hardware, form, shared)
            found = self._prepared[form, shared] = _Prepared(planner, kernels)
        return found

    def _bound(self, arrays: list[Tensor], how: How) -> Iterator[BoundKernel]:
        call, requests = self._call(arrays, how), how.requests
        plan, kernel, argument = call.plan, call.plan.kernel, call.kernel.argument
        mask, sinks = _optional_numbers(arrays, how.softmax)
        names = ["q", "k", "v", "out", *["mask"] * (mask is not None)]
        names += ["sinks"] * (sinks is not None)
        scratch = (plan.workspace_floats, plan.arrivals) if kernel.split else (0, 0)

        def late() -> tuple[Tensor, ...]:
            uploaded = () if requests is None else self._upload(requests)
            return (*uploaded, *(self._scratch.take(*scratch) if kernel.split else ()))

        depends = late if kernel.split or requests is not None else None
        for offsets in call.offsets:
            moved_to = map(moved, arrays, offsets)
            # Booleans are read as bytes.
            whole = {
                name: x.view(torch.uint8) if x.dtype == torch.bool else x
                for name, x in zip(names, moved_to, strict=True)
            }
            values = {name: argument(x) for name, x in whole.items()}
            for name, geometry in call.described.items():
                values[name] = argument(whole[name[0]], geometry)
            arguments = [*(values.get(name, LATE) for name in kernel.pointers), *call.numbers]
            yield BoundKernel(call.kernel, plan.programs, arguments, depends, scratch)

    def _upload(self, requests: Requests) -> tuple[Tensor, Tensor]:
        """Returns offsets on the device. They are kept by stream, where the copy precedes launches.

        Raises:
            UnsupportedKernelError: the stream is captured in a CUDA graph.
        """
        if is_capturing(self.device):
            raise UnsupportedKernelError(
                "requests of unequal length cannot be captured in a CUDA graph: their offsets are "
                "copied from the host; attend them one by one, or as a batch with a mask"
            )
        stream = current_stream(self.device)
        found = self._uploads.get((stream, requests))
        if found is None:
            rows, keys = (
                torch.tensor(each, dtype=torch.int32).to(self.device) for each in requests
            )
            found = (rows, keys)
            self._uploads.add((stream, requests), found)
        return found


def _optional_numbers(
    arrays: Sequence[Tensor], softmax: AttentionSoftmax
) -> tuple[int | None, int | None]:
    """The numbers of the mask and of the sinks among the arrays, after q, k, v and the result."""
    last = len(arrays) - 1
    return 4 if last > 3 + softmax.sinks else None, last if softmax.sinks else None


def _readable(given: list[Tensor], softmax: AttentionSoftmax) -> list[Tensor]:
    """Returns operands and a result that kernels can access: the given ones, or copies."""
    arrays = list(map(in_rows, given[:3]))
    out = given[3]
    if out.stride(-1) != 1:
        out = torch.empty(out.shape, dtype=out.dtype, device=out.device)
    mask, _ = _optional_numbers(given, softmax)
    optional = [readable_mask(x) if i == mask else x for i, x in enumerate(given[4:], 4)]
    return [*arrays, out, *optional]


def _pieces(arrays: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yields operands cut along the columns of values, at most `MAX_EXTENT` at a time."""
    q, k, v, out, *masks = arrays
    columns = v.shape[-1]
    if columns <= MAX_EXTENT:
        yield arrays
        return
    for first in range(0, columns, MAX_EXTENT):
        part = slice(first, min(first + MAX_EXTENT, columns))
        yield [q, k, v[..., part], out[..., part], *masks]


def _lengths(offsets: Sequence[int]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in pairwise(offsets))
