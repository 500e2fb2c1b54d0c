"""The public functions, on the session of this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ftuner.core.dtype import DTYPES, GPU_DTYPES
from ftuner.core.forks import import_undivided
from ftuner.errors import DTypeError
from ftuner.hardware.model import CpuHardware, GpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.report.cpu.explain import Explanation
from ftuner.report.cpu.explain import explain as explain_on
from ftuner.report.gpu.explain import BlockExplanation
from ftuner.runtime.backend import Progress
from ftuner.runtime.cpu.arrays import on_gpu
from ftuner.runtime.cpu.dense import Activation, layer_epilogue
from ftuner.runtime.cpu.dense import Dense as CpuDense
from ftuner.runtime.cpu.grouped import GroupedMatmul
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.threads import checked_threads
from ftuner.runtime.devices import CPU, backend_of, hardware_on
from ftuner.runtime.gpu_modules import gpu_module
from ftuner.runtime.ops.flags import checked_flag
from ftuner.runtime.session import default_session
from ftuner.ukernels.funnel import Funnel

__all__ = [
    "Dense",
    "TuneReport",
    "attention",
    "explain",
    "get_num_threads",
    "grouped_matmul",
    "hardware",
    "matmul",
    "set_num_threads",
    "tune",
]


@dataclass(frozen=True)
class TuneReport:
    """What tuning did."""

    dtype: str
    isa: str
    """What was compiled for: an ISA, or the architecture of a GPU."""
    funnel: Funnel[Any]
    compiled: int
    """Objects compiled now: bundles of uKernels on a CPU, single ones on a GPU."""
    cached: int
    """Objects found in the cache."""
    seconds: float
    """From the call to ready for every shape, the probe of the machine included."""


_MATMUL: list[Matmul] = []
_GROUPED: list[GroupedMatmul] = []


class Dense(CpuDense):
    __doc__ = CpuDense.__doc__

    def __new__(cls, weight: object, *arguments: Any, **named: Any) -> Any:
        """A layer where its weight is: of a tensor on a GPU, a layer on that GPU, with the same
        arguments but for `width`."""
        if on_gpu(weight):
            dense = gpu_module("ftuner.runtime.gpu.dense")
            return dense.GpuDense(weight, *arguments, **named)
        return super().__new__(cls)


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
    return _matmul()(a, b, out, accumulate)


def _matmul() -> Matmul:
    if not _MATMUL:
        _MATMUL.append(Matmul(default_session()))
    return _MATMUL[0]


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
    if not _GROUPED:
        _GROUPED.append(GroupedMatmul(_matmul()))
    return _GROUPED[0](a, b, out)


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
    causal = checked_flag(causal, "causal")
    if any(on_gpu(x) for x in (q, k, v)):
        room = gpu_module("ftuner.runtime.gpu.attention")
    else:
        # Imported by name: it needs graphs, which products do without.
        room = import_undivided("ftuner.runtime.cpu.attention")
    return room.attention(
        q, k, v, mask=mask, causal=causal, scale=scale, q_offsets=q_offsets, k_offsets=k_offsets,
        out=out,
    )  # fmt: skip


def tune(
    dtype: str = "float32",
    activation: Activation = None,
    bias: bool = False,
    residual: bool = False,
    progress: Progress | None = None,
    device: str = CPU,
) -> TuneReport:
    """Make products of a dtype and epilogue ready for every shape: probe, enumerate, filter,
    compile.

    Calls do this by themselves when they must; tuning beforehand, at installation or at the start
    of a service, takes it out of them. What is in the cache is not made again.

    Args:
        dtype: `float32` or `float64`; on a GPU `float16`, `bfloat16` or `float32`, which is
            multiplied as `torch.set_float32_matmul_precision` says.
        activation, bias, residual: the epilogue of a `Dense` layer; none of them for `matmul`.
        progress: called with (what, done, total).
        device: `cpu`, or a GPU as torch names it: `cuda`, `cuda:1`. There, products of contiguous
            rows by contiguous or transposed matrices are made ready.

    Raises:
        DTypeError, ExpressionError: unknown names.
        ConfigurationError: no such device, or its extra is not installed; a `bias` or `residual`
            that is not a boolean.
        HardwareError: a GPU that kernels cannot run on.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES | GPU_DTYPES:
        raise DTypeError(f"dtype is {dtype!r}; supported are {', '.join(DTYPES | GPU_DTYPES)}")
    began = time.perf_counter()
    epilogue = layer_epilogue(bias, activation, residual)
    backend = backend_of(device)
    library = backend.library((DTYPES | GPU_DTYPES)[dtype], epilogue)
    tuned = backend.tune(library.dtype, epilogue, progress)
    return TuneReport(
        dtype=dtype,
        isa=backend.target,
        funnel=library.funnel,
        compiled=tuned.compiled,
        cached=tuned.cached,
        seconds=time.perf_counter() - began,
    )


def hardware(device: str = CPU) -> CpuHardware | GpuHardware:
    """The hardware model of this machine, or of one of its GPUs: probed once, in a second or two,
    and kept.

    Args:
        device: as of `tune`.

    Raises:
        ConfigurationError, HardwareError: as of `tune`.
    """
    return hardware_on(device)


def set_num_threads(threads: int) -> None:
    """Threads that a call may use, the caller's own included; 1 to 1024.

    Raises:
        ConfigurationError: another number, or none.
    """
    default_session().threads = checked_threads(threads)


def get_num_threads() -> int:
    """Threads that a call may use: what was set, `FTUNER_NUM_THREADS`, or the usable cores."""
    return default_session().threads


def explain(
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    dtype: str = "float32",
    workers: int | None = None,
    hardware: str | None = None,
) -> Explanation | BlockExplanation:
    """The plan of a product, its estimate by terms, and its place under the roofline.

    Args:
        m, n, k, batch: extents, positive.
        workers: threads; by default those in use here, or all cores of a recorded machine.
        hardware: name of a recorded machine; by default this one.

    Raises:
        ShapeError, DTypeError, HardwareError: arguments out of range or unknown.
    """
    machine: CpuHardware | GpuHardware
    machine = default_session().hardware if hardware is None else load_recorded(hardware)
    if workers is None and hardware is None:
        workers = default_session().threads
    return explain_on(m, n, k, batch, dtype, workers, machine)
