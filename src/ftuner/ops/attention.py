"""`attention`: softmax of scaled and masked products, times values."""

from __future__ import annotations

from typing import Any, SupportsFloat, overload

import numpy as np
import numpy.typing as npt

from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.flags import checked_flag
from ftuner.runtime.ops.operand_types import AnyTensor, Float, Offsets


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
