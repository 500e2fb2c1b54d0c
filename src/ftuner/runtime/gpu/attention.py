"""`attention` of tensors on a GPU."""

from __future__ import annotations

import torch

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import FLOAT32
from ftuner.runtime.gpu.arrays import Tensor, as_tensor, matrix_dtype, overlap, writable
from ftuner.runtime.gpu.call_cache import CallCache, call_key
from ftuner.runtime.ops.attention_operands import (
    Extents,
    check_attended,
    check_mask,
    checked_scale,
    extents_of,
    requests_of,
)
from ftuner.runtime.ops.operands import same_dtype
from ftuner.schedules.attention.gpu_binding_launches import Attentions, How, Operands

_SIMPLE = (type(None), bool, int, float)
"""Immutable types of options, which may be part of a key."""


class Attention:
    """Attention on one GPU. Safe to use from several threads."""

    def __init__(self, attentions: Attentions) -> None:
        self._attentions = attentions
        self._cache = CallCache()

    def __call__(
        self, q: object, k: object, v: object, mask: object | None = None, causal: bool = False,
        scale: float | None = None, q_offsets: object | None = None,
        k_offsets: object | None = None, out: object | None = None,
    ) -> Tensor:  # fmt: skip
        """`ftuner.attention`, for tensors on the device of the kernels."""
        key, options = None, (causal, scale, q_offsets, k_offsets)
        given = [x for x in (q, k, v, mask, out) if x is not None]
        if all(map(_is_simple, options)):
            key = call_key((*options, mask is None, out is None), given)
        found = self._cache.again(key, out)
        if found is not None:
            return found
        device = self._attentions.device
        tensors = as_tensor(q, "q", device), as_tensor(k, "k", device), as_tensor(v, "v", device)
        for x, name in zip(tensors, "qkv", strict=True):
            matrix_dtype(x, name)
            same_dtype(tensors[0], x, name)
        extents = extents_of(*(x.shape for x in tensors))
        number = checked_scale(scale, extents.depth, FLOAT32)
        shown = None
        if mask is not None:
            shown = as_tensor(mask, "mask", device)
            check_mask(shown, torch.bool, extents, tensors[0])
        requests = None
        if q_offsets is not None or k_offsets is not None:
            requests = requests_of(q_offsets, k_offsets, shown is not None, extents)
        if out is None:
            result = torch.empty(extents.result, dtype=tensors[0].dtype, device=device)
        else:
            result = writable(out, "out", device)
            check_attended(result, extents, tensors[0])
        if 0 in extents.result:
            return result
        read = [*tensors, *([shown] if shown is not None else [])]
        target = result
        if out is not None and any(overlap(result, x) for x in read):
            target = torch.empty(result.shape, dtype=result.dtype, device=device)
        softmax = AttentionSoftmax(number, safe=True)
        how = How.of(softmax, extents.keys - extents.rows if causal else None)
        if requests is not None:
            how = How(softmax, "last" if causal else "none", 0, how.tf32, requests)
        elif shown is not None:
            shown = _apart(shown.expand(extents.scores), extents)
        operands = Operands(*_grouped(tensors, target, extents), shown)
        launches = self._attentions.run(operands, how)
        if target is not result:
            result.copy_(target)
        else:
            self._cache.keep(key, given, result, launches)
        return result


def _is_simple(option: object) -> bool:
    """Whether an option may be part of a key: equal options must mean the same. In offsets only
    integers are allowed, because floats equal to them are refused and lists have no hash."""
    if type(option) is tuple:
        return all(type(n) is int for n in option)
    return type(option) in _SIMPLE


def _apart(x: Tensor, extents: Extents) -> Tensor:
    """Returns heads as two axes: those of keys and values, and those that share them."""
    shape = (*x.shape[:-3], extents.kv_heads, extents.sharing, *x.shape[-2:])
    step = x.stride(-3)
    strides = (*x.stride()[:-3], extents.sharing * step, step, *x.stride()[-2:])
    return x.as_strided(shape, strides)


def _grouped(
    tensors: tuple[Tensor, ...], out: Tensor, extents: Extents
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns q, k transposed, v and the result as `Attentions.run` takes them: with an axis of the
    heads that share keys and values, along which k and v are broadcast."""
    q, k, v = tensors
    spread = [-1] * (k.dim() + 1)
    spread[-3] = extents.sharing
    k, v = (x.unsqueeze(-3).expand(spread) for x in (k, v))
    return _apart(q, extents), k.mT, v, _apart(out, extents)
