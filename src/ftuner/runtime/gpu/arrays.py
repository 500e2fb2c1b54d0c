"""Tensors at the boundary: torch's, on one GPU, read and written in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ftuner.core.dtype import ADDRESSABLE_BYTES, GPU_DTYPES, DType
from ftuner.core.gpu.tile import Multiply, common_alignment
from ftuner.errors import AllocationError, DTypeError, OperandError
from ftuner.runtime.ops.operands import overlaps_itself

Tensor = torch.Tensor
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip
"""torch's element type by the name of ours."""
_MATRIX_DTYPES = {TORCH_DTYPES[name]: dtype for name, dtype in GPU_DTYPES.items()}


def allocated(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor with undefined elements.

    Raises:
        AllocationError: the device does not have the memory.
    """
    size = math.prod(shape) * dtype.itemsize
    what = f"no memory on {device} for a tensor of {tuple(shape)} elements of {dtype}"
    if size > ADDRESSABLE_BYTES:
        raise AllocationError(f"{what}: it exceeds the address space")
    try:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    except RuntimeError as error:
        # On a CPU, where kernels are interpreted, torch raises a plain RuntimeError.
        if isinstance(error, torch.OutOfMemoryError) or device.type == "cpu":
            raise AllocationError(f"{what}: {error}") from error
        raise


def as_tensor(value: object, name: str, device: torch.device | None = None) -> Tensor:
    """Returns an operand that is a valid tensor.

    Raises:
        OperandError: not a tensor, on another device than `device`, not strided, or it requires a
            gradient.
    """
    if not isinstance(value, torch.Tensor):
        raise OperandError(
            f"{name} is a {type(value).__name__}; where one operand is on a GPU, all of them are "
            "tensors on that GPU"
        )
    if device is not None and value.device != device:
        raise OperandError(f"{name} is on {value.device}, other operands on {device}; move one")
    if value.layout != torch.strided:
        raise OperandError(f"{name} is {value.layout}; expected a strided tensor")
    if value.requires_grad and torch.is_grad_enabled():
        raise OperandError(f"{name} needs a gradient, which ftuner does not compute; detach it")
    return value.resolve_conj().resolve_neg() if value.is_conj() or value.is_neg() else value


def writable(value: object, name: str, device: torch.device) -> Tensor:
    """Returns an operand that can be written to.

    Raises:
        OperandError: as for `as_tensor`, or two of its elements have one address.
    """
    found = as_tensor(value, name, device)
    if overlaps_itself(found.shape, found.stride()):
        raise OperandError(f"{name} has several elements at one address; clone it")
    return found


def matrix_dtype(tensor: Tensor, name: str) -> DType:
    """Returns the element type of a tensor that is multiplied.

    Raises:
        DTypeError: a GPU does not multiply elements of this type.
    """
    found = _MATRIX_DTYPES.get(tensor.dtype)
    if found is None:
        raise DTypeError(
            f"{name} has dtype {tensor.dtype}; supported on a GPU are {', '.join(GPU_DTYPES)}"
        )
    return found


def allows_tf32() -> bool:
    """Whether torch is set to multiply float32 as tf32."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    if precision is None:
        # Before torch 2.9.
        return torch.get_float32_matmul_precision() != "highest"
    return bool(precision == "tf32")


@contextmanager
def tf32_set(allowed: bool) -> Iterator[None]:
    """Sets whether torch multiplies float32 as tf32, and restores the setting afterwards."""
    matmul: Any = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        before = matmul.fp32_precision
        matmul.fp32_precision = "tf32" if allowed else "ieee"
        try:
            yield
        finally:
            matmul.fp32_precision = before
        return
    legacy = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(legacy)


def multiply_of(dtype: DType, tf32: bool) -> Multiply:
    """Returns how elements are multiplied: as their own type, or float32 as tf32 if allowed."""
    if dtype.name != "float32":
        return dtype.name  # type: ignore[return-value]
    return "tf32" if tf32 else "float32"


def alignment(matrices: Sequence[Tensor]) -> int:
    """Returns the common alignment of addresses and strides of matrices, except that of the
    contiguous axis."""
    found = []
    for x in matrices:
        found.append(x.data_ptr())
        for axis, (extent, stride) in enumerate(zip(x.shape, x.stride(), strict=True), -x.dim()):
            contiguous = axis >= -2 and stride == 1
            if extent > 1 and not contiguous:
                found.append(stride * x.element_size())
    return common_alignment(*found)


def overlap(x: Tensor, y: Tensor) -> bool:
    """Whether the address ranges of two tensors overlap."""
    (x_first, x_end), (y_first, y_end) = address_range(x), address_range(y)
    return x_first < y_end and y_first < x_end


def address_range(x: Tensor) -> tuple[int, int]:
    """Returns the address of a tensor's first byte, and that after its last byte."""
    first = int(x.data_ptr())
    if not x.numel():
        return first, first
    reach = sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride(), strict=True))
    return first, first + (reach + 1) * x.element_size()


def copied_bytes(tensors: Sequence[Tensor], originals: Sequence[Tensor]) -> int:
    """Returns the bytes of those tensors that do not share the memory of their originals."""
    return sum(
        x.untyped_storage().nbytes()
        for x, original in zip(tensors, originals, strict=True)
        if x.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()
    )
