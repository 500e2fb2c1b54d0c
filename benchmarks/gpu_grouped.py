"""Grouped products that a GPU is checked with."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.gpu_bench import Bench, error_of
from ftuner.core.gpu.tile import Multiply
from ftuner.runtime.gpu.arrays import matrix_dtype
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.grouped import GroupedMatmul
from ftuner.runtime.ops.operands import Groups

SIZES = ((1, 8, 8), (300, 264, 520), (0, 16, 24), (17, 1000, 64), (129, 40, 2048), (5, 8, 0))
DRY_SIZES = ((1, 8, 8), (17, 40, 24), (0, 16, 24), (5, 8, 0))
ODD_SIZES = ((1, 1, 1), (33, 17, 13), (7, 31, 101))
MANY, DRY_MANY = 500, 40

Lies = Callable[[torch.Tensor], torch.Tensor]


def _turned(x: torch.Tensor) -> torch.Tensor:
    """The same matrix, contiguous along its other axis."""
    return x.mT.contiguous().mT


def _apart(x: torch.Tensor) -> torch.Tensor:
    """The same matrix, contiguous along neither axis."""
    return torch.stack([x, x], -1)[..., 0]


def _operands(
    bench: Bench, multiply: Multiply, sizes: Sequence[tuple[int, int, int]], lie: Lies
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    a = [lie(bench.copies(1, (m, k), multiply)[0]) for m, _, k in sizes]
    return a, [lie(bench.copies(1, (k, n), multiply)[0]) for _, n, k in sizes]


def worst_of(
    found: Sequence[torch.Tensor], a: Sequence[torch.Tensor], b: Sequence[torch.Tensor],
    multiply: str,
) -> float:  # fmt: skip
    """The largest error of all products, over what rounding explains."""
    return max(
        error_of(y, x, w, multiply) for y, x, w in zip(found, a, b, strict=True) if y.numel()
    )


def plain(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    """Aligned groups of unequal extents, some of them empty: one launch."""
    a, b = _operands(bench, multiply, DRY_SIZES if bench.dry else SIZES, torch.clone)
    found = backend.grouped_matmul(Groups([*a], [*b], None))
    return worst_of(found, a, b, multiply)


def _mixed(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    """All ways to lie in one call."""
    made = [
        _operands(bench, multiply, sizes, lie)
        for sizes in (DRY_SIZES, ODD_SIZES)
        for lie in (torch.clone, _turned, _apart)
    ]
    a, b = [x for xs, _ in made for x in xs], [y for _, ys in made for y in ys]
    found = backend.grouped_matmul(Groups([*a], [*b], None))
    return worst_of(found, a, b, multiply)


def _many(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    """Far more groups than are looked at at once; twice, so that a table is made while another one
    may still be read."""
    count, worst = DRY_MANY if bench.dry else MANY, 0.0
    calls = []
    for seed in range(2):
        sizes = [((i * 7 + seed) % 90, 64, 8 + i % 5 * 16) for i in range(count)]
        if bench.dry:
            sizes = [(m % 5, 16, k) for m, _, k in sizes]
        a, b = _operands(bench, multiply, sizes, torch.clone)
        calls.append((backend.grouped_matmul(Groups([*a], [*b], None)), a, b))
    for found, a, b in calls:
        worst = max(worst, worst_of(found, a, b, multiply))
    return worst


def _results_over_operands(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    a, b = _operands(bench, multiply, [(64, 64, 64)] * 3, torch.clone)
    x = [t.clone() for t in a]
    found = backend.grouped_matmul(Groups([*x], [*b], [x[1], x[2].mT, x[0]]))
    return worst_of(found, a, b, multiply)


def _every_tile(bench: Bench, backend: GpuBackend, multiply: Multiply) -> float:
    """Each block tile of the library on its own, of which the planner would choose one."""
    whole = bench.backend
    a, b = _operands(bench, multiply, DRY_SIZES if bench.dry else SIZES, torch.clone)
    worst = worst_of(whole.grouped_matmul(Groups([*a], [*b], None)), a, b, multiply)
    for tile in whole.library(matrix_dtype(a[0], "a"), multiply).tiles:
        products = GroupedMatmul(
            whole.kernels,
            lambda dtype, how, t=tile: replace(whole.library(dtype, how), tiles=(t,)),
        )
        error = worst_of(products(Groups([*a], [*b], None)), a, b, multiply)
        if not error <= 1.0:
            raise ArithmeticError(f"{tile} errs by {error:.3g} of what rounding explains")
        worst = max(worst, error)
    return worst


GROUPED: dict[str, Callable[[Bench, GpuBackend, Multiply], float]] = {
    "orders and alignments": _mixed,
    "many": _many,
    "results over operands": _results_over_operands,
    "every tile of the library": _every_tile,
}
"""By label, beside `plain`."""
