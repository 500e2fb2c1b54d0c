"""`attention` of arrays: one model of a single node for each kind of attention."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.caching import RecentlyUsed
from ftuner.core.dim import symbol
from ftuner.core.dtype import BOOL, DType
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph
from ftuner.runtime.backend import Backend
from ftuner.runtime.cpu.arrays import Array, as_array, dtype_of, given_back, writable
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.model import Model
from ftuner.runtime.ops.attention_operands import (
    Extents,
    check_attended,
    check_mask,
    checked_scale,
    extents_of,
    requests_of,
)
from ftuner.runtime.ops.operands import same_dtype

MAX_MODELS = 64
"""Models that are kept, one for each dtype, scale and kind of mask."""


class _Kind(NamedTuple):
    """What a model is compiled for; extents are symbols in it."""

    dtype: DType
    scale: float
    causal: bool
    mask: DType | None
    spread: tuple[bool, ...]
    """Whether the mask is broadcast, along each of: batch, key heads, query heads that share a key
    head, rows, keys."""


class Attention:
    """Attention of arrays on one back end, by models that are compiled on first use. Safe to use
    from several threads."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._models: RecentlyUsed[_Kind, Model] = RecentlyUsed(MAX_MODELS)
        self._lock = fork_safe_lock()

    def __call__(
        self, q: object, k: object, v: object, mask: object | None = None, causal: bool = False,
        scale: float | None = None, q_offsets: object | None = None,
        k_offsets: object | None = None, out: object | None = None,
    ) -> Any:  # fmt: skip
        """`ftuner.attention`, of arrays and tensors."""
        result = self._computed(q, k, v, mask, causal, scale, q_offsets, k_offsets, out)
        return given_back(result, out, q, k, v)

    def _computed(
        self, q: object, k: object, v: object, mask: object | None, causal: bool,
        scale: float | None, q_offsets: object | None, k_offsets: object | None,
        out: object | None,
    ) -> Array:  # fmt: skip
        """The result as an array."""
        arrays = as_array(q, "q"), as_array(k, "k"), as_array(v, "v")
        dtype, *_ = (dtype_of(x, name) for x, name in zip(arrays, "qkv", strict=True))
        for x, name in zip(arrays, "qkv", strict=True):
            same_dtype(arrays[0], x, name)
        extents = extents_of(*(x.shape for x in arrays))
        number = checked_scale(scale, extents.depth, dtype)
        target = None if out is None else writable(out)
        if target is not None:
            check_attended(target, extents, arrays[0])
        given = None
        if mask is not None:
            given = as_array(mask, "mask")
            check_mask(given, np.bool_, extents, arrays[0])
        if q_offsets is None and k_offsets is None:
            found = self._run(arrays, given, bool(causal), number, extents)
        else:
            requests = requests_of(q_offsets, k_offsets, mask is not None, extents)
            # A request may read memory that an earlier one writes.
            if target is None or any(np.may_share_memory(target, x) for x in arrays):
                found = allocated(extents.result, arrays[0].dtype)
            else:
                found = target
            for (first, last), (begin, end) in zip(
                pairwise(requests.rows), pairwise(requests.keys), strict=True
            ):
                own = arrays[0][:, first:last], arrays[1][:, begin:end], arrays[2][:, begin:end]
                part = extents._replace(rows=last - first, keys=end - begin)
                found[:, first:last] = self._run(own, None, bool(causal), number, part)
        if target is None or found is target:
            return found
        target[...] = found
        return target

    def _run(
        self, arrays: tuple[Array, ...], mask: Array | None, causal: bool, scale: float,
        extents: Extents,
    ) -> Array:  # fmt: skip
        q, k, v = arrays
        batch, kv_heads, sharing = math.prod(extents.batch), extents.kv_heads, extents.sharing
        feeds = {
            "q": q.reshape(batch, kv_heads, sharing, *q.shape[-2:]),
            "k": k.reshape(batch, kv_heads, 1, *k.shape[-2:]),
            "v": v.reshape(batch, kv_heads, 1, *v.shape[-2:]),
        }
        kind = _Kind(dtype_of(q, "q"), scale, causal, None, ())
        if mask is not None:
            feeds["mask"] = mask = _grouped(mask, extents)
            full = (*feeds["q"].shape[:-1], extents.keys)
            spread = tuple(n != whole for n, whole in zip(mask.shape, full, strict=True))
            kind = kind._replace(mask=BOOL if mask.dtype == np.bool_ else kind.dtype, spread=spread)
        (found,) = self._model(kind).run(feeds)
        result: Array = found.reshape(extents.result)
        return result

    def _model(self, kind: _Kind) -> Model:
        found = self._models.get(kind)
        if found is None:
            with self._lock:
                found = self._models.get(kind)
                if found is None:
                    found = Model(_graph(kind), self._backend)
                    self._models.add(kind, found)
        return found


def _grouped(mask: Array, extents: Extents) -> Array:
    """A mask with the axes of a model: batch, key heads, query heads that share one, rows, keys."""
    whole: Array = mask.reshape((1,) * (len(extents.scores) - mask.ndim) + mask.shape)
    batch, (heads, *inner) = whole.shape[:-3], whole.shape[-3:]
    if math.prod(batch) != 1:
        whole = np.broadcast_to(whole, (*extents.batch, heads, *inner))
    apart = (extents.kv_heads, extents.sharing) if heads != 1 else (1, 1)
    return whole.reshape(math.prod(whole.shape[:-3]), *apart, *inner)


def _graph(kind: _Kind) -> Graph:
    """A graph with one attention, for any extents."""
    builder = Builder()
    batch, heads, sharing = symbol("batch"), symbol("heads"), symbol("sharing")
    rows, keys, depth, columns = symbol("rows"), symbol("keys"), symbol("depth"), symbol("columns")
    inputs = [
        builder.input("q", kind.dtype, (batch, heads, sharing, rows, depth)),
        builder.input("k", kind.dtype, (batch, heads, 1, keys, depth)),
        builder.input("v", kind.dtype, (batch, heads, 1, keys, columns)),
    ]
    if kind.mask is not None:
        full = (batch, heads, sharing, rows, keys)
        shape = tuple(1 if one else n for one, n in zip(kind.spread, full, strict=True))
        inputs.append(builder.input("mask", kind.mask, shape))
    q, k, v, *masks = inputs
    turned = builder.add("transpose", k, perm=(0, 1, 2, 4, 3))
    softmax = AttentionSoftmax(kind.scale, keys - rows if kind.causal else None, safe=True)
    found = builder.add("attention", q, turned, v, *masks, **vars(softmax))
    return builder.graph(inputs, [("result", found)])
