"""`grouped_matmul`: products of many pairs of matrices with different extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy.typing as npt

from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.grouped_operands import matched
from ftuner.runtime.ops.operand_types import AnyTensor, Float


@overload
def grouped_matmul(
    a: Sequence[npt.NDArray[Float]] | npt.NDArray[Float],
    b: Sequence[npt.NDArray[Float]] | npt.NDArray[Float],
    out: Sequence[npt.NDArray[Float]] | npt.NDArray[Float] | None = None,
) -> list[npt.NDArray[Float]]: ...
@overload
def grouped_matmul(
    a: Sequence[AnyTensor] | AnyTensor,
    b: Sequence[AnyTensor] | AnyTensor,
    out: Sequence[AnyTensor] | AnyTensor | None = None,
) -> list[AnyTensor]: ...
def grouped_matmul(a: object, b: object, out: object | None = None) -> list[Any]:
    """The products `a[i] @ b[i]` of many pairs of matrices with different extents, such as the
    experts of a mixture or sentences of unequal length.

    On a GPU, groups of one layout (the contiguous axes of a and b, and the alignment of addresses
    and rows) are one launch with one plan. It loads tiles by pointers: the copy engine of newer
    chips would need a descriptor for each matrix. On a CPU the products run one after the other,
    each on all threads.

    Args:
        a: a sequence of `(m_i, k_i)` arrays, or one array of three axes, a group for each index of
            the first; float32 or float64; or torch tensors, on a GPU float16, bfloat16 or float32.
            All operands are on one device. Strides are as for `matmul`.
        b: the same number of `(k_i, n_i)` arrays, of the same dtype. Any extent may be 0; a product
            with `k_i = 0` is zeros.
        out: the same number of `(m_i, n_i)` arrays to write, with any strides. Results do not
            depend on overlap: a result that shares memory with an operand or with another result is
            computed elsewhere and copied, in the order of the groups.

    Returns:
        An `(m_i, n_i)` array for each group: the members of `out` if it is given. A GPU writes on
        its current stream. Without groups the list is empty. Rounding is as for `matmul`.

    Raises:
        ShapeError: sequences of different lengths, members that are not matrices, or extents that
            do not fit; the message names the group.
        DTypeError: an unsupported dtype, or operands of different ones.
        OperandError: an argument is not a sequence, a member is not an array, or a member of `out`
            is read-only; operands are on several devices.
        HardwareError: a GPU that kernels cannot run on.
        UnsupportedKernelError: a CUDA graph is being captured, because each call makes a table on
            the host that the launch reads.
    """
    groups = matched(a, b, out)
    return backend_for(*groups.members).grouped_matmul(groups)
