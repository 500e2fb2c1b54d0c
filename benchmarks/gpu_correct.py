"""Whether a GPU computes what it should, in float64: products of every kind, layers, attention, and
graphs.

Products run on a library of one tile and one pair, each with k whole and cut, so that compiling all
ways to store operands takes seconds; the uKernels of the whole library are checked where they are
timed.
"""

import copy
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu_attention import checks as attention_checks
from benchmarks.gpu_bench import (
    CONFIDENCE,
    INPUT_ROUNDOFF,
    TORCH_TYPES,
    Attempt,
    Bench,
    error_of,
    finite,
    multiplying,
    shuffled,
)
from benchmarks.gpu_graphs import GRAPHS, run_graph
from benchmarks.gpu_grouped import GROUPED, plain
from benchmarks.gpu_regret import named, plans
from ftuner.codegen.triton.product import gemm_source, grouped_source
from ftuner.codegen.triton.source import Source
from ftuner.core.dtype import BFLOAT16, DType
from ftuner.core.expr import ACCUMULATOR
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, ALIGNMENTS, Multiply, Order
from ftuner.cost.gpu.tile import SPECIALISED
from ftuner.planner.gpu.grouped import grouped_planner_for
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.runtime.gpu.arrays import matrix_dtype
from ftuner.runtime.gpu.backend import GpuBackend, backend_on
from ftuner.runtime.gpu.calibration.device_clock import PlannedProducts
from ftuner.runtime.gpu.dense import Dense
from ftuner.runtime.gpu.grouped import GroupedMatmul
from ftuner.runtime.gpu.matmul import Matmul
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.ops.layer import layer_epilogue
from ftuner.ukernels.gpu.library import GpuLibrary, build_gpu_library

MULTIPLIES: tuple[Multiply, ...] = ("bfloat16", "float16", "tf32", "float32")
DRY_MULTIPLIES: tuple[Multiply, ...] = ("float16", "float32")
"""Triton's interpreter multiplies the bits of bfloat16, not its values."""
SHAPES = ((1, 1, 1), (17, 40, 33), (129, 257, 64), (5, 64, 2048), (1024, 384, 200), (777, 8, 1031))
DRY_SHAPES = ((1, 1, 1), (17, 40, 33), (5, 16, 264))
ORDERS: tuple[Order, ...] = ("k", "spatial")
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}
"""By the name of ours."""
SPECIALISED_SHAPES = ((1, 8, 8), (129, 264, 264), (1531, 8200, 200), (4104, 4104, 1032))
"""Aligned, with too few steps or too many tiles for split-k."""
FAR_ROWS, FAR_COLUMNS = 70_000, 32_768
"""Of a matrix of more than 2^31 elements."""

Check = Callable[[], float]
"""The largest error over what rounding explains."""


@dataclass(frozen=True)
class Thin:
    """A library of one tile and one pair."""

    backend: GpuBackend

    def __call__(self, dtype: DType, multiply: Multiply) -> GpuLibrary:
        whole = self.backend.block_library(dtype, multiply)
        pairs = whole.pairs[:1]
        tile = pairs[0][0] if pairs else whole.tiles[0]
        return replace(whole, tiles=(tile,), pairs=pairs)


def thin(backend: GpuBackend) -> GpuBackend:
    """The back end, with products of few uKernels."""
    found = copy.copy(backend)
    scratch = Scratch(backend.device)
    found.products = Products(backend.kernels, scratch, Thin(backend))
    found.grouped_matmul = GroupedMatmul(backend.kernels, Thin(backend))
    return found


def only_specialised(bench: Bench, dtype: DType, multiply: Multiply) -> GpuLibrary:
    """A library of the one tile that has specialised warps."""
    whole = build_gpu_library(bench.specialising, dtype, multiply)
    return replace(whole, tiles=(SPECIALISED,), pairs=())


def _sources(bench: Bench) -> list[Source]:
    """What the products below launch, to be compiled side by side."""
    backend, library = bench.backend, only_specialised(bench, BFLOAT16, MULTIPLIES[0])
    orders = product(ORDERS, ORDERS)
    found = [gemm_source(kernel) for a, b in orders for kernel in library.kernels(a, b)]
    for multiply in MULTIPLIES:
        dtype = matrix_dtype(torch.empty(0, dtype=TORCH_TYPES[multiply]), "")
        library = Thin(backend)(dtype, multiply)
        for a, b, alignment, c_aligned in product(ORDERS, ORDERS, ALIGNMENTS, (True, False)):
            if alignment < dtype.itemsize:
                continue
            if multiply == "float16" and (a, b) != ("k", "k"):
                continue
            epilogues = [ACCUMULATOR]
            if (multiply, a, b) == (MULTIPLIES[0], "k", "k") and alignment < ALIGNMENT_BYTES:
                epilogues += [layer_epilogue(True, name, True) for name in ACTIVATIONS]
            found += [
                gemm_source(kernel)
                for epilogue in epilogues
                for kernel in library.kernels(a, b, alignment, epilogue, c_aligned)
            ]
            if multiply == MULTIPLIES[0]:
                found += [
                    grouped_source(replace(kernel, c_aligned=c_aligned))
                    for kernel in grouped_planner_for(library, alignment).kernels(a, b)
                ]
    return found


