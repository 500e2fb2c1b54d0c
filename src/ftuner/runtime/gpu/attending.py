"""`attention` of tensors on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from ftuner.core.weighting import Weighting
from ftuner.errors import DTypeError, ShapeError
from ftuner.runtime.arrays import on_gpu
from ftuner.runtime.attention_operands import (
    Extents,
    check_mask,
    checked_scale,
    extents_of,
    requests_of,
)
from ftuner.runtime.gpu.attention import Attentions
from ftuner.runtime.gpu.session import session_of
from ftuner.runtime.gpu.tensors import (
    Tensor,
    as_tensor,
    matrix_dtype,
    overlap,
    same_dtype,
    writable,
)


def attention(q: object, k: object, v: object, **options: Any) -> Tensor:
    """As `ftuner.attention`, of tensors of which at least one is on a GPU.

    Raises:
        HardwareError: a chip that kernels cannot run on.
    """
    given = next(x for x in (q, k, v) if on_gpu(x))
    assert isinstance(given, torch.Tensor)
    return GpuAttending(session_of(given.device).attentions)(q, k, v, **options)


class GpuAttending:
    """Attention on one GPU."""

    def __init__(self, attentions: Attentions) -> None:
        self._attentions = attentions

    def __call__(
        self, q: object, k: object, v: object, mask: object | None = None, causal: bool = False,
        scale: float | None = None, q_offsets: object | None = None,
        k_offsets: object | None = None, out: object | None = None,
    ) -> Tensor:  # fmt: skip
        """As `ftuner.attention`, of tensors on the device of the kernels."""
        device = self._attentions.device
        tensors = as_tensor(q, "q", device), as_tensor(k, "k", device), as_tensor(v, "v", device)
        for x, name in zip(tensors, "qkv", strict=True):
            matrix_dtype(x, name)
            same_dtype(tensors[0], x, name)
        extents = extents_of(*(x.shape for x in tensors))
        number = checked_scale(scale, extents.depth)
        shown = None
        if mask is not None:
            shown = as_tensor(mask, "mask", device)
            if shown.dtype != torch.bool:
                same_dtype(tensors[0], shown, "mask")
            check_mask(shown.shape, extents)
        requests = None
        if q_offsets is not None or k_offsets is not None:
            requests = requests_of(q_offsets, k_offsets, shown is not None, extents)
        result = _result(out, extents, tensors[0])
        if 0 in extents.result:
            return result
        if extents.keys == 0:
            return result.zero_()
        read = [*tensors, *([shown] if shown is not None else [])]
        target = result
        if any(overlap(result, x) for x in read):
            target = torch.empty(result.shape, dtype=result.dtype, device=device)
        arrays = _grouped(tensors, target, extents)
        weighting = Weighting(number, safe=True)
        if requests is not None:
            self._attentions.run_requests(*arrays, requests, weighting, causal)
        else:
            past = extents.keys - extents.rows if causal else None
            if shown is not None:
                shown = _apart(shown.expand(extents.scores), extents)
            self._attentions.run(*arrays, shown, weighting, past)
        if target is not result:
            result.copy_(target)
        return result


def _result(out: object | None, extents: Extents, q: Tensor) -> Tensor:
    """What is written to: `out`, if it fits."""
    if out is None:
        return torch.empty(extents.result, dtype=q.dtype, device=q.device)
    found = writable(out, "out", q.device)
    if tuple(found.shape) != extents.result:
        raise ShapeError(f"out is {tuple(found.shape)}; the result is {extents.result}")
    if found.dtype != q.dtype:
        raise DTypeError(f"out has dtype {found.dtype}, the operands {q.dtype}")
    return found


def _apart(x: Tensor, extents: Extents) -> Tensor:
    """Heads as groups of those that share keys and values."""
    shape = (*x.shape[:-3], extents.kv_heads, extents.sharing, *x.shape[-2:])
    step = x.stride(-3)
    strides = (*x.stride()[:-3], extents.sharing * step, step, *x.stride()[-2:])
    return x.as_strided(shape, strides)


def _grouped(
    tensors: tuple[Tensor, ...], out: Tensor, extents: Extents
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k turned, v and the result, as `Attentions.run` takes them: with an axis of the heads that
    share keys and values, along which these stay."""
    q, k, v = tensors
    if extents.depth == 0:
        # Scores of nothing are zeros, as those of zeros are.
        q, k = (x.new_zeros((*x.shape[:-1], 1)) for x in (q, k))
    spread = [-1] * (k.dim() + 1)
    spread[-3] = extents.sharing
    k, v = (x.unsqueeze(-3).expand(spread) for x in (k, v))
    return _apart(q, extents), k.mT, v, _apart(out, extents)
