"""`grouped_matmul`: products of many pairs of matrices, each pair of its own extents."""

from __future__ import annotations

from typing import Any

from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.grouped_operands import matched


def grouped_matmul(a: object, b: object, out: object | None = None) -> list[Any]:
    """The products `a[i] @ b[i]` of many pairs of matrices, each pair of its own extents: experts
    of a mixture, or sentences of unequal length.

    On a GPU, groups that lie alike (along which axes a and b are contiguous, and whether all
    addresses and rows are aligned) are one launch, planned for all of them together. Its tiles come
    by pointers: the copy engine of newer chips would need a descriptor for each matrix. On a CPU
    the products follow each other, each by all threads.

    Args:
        a: a sequence of `(m_i, k_i)`, or an array of three axes, whose first one is walked; float32
            or float64; or torch tensors on a GPU, of float16, bfloat16 or float32, and then so are
            all others. Strides are as for `matmul`.
        b: as many `(k_i, n_i)`, of the same dtype. Any extent may be 0; products of no k are
            zeros.
        out: as many `(m_i, n_i)` to write to; any strides. Operands are read before anything is
            written: what shares memory with them, or with another result, is computed elsewhere
            and copied, in the order of the groups.

    Returns:
        `(m_i, n_i)` for each group, on a GPU written on its current stream; the members of `out` if
        it is given. No groups give an empty list. Rounding is as for `matmul`.

    Raises:
        ShapeError: sequences of several lengths, members that are no matrices, extents that do not
            fit; the message names the group.
        DTypeError: another dtype, or two of them.
        OperandError: what is no sequence, or members that are no arrays, or are read-only where
            they are written; operands on several devices.
        HardwareError: a GPU that kernels cannot run on.
        UnsupportedKernelError: a CUDA graph is being captured: a launch reads a table that is made
            on the host for each call.
    """
    groups = matched(a, b, out)
    return backend_for(*groups.members).grouped_matmul(groups)