def checks(bench: Bench) -> Iterator[tuple[str, Check]]:
    """All checks, by label."""
    few = thin(bench.backend)
    multiplies = DRY_MULTIPLIES if bench.dry else MULTIPLIES
    shapes = DRY_SHAPES if bench.dry else SHAPES
    for multiply in multiplies:
        for m, n, k in shapes:
            for a_order, b_order in product(ORDERS, ORDERS):
                if multiply == "float16" and not bench.dry and (a_order, b_order) != ("k", "k"):
                    # The same kernels as those of bfloat16.
                    continue
                label = f"{multiply} {m}x{n}x{k} {a_order} {b_order}"
                yield (
                    label,
                    lambda c=(m, n, k, a_order, b_order), x=multiply: _plain(bench, few, x, *c),
                )
    main = multiplies[0]
    yield "batch", lambda: _matmul(bench, few, main, (3, 1, 9, 24), (5, 24, 40))
    yield "broadcast batch", lambda: _matmul(bench, few, main, (4, 9, 24), (1, 24, 40))
    yield "vectors", lambda: _matmul(bench, few, main, (24,), (24, 40))
    yield "accumulate", lambda: _accumulated(bench, few, main)
    yield "strided out", lambda: _strided_out(bench, few, main)
    yield "unaligned base", lambda: _unaligned(bench, few, main)
    for activation in ACTIVATIONS:
        yield f"Dense, {activation}", lambda f=activation: _dense(bench, few, main, f)
    shapes = () if bench.dry else SPECIALISED_SHAPES
    for (m, n, k), a_order, b_order in product(shapes, ORDERS, ORDERS):
        yield (
            f"{main} specialised warps, {m}x{n}x{k} {a_order} {b_order}",
            lambda c=(m, n, k, a_order, b_order): _specialised(bench, main, *c),
        )
    m, n, k = (40, 16, 160) if bench.dry else (333, 512, 1024)
    yield "every plan of the library", lambda: _all_plans(bench, main, m, n, k)
    for multiply in multiplies:
        yield f"{multiply} grouped", lambda x=multiply: plain(bench, few, x)
    for label, check in GROUPED.items():
        yield f"grouped, {label}", lambda f=check: f(bench, few, main)
    yield from attention_checks(bench, multiplies)
    for name in GRAPHS:
        yield f"graph: {name}", lambda x=name: run_graph(bench, few, x)
    if bench.dry:
        return
    yield "another stream", lambda: _on_stream(bench, few, main)
    yield "beyond 2^31 elements", lambda: _far(bench, few, main)
    for index in range(torch.cuda.device_count()):
        if index != bench.device.index:
            yield f"device {index}", lambda i=index: _on_device(bench, i, main)


def _plain(
    bench: Bench, backend: GpuBackend, multiply: Multiply, m: int, n: int, k: int,
    a_order: Order, b_order: Order,
) -> float:  # fmt: skip
    a_shape, b_shape = (m, k) if a_order == "k" else (k, m), (n, k) if b_order == "k" else (k, n)
    (a,), (b,) = (bench.copies(1, shape, multiply) for shape in (a_shape, b_shape))
    a, b = a if a_order == "k" else a.mT, b.mT if b_order == "k" else b
    y = Matmul(backend.products)(a, b)
    return error_of(y, a, b, multiply, rows=m)


def _matmul(
    bench: Bench, backend: GpuBackend, multiply: Multiply, a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
) -> float:  # fmt: skip
    (a,), (b,) = (bench.copies(1, shape, multiply) for shape in (a_shape, b_shape))
    y = Matmul(backend.products)(a, b)
    if a.dim() == 1:
        return error_of(y[None], a[None], b, multiply)
    return error_of(y, a, b, multiply)


