"""Attention kernels in Triton's interpreter, next to attention in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.codegen.triton.gluon_interpreting import Interpreted
from tests.gpu_kernels import SUMS_IN_FLIGHT
from tests.runtime.cpu.attention_cases import expected_of
from triton.tools.tensor_descriptor import TensorDescriptor

from ftuner.codegen.triton.source import load
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import BFLOAT16, BOOL, FLOAT16, FLOAT32, DType
from ftuner.core.gpu.attention import (
    AttentionCall,
    AttentionForm,
    AttentionKernel,
    AttentionMask,
    AttentionTile,
)
from ftuner.planner.gpu.plan import AttentionPlan, AttentionProblem
from ftuner.schedules.attention.gpu_kernel import attention_source

TORCH_DTYPES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16, FLOAT32: torch.float32}
PLAIN = AttentionSoftmax()
SCALE = 0.3
SCALED = AttentionSoftmax(SCALE)
TILE = AttentionTile(16, 16, 4, 2)
EXTENTS = (
    # Batch, heads, sharing, rows, keys, depth, columns.
    (1, 1, 1, 1, 1, 1, 1), (2, 3, 1, 5, 7, 13, 11), (1, 1, 2, 1, 64, 16, 16),
    (2, 1, 1, 17, 1, 3, 5), (1, 1, 1, 67, 53, 8, 33), (1, 2, 3, 16, 16, 32, 1),
    (2, 1, 5, 2, 97, 7, 24), (1, 1, 1, 4, 0, 5, 6), (0, 2, 1, 3, 4, 5, 6), (1, 2, 1, 0, 4, 5, 6),
)  # fmt: skip
SENTINEL = 7.0
"""What results hold before a launch, and what must not be left of it."""


class Operands(NamedTuple):
    """q (batch, heads, sharing, rows, depth), k and v (batch, heads, keys, ...), and a mask that
    broadcasts to (batch, heads, sharing, rows, keys); sinks broadcast to (..., rows, 1)."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    @property
    def problem(self) -> AttentionProblem:
        batch, heads, sharing, rows, depth = self.q.shape
        return AttentionProblem(
            batch, heads, sharing, rows, self.k.shape[2], depth, self.v.shape[3]
        )


def random(seed: int, shape: Sequence[int], dtype: DType = FLOAT32) -> torch.Tensor:
    found = np.random.default_rng(seed).uniform(-1, 1, tuple(shape))
    return torch.from_numpy(found).to(TORCH_DTYPES[dtype])


