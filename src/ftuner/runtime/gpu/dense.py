"""`Dense` on a GPU: a layer whose weight lies there, with the same meaning as on a CPU."""

from __future__ import annotations

import math

import torch

from ftuner.core.expr import operands
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.errors import DTypeError, ExpressionError, OperandError, ShapeError
from ftuner.runtime.cpu.dense import BIAS, RESIDUAL, Activation, layer_epilogue
from ftuner.runtime.gpu.arrays import (
    Tensor,
    as_tensor,
    matrix_dtype,
    overlap,
    same_dtype,
    writable,
)
from ftuner.runtime.gpu.backend import GpuSession, session_of


class GpuDense:
    """`y = activation(x @ weight.T + bias) + residual` of tensors on one GPU.

    The weight is copied once, its rows at multiples of 16 bytes, and read in place by every tile.
    """

    def __init__(
        self,
        weight: object,
        bias: object | None = None,
        activation: Activation = None,
        residual: bool = False,
        *,
        session: GpuSession | None = None,
    ) -> None:
        """Keep a weight and make the layer's kernels ready.

        Args:
            weight: `(out_features, in_features)`, float16, bfloat16 or float32, any strides;
                copied.
            bias: `(out_features,)`, or None; copied.
            activation, residual: as of a layer on a CPU.
            session: the state of the weight's device, to use instead of the process's own.

        Raises:
            ShapeError, DTypeError, OperandError, ExpressionError: arguments that do not fit.
            ConfigurationError: a `residual` that is not a boolean.
            HardwareError: a chip that kernels cannot run on.
        """
        w = as_tensor(weight, "weight")
        matrix_dtype(w, "weight")
        if w.dim() != 2:
            raise ShapeError(f"weight is {tuple(w.shape)}; expected (out_features, in_features)")
        self.out_features, self.in_features = w.shape
        self.dtype = w.dtype
        self._products = (session or session_of(w.device)).products
        self._weight = _with_aligned_rows(w.detach())
        self._operands: dict[str, Tensor] = {}
        if bias is not None:
            given = as_tensor(bias, "bias", w.device)
            same_dtype(w, given, "bias")
            if tuple(given.shape) != (self.out_features,):
                raise ShapeError(f"bias is {tuple(given.shape)}; expected ({self.out_features},)")
            self._operands[BIAS.name] = given.detach().clone()
        self.takes_residual = residual
        self.epilogue = layer_epilogue(bias is not None, activation, residual)
        names = {operand.name for operand in operands(self.epilogue)}
        if not names <= {BIAS.name, RESIDUAL.name}:
            raise ExpressionError(
                f"the epilogue reads {', '.join(names)}; a layer has only bias and residual"
            )
        self._products.ready(self._weight.mT, self.epilogue)

    def __call__(
        self, x: object, residual: object | None = None, out: object | None = None
    ) -> Tensor:
        """Apply the layer, on the current stream of its GPU.

        Args:
            x: `(..., in_features)`, of the weight's dtype, any strides.
            residual: `(..., out_features)`, if and only if the layer was made with `residual=True`.
            out: `(..., out_features)` to write to; made if not given.

        Returns:
            `(..., out_features)`.

        Raises:
            ShapeError, DTypeError, OperandError: arguments that do not fit.
        """
        device = self._weight.device
        given = as_tensor(x, "x", device)
        if given.dtype != self.dtype:
            raise DTypeError(
                f"x has dtype {given.dtype}, the weight {self.dtype}; convert one of them"
            )
        if not given.dim() or given.shape[-1] != self.in_features:
            raise ShapeError(f"x is {tuple(given.shape)}; expected (..., {self.in_features})")
        shape = (*given.shape[:-1], self.out_features)
        if (residual is not None) != self.takes_residual:
            expected = "a residual" if self.takes_residual else "no residual"
            raise OperandError(f"this layer was made to take {expected}")
        extra = dict(self._operands)
        if residual is not None:
            added = as_tensor(residual, "residual", device)
            same_dtype(given, added, "residual")
            if tuple(added.shape) != shape:
                raise ShapeError(f"residual is {tuple(added.shape)}; expected {shape}")
            extra[RESIDUAL.name] = added.reshape(-1, self.out_features)
        if out is None:
            result = torch.empty(shape, dtype=given.dtype, device=device)
        else:
            result = writable(out, "out", device)
            if tuple(result.shape) != shape:
                raise ShapeError(f"out is {tuple(result.shape)}; expected {shape}")
            if result.dtype != given.dtype:
                raise DTypeError(f"out has dtype {result.dtype}, the weight {given.dtype}")
        if result.numel():
            rows = given.reshape(math.prod(shape[:-1]), self.in_features)
            others = [rows, *extra.values()]
            target = result
            if not result.is_contiguous() or any(overlap(result, y) for y in others):
                target = torch.empty(shape, dtype=given.dtype, device=device)
            matrix = target.view(-1, self.out_features)
            self._products.run(rows, self._weight.mT, matrix, self.epilogue, extra)
            if target is not result:
                result.copy_(target)
        return result


def _with_aligned_rows(weight: Tensor) -> Tensor:
    """A copy whose rows begin at multiples of what the widest loads ask for."""
    rows, columns = weight.shape
    granule = ALIGNMENT_BYTES // weight.element_size()
    padded = -(-columns // granule) * granule
    kept = torch.empty((rows, padded), dtype=weight.dtype, device=weight.device)
    kept[:, :columns] = weight
    return kept[:, :columns]
