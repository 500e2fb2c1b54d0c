"""`Dense` on a GPU: a layer with its weight on the device."""

from __future__ import annotations

import math

import torch

from ftuner.core.gpu.tile import ALIGNMENT_BYTES, common_alignment
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import (
    Tensor,
    as_tensor,
    copied_bytes,
    matrix_dtype,
    overlap,
    writable,
)
from ftuner.runtime.gpu.call_cache import CallCache, call_key
from ftuner.runtime.gpu.operands import Product, alignment_of, order_of
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.ops.layer import BIAS, RESIDUAL, Activation, Layer
from ftuner.runtime.ops.operands import same_dtype

MAX_CALLS = 256
"""Calls that each layer keeps; see `CallCache`."""


class Dense(Layer):
    """A layer of tensors on one GPU. The weight is copied once, with rows at multiples of 16 bytes,
    and tiles read it in place. Calls do not compile while torch's setting of tf32 stays the same:
    arrays with other strides or at less aligned addresses than the constructor compiles kernels for
    are copied."""

    def __init__(
        self,
        weight: object,
        bias: object | None = None,
        activation: Activation = None,
        residual: bool = False,
        *,
        session: GpuSession,
    ) -> None:
        """Copies the weight and compiles the layer's kernels; see `ftuner.Dense`."""
        w = as_tensor(weight, "weight")
        matrix_dtype(w, "weight")
        self._products = session.products
        self._operands: dict[str, Tensor] = {}
        if bias is not None:
            given = as_tensor(bias, "bias", w.device)
            same_dtype(w, given, "bias")
            self._operands[BIAS.name] = given.detach().clone()
        kept = self._operands.get(BIAS.name)
        self._describe(w, None if kept is None else kept.shape, activation, residual)
        self._weight = _with_aligned_rows(w.detach())
        self._products.ready(self._weight.mT, self.epilogue)
        self._cache = CallCache(MAX_CALLS)

    def weights(self) -> tuple[Tensor, Tensor | None]:
        bias = self._operands.get(BIAS.name)
        return self._weight.clone(), None if bias is None else bias.clone()

    def __call__(
        self, x: object, residual: object | None = None, out: object | None = None
    ) -> Tensor:
        tensors = [y for y in (x, residual, out) if y is not None]
        key = call_key((residual is None, out is None), tensors)
        found = self._cache.again(key, out)
        if found is not None:
            return found
        device = self._weight.device
        given = as_tensor(x, "x", device)
        shape = self._result_shape(given, residual is not None)
        count = math.prod(shape[:-1])
        extra = dict(self._operands)
        originals = [given, *extra.values()]
        if residual is not None:
            added = as_tensor(residual, "residual", device)
            same_dtype(given, added, "residual")
            if tuple(added.shape) != shape:
                raise ShapeError(f"residual is {tuple(added.shape)}; expected {shape}")
            extra[RESIDUAL.name] = _readable(added.reshape(count, self.out_features))
            originals.append(added)
        if out is None:
            result = torch.empty(shape, dtype=given.dtype, device=device)
        else:
            result = writable(out, "out", device)
            self._check_out(result, shape)
        if result.numel():
            rows = _readable(given.reshape(count, self.in_features))
            others = [rows, *extra.values()]
            target = result
            in_place = result.is_contiguous() and _has_kernels(result.view(count, -1))
            if not in_place or any(overlap(result, y) for y in others):
                target = torch.empty(shape, dtype=given.dtype, device=device)
            matrix = target.view(count, self.out_features)
            product = Product(rows, self._weight.mT, matrix, self.epilogue, extra)
            launches = self._products.launch(product)
            if target is not result:
                result.copy_(target)
            elif not copied_bytes(others, originals):
                self._cache.keep(key, tensors, result, launches)
        return result


def _has_kernels(rows: Tensor) -> bool:
    """Whether `Products.ready` compiles kernels for rows of this alignment."""
    contiguous = common_alignment(rows.shape[-1] * rows.element_size())
    by_rows = order_of(rows, -1) == "k"
    return by_rows and alignment_of(rows, -1) in (contiguous, ALIGNMENT_BYTES)


def _readable(rows: Tensor) -> Tensor:
    """Returns rows that there are kernels for: the given ones, or a copy."""
    if _has_kernels(rows):
        return rows
    return rows.clone(memory_format=torch.contiguous_format)


def _with_aligned_rows(weight: Tensor) -> Tensor:
    """Returns a copy whose rows begin at multiples of `ALIGNMENT_BYTES`."""
    rows, columns = weight.shape
    granule = ALIGNMENT_BYTES // weight.element_size()
    padded = -(-columns // granule) * granule
    kept = torch.empty((rows, padded), dtype=weight.dtype, device=weight.device)
    kept[:, :columns] = weight
    return kept[:, :columns]
