"""`attention`: softmax of scaled and masked products, times values."""

from __future__ import annotations

from typing import Any

from ftuner.runtime.devices import backend_for
from ftuner.runtime.ops.flags import checked_flag


def attention(
    q: object, k: object, v: object, *, mask: object | None = None, causal: bool = False,
    scale: float | None = None, q_offsets: object | None = None,
    k_offsets: object | None = None, out: object | None = None,
) -> Any:  # fmt: skip
    """`softmax(q k' * scale + mask) v`, row by row and head by head.

    Args:
        q: `(..., heads, rows, depth)`, float32 or float64; or a torch tensor on a GPU, of float16,
            bfloat16 or float32, and then so are all others. Any strides.
        k, v: `(..., kv_heads, keys, depth)` and `(..., kv_heads, keys, columns)`, of the same dtype
            and the same axes before the heads. `heads` is a multiple of `kv_heads`: so many heads
            of q, one after the other, share one of k and v.
        mask: booleans, True where a key may be seen, or numbers of the same dtype that are added;
            broadcast to `(..., heads, rows, keys)`.
        causal: whether the last row sees all keys, the one before all but the last, and so on:
            row i sees keys `j <= i + keys - rows`, as where earlier keys come from a cache.
        scale: what products are multiplied by; by default `1 / sqrt(depth)`.
        q_offsets, k_offsets: for requests of unequal length that lie one after the other, without
            padding: q is `(heads, rows of all, depth)`, k and v likewise (where rows are the first
            axis, transposed views), request i has rows `q_offsets[i]` to `q_offsets[i + 1]`, and
            keys by `k_offsets`, which are `q_offsets` if not given. Integers, or int32 or int64, on
            the host, because plans are made from them. Each request is attended for itself;
            `causal` holds within each; there is no mask.
        out: where to write, of the result's shape and dtype; any strides. It may overlap what is
            read.

    Returns:
        `(..., heads, rows, columns)`: `out` if given, as a NumPy array, or as a tensor on the GPU,
        written on its current stream. A row that sees no key gives zeros.

    Raises:
        ShapeError: extents or offsets that do not fit; on a GPU, a depth above 256.
        DTypeError: another dtype, or two of them.
        OperandError: an object that is no array, or an `out` that is read-only; operands on
            several devices; offsets on a GPU, or beside a mask.
        ConfigurationError: a scale that is not a finite number of the dtype that it is multiplied
            in: float64 where the operands are, else float32. A `causal` that is not a boolean.
        HardwareError: a GPU that kernels cannot run on.
        UnsupportedKernelError: `q_offsets` while a CUDA graph is being captured: they are copied
            from the host.
    """
    return backend_for(q, k, v).attention(
        q, k, v, mask=mask, causal=checked_flag(causal, "causal"), scale=scale,
        q_offsets=q_offsets, k_offsets=k_offsets, out=out,
    )  # fmt: skip
