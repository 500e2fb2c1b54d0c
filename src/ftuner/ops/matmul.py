"""`matmul`: products of arrays as they lie, any shape, nothing packed beforehand."""

from __future__ import annotations

from typing import Any

from numpy import ndarray

from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.flags import checked_flag


def matmul(a: object, b: object, out: object | None = None, *, accumulate: bool = False) -> Any:
    """The matrix product of `a` and `b`, as `numpy.matmul` defines it.

    Args:
        a: `(..., m, k)` or `(k,)`, float32 or float64; or a torch tensor on a GPU, of float16,
            bfloat16 or float32, and then so are all others. float32 is multiplied as it is, or as
            tf32 where `torch.set_float32_matmul_precision` allows that.
        b: `(..., k, n)` or `(k,)`, of the same dtype. Batch axes broadcast. Transposed and strided
            views are read in place where a uKernel can, else packed piece by piece.
        out: where to write, of the product's shape and dtype; any strides. It may overlap the
            operands.
        accumulate: add to `out` instead of replacing what it holds.

    Returns:
        `(..., m, n)`: `out` if given, as a NumPy array, or as a tensor on the GPU, written on its
        current stream. Each element is a dot product summed in an order that depends on the plan:
        it differs from the exact one by at most `k` unit roundoffs (of float32, on a GPU) of the
        sum of absolute products.

    Raises:
        ShapeError: extents that do not fit.
        DTypeError: another dtype, or two of them.
        OperandError: an object that is no array, or an `out` that is read-only; operands on
            several devices.
        ConfigurationError: an `accumulate` that is not a boolean.
        HardwareError: a GPU that kernels cannot run on.
    """
    # NumPy arrays go straight to the CPU: another Python frame would be measurable.
    arrays = type(a) is ndarray and type(b) is ndarray
    backend = default_backend() if arrays else backend_for(a, b)
    if accumulate is not False:
        accumulate = checked_flag(accumulate, "accumulate")
    return backend.matmul(a, b, out, accumulate)