def operands_of(
    extents: tuple[int, ...], dtype: DType = FLOAT32, mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> Operands:  # fmt: skip
    """Of (batch, heads, sharing, rows, keys, depth, columns)."""
    b, h, g, s, t, d, e = extents
    shapes = ((b, h, g, s, d), (b, h, t, d), (b, h, t, e))
    q, k, v = (random(seed, shape, dtype) for seed, shape in enumerate(shapes))
    return Operands(q, k, v, mask, sinks)


def kernel_of(
    operands: Operands, dtype: DType = FLOAT32, tile: AttentionTile = TILE, packed: bool = False,
    split: bool = False, **form: Any,
) -> AttentionKernel:  # fmt: skip
    """A kernel of small tiles for such operands, which need not be aligned."""
    problem = operands.problem
    form = {"aligned": False, **form}
    if operands.mask is not None and "mask" not in form:
        boolean = operands.mask.dtype == torch.bool
        form["mask"] = AttentionMask(BOOL if boolean else dtype)
    made = AttentionForm.over(dtype, dtype.name, problem.depth, problem.columns, **form)
    return AttentionKernel(made, tile, packed, split, sums_in_flight=SUMS_IN_FLIGHT)


class Launcher:
    """A kernel with its workspace and counters, which stay from launch to launch."""

    def __init__(self, kernel: AttentionKernel, l2_heads: int = 2, split_keys: int = 1) -> None:
        self.kernel, self.l2_heads, self.split_keys = kernel, l2_heads, split_keys
        source = attention_source(kernel)
        self.function = Interpreted(source) if kernel.tile.specialised else load(source)
        self.arrivals = torch.zeros(0, dtype=torch.int32)

    def __call__(
        self, operands: Operands, softmax: AttentionSoftmax = PLAIN, blind: float | None = None,
        problem: AttentionProblem | None = None, out: torch.Tensor | None = None,
        offsets: dict[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """The result. `problem` and `offsets` are given for requests of unequal length."""
        kernel, (q, k, v, mask, sinks) = self.kernel, operands
        past = softmax.causal if isinstance(softmax.causal, int) else 0
        problem = (problem or operands.problem)._replace(past=past)
        plan = AttentionPlan(problem, kernel, self.l2_heads, self.split_keys)
        if out is None:
            out = torch.full((*q.shape[:-1], v.shape[-1]), SENTINEL, dtype=q.dtype)
        if blind is None:
            blind = 0.0 if softmax.safe or softmax.hides_nan else math.nan
        described = kernel.form.loads == "descriptors"
        strides = [*q.stride()[:4]]
        for x in (k, v):
            steps = [int(n > 1) for n in x.shape[:2]] if described else x.stride()[:2]
            strides += [*steps, x.stride()[2]]
        strides += [*out.stride()[:4]]
        if mask is not None:
            mask = mask.expand(*q.shape[:-1], problem.keys) if offsets is None else mask
            strides += mask.stride()
        else:
            strides += [0] * 5
        if sinks is not None:
            sinks = sinks.expand(*q.shape[:-1], 1)
            strides += sinks.stride()[:4]
        call = AttentionCall(
            problem.batch, problem.heads, problem.sharing, problem.rows, problem.keys,
            problem.depth, problem.columns, past, plan.tiles, self.l2_heads, self.split_keys,
            softmax.inner_scale, softmax.softcap, softmax.hidden, blind,
            0.0 if softmax.hides_nan else math.nan, *strides,
        )  # fmt: skip
        arrays: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out, **(offsets or {})}
        if described:
            for name, x, blocks in (
                ("k", k, kernel.form.depth_blocks), ("v", v, kernel.form.column_blocks)
            ):  # fmt: skip
                for suffix, size in zip(("", "_rest"), blocks, strict=False):
                    block = [1, 1, kernel.tile.bk, size]
                    made = TensorDescriptor(x, list(x.shape), list(x.stride()), block)
                    arrays[name + suffix] = made
        if mask is not None:
            arrays["mask"] = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
        arrays["sinks"] = sinks
        # Nothing of what a launch finds in the workspace may reach a result.
        arrays["workspace"] = torch.full((max(plan.workspace_floats, 1),), math.nan)
        if len(self.arrivals) != plan.arrivals:
            self.arrivals = torch.zeros(plan.arrivals, dtype=torch.int32)
        arrays["arrivals"] = self.arrivals
        if plan.programs:
            self.function[(plan.programs,)](*(arrays[name] for name in kernel.pointers), *call)
        assert not self.arrivals.any()
        return out


def assert_attention(
    found: torch.Tensor, operands: Operands, softmax: AttentionSoftmax = PLAIN
) -> None:
    """Scores and sums are of float32; weights and results are rounded to the operands' dtype, and
    cut to bfloat16 by the interpreter."""
    q, k, v, mask, sinks = operands
    wide = [x.to(torch.float32).numpy() for x in (q, k, v)]
    given = None
    if mask is not None:
        given = mask.numpy() if mask.dtype == torch.bool else mask.to(torch.float32).numpy()
    expected, allowed = expected_of(
        wide[0], wide[1][:, :, None].swapaxes(-1, -2), wide[2][:, :, None], given, softmax,
        None if sinks is None else sinks.numpy(),
    )  # fmt: skip
    if q.dtype != torch.float32:
        most = float(np.max(np.abs(wide[2][np.isfinite(wide[2])]), initial=0.0))
        allowed += 4 * torch.finfo(q.dtype).eps * most
    result = found.to(torch.float64).numpy()
    assert found.dtype == q.dtype
    assert result.shape == expected.shape
    unknown = np.isnan(expected)
    assert np.array_equal(np.isnan(result), unknown)
    error = np.abs(result - expected)[~unknown]
    assert np.all(error <= allowed), (q.shape, k.shape, v.shape, error.max(), allowed)


def run(operands: Operands, softmax: AttentionSoftmax = SCALED, **options: Any) -> Any:
    """What a kernel of small tiles gives, told nothing of its extents."""
    l2_heads, split_keys = options.pop("l2_heads", 2), options.pop("split_keys", 1)
    if softmax.causal is not None:
        options.setdefault("causal", "first")
    dtype = next(d for d, t in TORCH_DTYPES.items() if t == operands.q.dtype)
    kernel = kernel_of(operands, dtype, split=split_keys > 1, **options)
    return Launcher(kernel, l2_heads, split_keys)(operands, softmax)


def check(operands: Operands, softmax: AttentionSoftmax = SCALED, **options: Any) -> None:
    assert_attention(run(operands, softmax, **options), operands, softmax)


def masks_of(extents: tuple[int, ...], axes: tuple[int, ...], dtype: DType) -> Any:
    """Some of it hides; the first key of each row is seen where keys differ."""
    shape = [n if axis in axes else 1 for axis, n in enumerate(extents[:5])]
    shown = torch.from_numpy(np.random.default_rng(7).random(shape) < 0.7)
    shown[..., :1] = True
    if dtype == BOOL:
        return shown
    return torch.where(shown, random(9, shape, dtype), torch.finfo(TORCH_DTYPES[dtype]).min)
