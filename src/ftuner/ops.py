"""The public operators: products, grouped products, attention and layers, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, cast, overload

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.layer import Activation, Layer
from ftuner.runtime.ops.operands import AnyTensor, Float, Offsets, Tensor, checked_flag, matched

if TYPE_CHECKING:
    import torch


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


@overload
def attention(
    q: npt.NDArray[Float], k: npt.NDArray[Float], v: npt.NDArray[Float], *,
    mask: npt.NDArray[np.bool_] | npt.NDArray[Float] | None = None, causal: bool = False,
    scale: SupportsFloat | None = None, q_offsets: Offsets | None = None,
    k_offsets: Offsets | None = None, out: npt.NDArray[Float] | None = None,
) -> npt.NDArray[Float]: ...  # fmt: skip
@overload
def attention(
    q: AnyTensor, k: AnyTensor, v: AnyTensor, *, mask: AnyTensor | None = None,
    causal: bool = False, scale: SupportsFloat | None = None,
    q_offsets: Offsets | AnyTensor | None = None, k_offsets: Offsets | AnyTensor | None = None,
    out: AnyTensor | None = None,
) -> AnyTensor: ...  # fmt: skip
def attention(
    q: object, k: object, v: object, *, mask: object | None = None, causal: bool = False,
    scale: SupportsFloat | None = None, q_offsets: object | None = None,
    k_offsets: object | None = None, out: object | None = None,
) -> Any:  # fmt: skip
    """`softmax(q k' * scale + mask) v` for each head and each row of q.

    Args:
        q: `(..., heads, rows, depth)`, float32 or float64, with any strides; or a torch tensor,
            on a GPU float16, bfloat16 or float32. All operands are on one device.
        k, v: `(..., kv_heads, keys, depth)` and `(..., kv_heads, keys, columns)`, of the same dtype
            and the same axes before the heads. `heads` is a multiple of `kv_heads`:
            `heads / kv_heads` successive heads of q share one head of k and v.
        mask: booleans, True where a key may be seen, or numbers of the same dtype to add;
            broadcast to `(..., heads, rows, keys)`.
        causal: whether row i sees only keys `j <= i + keys - rows`: the last row sees all keys, as
            it must if earlier keys come from a cache.
        scale: factor of the products; by default `1 / sqrt(depth)`.
        q_offsets, k_offsets: for requests of unequal length, concatenated without padding: q is
            `(heads, all rows, depth)`, and so are k and v (use transposed views if rows are the
            first axis). Request i has rows `q_offsets[i]` to `q_offsets[i + 1]` and keys
            `k_offsets[i]` to `k_offsets[i + 1]`; `k_offsets` defaults to `q_offsets`. Integers on
            the host (int32 or int64 as an array), because plans depend on them. A request sees only
            its own keys, and `causal` applies within each request. No mask can be given.
        out: the array to write, with the result's shape and dtype and any strides. It may overlap
            the operands.

    Returns:
        `(..., heads, rows, columns)`: `out` if given, else a new NumPy array, or a tensor where an
        operand is one. A GPU writes on its current stream. A row that sees no key gives zeros.

    Raises:
        ShapeError: extents or offsets that do not fit; on a GPU, a depth above 256.
        DTypeError: an unsupported dtype, or operands of different ones.
        OperandError: an operand is not an array, or `out` is read-only; operands are on several
            devices; offsets are on a GPU, or given together with a mask.
        ConfigurationError: `scale` is not finite in float64 (float64 operands) or float32 (others);
            `causal` is not a boolean.
        HardwareError: a GPU that kernels cannot run on.
        UnsupportedKernelError: `q_offsets` while a CUDA graph is being captured, because they
            are copied from the host.
    """
    return backend_for(q, k, v).attention(
        q, k, v, mask=mask, causal=checked_flag(causal, "causal"), scale=scale,
        q_offsets=q_offsets, k_offsets=k_offsets, out=out,
    )  # fmt: skip


Array = npt.NDArray[np.float32] | npt.NDArray[np.float64]


class Dense(Layer):
    """`y = activation(x @ weight.T + bias) + residual`, for any number of rows of x.

    A layer is on the device of its weight. On a CPU the constructor packs the weight; calls never
    compile, pack or measure. `Dense(...)` returns the layer of the device's back end, which is an
    instance of `Dense`. A layer can be pickled: it is made again where it is loaded, on the same
    kind of device. Nothing changes a layer, so that a copy is the layer itself.
    """

    def __new__(
        cls,
        weight: Array | Tensor,
        bias: Array | Tensor | None = None,
        activation: Activation = None,
        residual: bool = False,
        *,
        width: SupportsIndex | None = None,
    ) -> Dense:
        """Make a layer ready for every number of rows.

        Args:
            weight: `(out_features, in_features)`, float32 or float64; or a torch tensor, on a
                GPU float16, bfloat16 or float32. Any strides; the layer keeps a copy.
            bias: `(out_features,)`, or None; the layer keeps a copy.
            activation: a name in `ftuner.core.expr.ACTIVATIONS`, a function from expression to
                expression, or None.
            residual: whether calls give an array that is added last.
            width: width in vectors of a panel of the packed weight, one of the library's `widths`;
                by default the one with the best estimate. Only on a CPU.

        Raises:
            ShapeError, DTypeError, OperandError, ExpressionError: arguments that do not fit.
            ConfigurationError: a width that the library does not have, or a width on a GPU;
                `residual` is not a boolean.
            HardwareError: a GPU that kernels cannot run on.
        """
        found = backend_for(weight).dense(weight, bias, activation, residual, width)
        found.made_by = Dense
        return cast(Dense, found)

    if TYPE_CHECKING:
        # The class of the device defines it.
        dtype: np.dtype[np.float32] | np.dtype[np.float64] | torch.dtype

        @overload
        def __call__(
            self, x: npt.NDArray[Float], residual: npt.NDArray[Float] | None = None,
            out: npt.NDArray[Float] | None = None,
        ) -> npt.NDArray[Float]: ...  # fmt: skip
        @overload
        def __call__(
            self, x: AnyTensor, residual: AnyTensor | None = None, out: AnyTensor | None = None
        ) -> AnyTensor: ...
        def __call__(self, x: object, residual: object = None, out: object = None) -> object: ...

        def weights(self) -> tuple[Array | Tensor, Array | Tensor | None]: ...

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return issubclass(other, Layer)