def _accumulated(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    (a,), (b,) = (bench.copies(1, shape, multiply) for shape in ((37, 64), (64, 48)))
    (out,) = bench.copies(1, (37, 48), multiply)
    ones = torch.eye(48, dtype=a.dtype, device=a.device)
    # The same sum as one product, whose rounding is known.
    wide_a, wide_b = torch.cat([a, out], 1), torch.cat([b, ones], 0)
    Matmul(backend.products)(a, b, out=out, accumulate=True)
    return error_of(out, wide_a, wide_b, multiply)


def _strided_out(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    (a,), (b,) = (bench.copies(1, shape, multiply) for shape in ((37, 64), (64, 48)))
    whole = torch.zeros((48, 100), dtype=a.dtype, device=a.device)
    y = whole[:, 3:40].mT
    Matmul(backend.products)(a, b, out=y)
    spoiled = int(whole[:, :3].count_nonzero()) + int(whole[:, 40:].count_nonzero())
    return error_of(y, a, b, multiply) + spoiled


def _unaligned(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    (a,), (b,) = (bench.copies(1, shape, multiply) for shape in ((37, 65), (64, 48)))
    y = Matmul(backend.products)(a[:, 1:], b)
    return error_of(y, a[:, 1:], b, multiply)


def _dense(bench: Bench, backend: GpuBackend, multiply: Multiply, activation: str) -> float:
    (x,), (w,) = (bench.copies(1, shape, multiply) for shape in ((2, 19, 50), (40, 50)))
    (bias,), (residual,) = (bench.copies(1, shape, multiply) for shape in ((40,), (2, 19, 40)))
    layer = Dense(w, bias, activation, True, session=backend)  # type: ignore[arg-type]
    y = layer(x, residual)
    x64, w64 = x.double(), w.double().mT
    sums = x64 @ w64 + bias.double()
    expected = ACTIVATIONS[activation](sums) + residual.double()
    scale = ((x64 * x64) @ (w64 * w64)).sqrt() + sums.abs() + residual.double().abs() + 1.0
    bound = 2.0 * torch.finfo(y.dtype).eps + CONFIDENCE * (INPUT_ROUNDOFF[multiply] + 1e-6)
    error = (y.double() - expected).abs() / (bound * scale)
    return finite(error.max())


def _specialised(
    bench: Bench, multiply: Multiply, m: int, n: int, k: int, a_order: Order, b_order: Order
) -> float:
    """By specialised warps, whatever the planner would choose."""
    own = copy.copy(bench.backend)
    library = partial(only_specialised, bench)
    own.products = Products(own.kernels, own.scratch, library)
    error = _plain(bench, own, multiply, m, n, k, a_order, b_order)
    assert all(call.plan.kernel.warpgroups > 1 for call in own.products.calls)
    return error


def _all_plans(bench: Bench, multiply: Multiply, m: int, n: int, k: int) -> float:
    """Pairs and cut products, which the planner may not choose at these extents."""
    (a,), (b,) = (bench.copies(1, shape, multiply) for shape in ((m, k), (n, k)))
    planner = product_planner_for(bench.backend.block_library(matrix_dtype(a, "a"), multiply))
    worst = 0.0
    for plan in plans(planner, ProductProblem(m, n, k)):
        (y,) = bench.copies(1, (m, n), multiply)
        Matmul(PlannedProducts(bench.backend, plan))(a, b.mT, y)
        error = error_of(y, a, b.mT, multiply, rows=m)
        if not error <= 1.0:
            raise ArithmeticError(f"{named(plan)} errs by {error:.3g} of what rounding explains")
        worst = max(worst, error)
    return worst


def _on_stream(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    """Work of two streams at once, with k cut, for which each has scratch memory of its own."""
    streams = [torch.cuda.Stream(bench.device) for _ in range(2)]
    made = []
    torch.cuda.synchronize(bench.device)
    for _ in range(8):
        for stream in streams:
            with torch.cuda.stream(stream):
                (a,), (b,) = (bench.copies(1, s, multiply) for s in ((5, 2048), (64, 2048)))
                made.append((Matmul(backend.products)(a, b.mT), a, b.mT))
    torch.cuda.synchronize(bench.device)
    return max(error_of(y, a, b, multiply) for y, a, b in made)


def _far(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    """Rows so far apart that offsets have more than 31 bits."""
    whole = torch.empty((FAR_ROWS, FAR_COLUMNS), dtype=TORCH_TYPES[multiply], device=bench.device)
    a = whole[:, 512:576]
    a.normal_()
    (b,) = bench.copies(1, (64, 48), multiply)
    return error_of(Matmul(backend.products)(a, b), a, b, multiply)


def _on_device(bench: Bench, index: int, multiply: Multiply) -> float:
    """While another device is the current one."""
    device = torch.device("cuda", index)
    few = thin(backend_on(device))
    a, b = (torch.randn(s, device=device).to(TORCH_TYPES[multiply]) for s in ((37, 64), (64, 48)))
    y = Matmul(few.products)(a, b)
    torch.cuda.synchronize(device)
    return error_of(y, a, b, multiply)


def correct(bench: Bench) -> Iterator[Attempt]:
    """All checks."""
    if not bench.dry:
        bench.backend.kernels.prepare(_sources(bench))
    return (
        Attempt(label, partial(_verdict, label, check)) for label, check in shuffled(checks(bench))
    )


def _verdict(label: str, check: Callable[[], float]) -> dict[str, Any]:
    """A check that raises is a result like one that errs."""
    try:
        with multiplying(label.split()[0]), torch.inference_mode():
            error = check()
    except Exception as raised:
        traceback.print_exc()
        return {"right": False, "raised": f"{type(raised).__name__}: {raised}"}
    return {"error": error, "right": bool(error <= 1.0)}
