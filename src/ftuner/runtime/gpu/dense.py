"""`Dense` on a GPU: a layer with its weight on the device."""

from __future__ import annotations

import math

import torch

from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.errors import ShapeError
from ftuner.runtime.gpu.arrays import (
    Tensor,
    as_tensor,
    copied_bytes,
    matrix_dtype,
    overlap,
    same_dtype,
    writable,
)
from ftuner.runtime.gpu.call_cache import CallCache, call_key
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.ops.layer import BIAS, RESIDUAL, Activation, Layer

MAX_CALLS = 256
"""Calls that each layer keeps; see `CallCache`."""


class Dense(Layer):
    """A layer of tensors on one GPU. The weight is copied once, with rows at multiples of 16 bytes,
    and tiles read it in place."""

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
        extra = dict(self._operands)
        originals = [given, *extra.values()]
        if residual is not None:
            added = as_tensor(residual, "residual", device)
            same_dtype(given, added, "residual")
            if tuple(added.shape) != shape:
                raise ShapeError(f"residual is {tuple(added.shape)}; expected {shape}")
            extra[RESIDUAL.name] = added.reshape(-1, self.out_features)
            originals.append(added)
        if out is None:
            result = torch.empty(shape, dtype=given.dtype, device=device)
        else:
            result = writable(out, "out", device)
            self._check_out(result, shape)
        if result.numel():
            rows = given.reshape(math.prod(shape[:-1]), self.in_features)
            others = [rows, *extra.values()]
            target = result
            if not result.is_contiguous() or any(overlap(result, y) for y in others):
                target = torch.empty(shape, dtype=given.dtype, device=device)
            matrix = target.view(-1, self.out_features)
            weight = self._weight.mT
            launches = self._products.launch(rows, weight, matrix, self.epilogue, extra)
            if target is not result:
                result.copy_(target)
            elif not copied_bytes(others, originals):
                self._cache.keep(key, tensors, result, launches)
        return result


def _with_aligned_rows(weight: Tensor) -> Tensor:
    """Returns a copy whose rows begin at multiples of `ALIGNMENT_BYTES`."""
    rows, columns = weight.shape
    granule = ALIGNMENT_BYTES // weight.element_size()
    padded = -(-columns // granule) * granule
    kept = torch.empty((rows, padded), dtype=weight.dtype, device=weight.device)
    kept[:, :columns] = weight
    return kept[:, :columns]
