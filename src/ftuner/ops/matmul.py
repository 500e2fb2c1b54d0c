"""`matmul`: products of arrays of any shape and stride, without packing beforehand."""

from __future__ import annotations

from typing import Any, overload

import numpy.typing as npt
from numpy import ndarray

from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.flags import checked_flag
from ftuner.runtime.ops.operand_types import AnyTensor, Float


@overload
def matmul(
    a: npt.NDArray[Float], b: npt.NDArray[Float], out: npt.NDArray[Float] | None = None, *,
    accumulate: bool = False,
) -> npt.NDArray[Float]: ...  # fmt: skip
@overload
def matmul(
    a: AnyTensor, b: AnyTensor, out: AnyTensor | None = None, *, accumulate: bool = False
) -> AnyTensor: ...
def matmul(a: object, b: object, out: object | None = None, *, accumulate: bool = False) -> Any:
    """The matrix product of `a` and `b`, as `numpy.matmul` defines it.

    Args:
        a: `(..., m, k)` or `(k,)`, float32 or float64; or a torch tensor, on a GPU float16,
            bfloat16 or float32. All operands are on one device. A GPU multiplies float32 as it is,
            or as tf32 if `torch.set_float32_matmul_precision` allows it.
        b: `(..., k, n)` or `(k,)`, of the same dtype. Batch axes broadcast. Transposed and strided
            views are read in place if a uKernel can, else packed block by block.
        out: the array to write, with the product's shape and dtype and any strides. It may overlap
            the operands.
        accumulate: whether to add to `out` instead of replacing its elements.

    Returns:
        `(..., m, n)`: `out` if given, else a new NumPy array, or a tensor where an operand is one.
        A GPU writes on its current stream. The plan chooses the order of summation: an element
        differs from the exact one by at most `k` unit roundoffs (of float32, on a GPU) times the
        sum of absolute products.

    Raises:
        ShapeError: extents that do not fit.
        DTypeError: an unsupported dtype, or operands of different ones.
        OperandError: an operand is not an array, or a tensor that needs a gradient; `out` is
            read-only; operands are on several devices.
        ConfigurationError: `accumulate` is not a boolean.
        HardwareError: a GPU that kernels cannot run on.
    """
    # A shortcut for NumPy arrays: one more Python frame would be measurable.
    arrays = type(a) is ndarray and type(b) is ndarray
    backend = default_backend() if arrays else backend_for(a, b)
    if accumulate is not False:
        accumulate = checked_flag(accumulate, "accumulate")
    return backend.matmul(a, b, out, accumulate)
