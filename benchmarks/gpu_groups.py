"""Grouped products on a GPU against PyTorch's: the experts of a mixture, and unequal sizes.

One call of ours is compared with a loop of `torch.matmul` and, where all groups have the same n and
k in bfloat16, with `torch._grouped_mm`, in versions of PyTorch that have it. The first two write to
where they are told, the last makes its result.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from benchmarks.gpu_bench import MAIN, ONE_BY_ONE, SUBJECT, Bench, multiplying
from benchmarks.gpu_cases import ITEMSIZE
from benchmarks.gpu_grouped import DRY_SIZES, worst_of
from benchmarks.gpu_timing import Call
from ftuner.runtime.ops.operands import Groups

GROUPED_MM = "torch._grouped_mm"
EXPERTS = "experts"
EXPERT_LAYERS = ((4096, 1024), (1024, 4096))
"""(n, k) of both layers of a small expert."""
MIXTURES = ((8, 64), (8, 2000), (8, 8192), (64, 64), (64, 2000), (64, 16384))
"""Experts, and rows of all of them."""
UNEQUAL_COUNTS = (8, 64, 128)
"""Few enough that bursts of launches one by one fit the driver's queue."""
UNEQUAL_LONGEST = 2048
"""Extents are spread evenly by their logarithms up to this."""
ALIGNED, ODD = 8, 1
"""What n and k of unequal sizes are multiples of: 16 bytes, or nothing."""


@dataclass(frozen=True)
class Grouped:
    """`c[i] = a[i] @ b[i]` for all i, b[i] stored as `(n, k)`."""

    set: str
    multiply: str
    sizes: tuple[tuple[int, int, int], ...]
    """(m, n, k) of each; those of experts differ in m alone, which may be 0."""

    @property
    def label(self) -> str:
        rows, columns, depths = (
            f"{min(extents)}..{max(extents)}" if len(set(extents)) > 1 else str(extents[0])
            for extents in zip(*self.sizes, strict=True)
        )
        return f"{self.set} {self.multiply} {len(self.sizes)}*{rows}x{columns}x{depths}"

    @property
    def alike(self) -> bool:
        """Whether all have the same n and k."""
        return len({size[1:] for size in self.sizes}) == 1

    @property
    def flops(self) -> int:
        return sum(2 * m * n * k for m, n, k in self.sizes)

    @property
    def bytes(self) -> int:
        """Of all operands and results."""
        elements = sum(m * k + n * k + m * n for m, n, k in self.sizes)
        return elements * ITEMSIZE[self.multiply]


def grouped_cases() -> list[Grouped]:
    """bfloat16, the same each time."""
    rng = random.Random(0)
    found = []
    for count, rows in MIXTURES:
        # As a router leaves them: some experts are asked for many times as often as others.
        weights = [rng.expovariate(1.0) for _ in range(count)]
        picked = rng.choices(range(count), weights, k=rows)
        for n, k in EXPERT_LAYERS:
            sizes = tuple((picked.count(i), n, k) for i in range(count))
            found.append(Grouped(EXPERTS, MAIN, sizes))

    def extent(multiple: int) -> int:
        value = round(math.exp(rng.uniform(0.0, math.log(UNEQUAL_LONGEST))))
        return -(-value // multiple) * multiple

    for count in UNEQUAL_COUNTS:
        for name, multiple in (("unequal", ALIGNED), ("unequal, odd", ODD)):
            made = ((extent(1), extent(multiple), extent(multiple)) for _ in range(count))
            found.append(Grouped(name, MAIN, tuple(made)))
    return found


def dry_cases() -> list[Grouped]:
    """Some that the interpreter runs in no time."""
    experts = tuple((m, 24, 16) for m in (3, 0, 17))
    return [Grouped(EXPERTS, "float16", experts), Grouped("unequal", "float16", DRY_SIZES)]


class Operands:
    """Copies of the operands of grouped products, and calls of engines on them."""

    def __init__(self, bench: Bench, case: Grouped) -> None:
        self.case, self._bench = case, bench
        self.count = bench.rotated(case)
        m, n, k = (list(extents) for extents in zip(*case.sizes, strict=True))
        self._stacked: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Rows and weights of experts, each in one tensor."""
        if case.alike:
            # As a model has them: rows in the order of their experts.
            x, stored, y = (
                bench.copies(self.count, shape, case.multiply)
                for shape in ((sum(m), k[0]), (len(m), n[0], k[0]), (sum(m), n[0]))
            )
            self._stacked = list(zip(x, stored, strict=True))
            self.a, self.out = ([each.split(m) for each in found] for found in (x, y))
            self.b = [w.mT.unbind() for w in stored]
        else:
            self.a, self.out = (self._apart(m, k), self._apart(m, n))
            self.b = [[w.mT for w in copy] for copy in self._apart(n, k)]

    def _apart(self, rows: Sequence[int], columns: Sequence[int]) -> list[Sequence[torch.Tensor]]:
        """Copies of matrices in memory of their own."""
        made = [
            self._bench.copies(self.count, shape, self.case.multiply)
            for shape in zip(rows, columns, strict=True)
        ]
        return list(zip(*made, strict=True))

    def ours(self) -> list[Call]:
        matmul = self._bench.backend.grouped_matmul
        every = zip(self.a, self.b, self.out, strict=True)
        groups = [Groups([*a], [*b], [*out]) for a, b, out in every]
        return [lambda g=g: matmul(g) for g in groups]

    def vendor(self) -> dict[str, list[Call]]:
        """By engine."""
        every = zip(self.a, self.b, self.out, strict=True)
        found: dict[str, list[Call]] = {ONE_BY_ONE: [_one_by_one(*copy) for copy in every]}
        function = getattr(torch, "_grouped_mm", None)
        if function is not None and self._stacked and self.case.multiply == MAIN:
            ends = torch.tensor(
                list(accumulate(m for m, _, _ in self.case.sizes)),
                dtype=torch.int32, device=self._bench.device,
            )  # fmt: skip
            found[GROUPED_MM] = [
                lambda x=x, w=w: function(x, w.mT, offs=ends) for x, w in self._stacked
            ]
        return found

    def error(self, call: Call, number: int) -> float:
        """Of a call on the operands of this number, over what rounding explains."""
        y: Any = call()
        if isinstance(y, torch.Tensor):
            y = y.split([m for m, _, _ in self.case.sizes])
        return worst_of(y, self.a[number], self.b[number], self.case.multiply)


def _one_by_one(
    a: Sequence[torch.Tensor], b: Sequence[torch.Tensor], out: Sequence[torch.Tensor]
) -> Call:
    every = list(zip(a, b, out, strict=True))
    return lambda: [torch.matmul(x, w, out=y) for x, w, y in every]


def run_case(bench: Bench, case: Grouped) -> dict[str, Any]:
    """Check and time grouped products; the result as JSON."""
    with multiplying(case.multiply), torch.inference_mode():
        operands = Operands(bench, case)
        calls = {SUBJECT: operands.ours(), **operands.vendor()}
        described = {"set": case.set, "multiply": case.multiply, "groups": len(case.sizes)}
        return bench.result(case, operands, calls, described)
