"""Matrix products on a GPU against the vendor's, and against what PyTorch's compiler finds."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_bench import (
    MAIN,
    SPECIALISED,
    SUBJECT,
    VENDOR,
    Attempt,
    Bench,
    attempts,
    error_of,
    multiplying,
    ordered,
    shuffled,
)
from benchmarks.gpu_cases import LLAMA_LAYERS, Product, bmm_cases, dry_cases, gemm_cases
from benchmarks.gpu_groups import Grouped, grouped_cases
from benchmarks.gpu_groups import dry_cases as dry_groups
from benchmarks.gpu_groups import run_case as run_grouped
from benchmarks.gpu_padding import padded_rows
from benchmarks.gpu_timing import Call
from ftuner.runtime.gpu.matmul import Matmul
from ftuner.runtime.gpu.products import Products
from ftuner.ukernels.gpu.library import build_gpu_library

COMPILED = "torch-max-autotune"
COMPILED_MODE = "max-autotune-no-cudagraphs"
COMPILED_ROWS = (2048, 17, 77, 333, 1024, 5, 4096, 128)
"""The first is what the compiler tunes for."""
COMPILED_SECONDS = 45.0
"""Time that one more layer needs: compiling, and a few shapes."""


def specialised(bench: Bench) -> Products:
    """Products in half precision as planned with specialised warps."""
    own, library = bench.backend, partial(build_gpu_library, bench.specialising)
    return Products(own.kernels, own.scratch, library)


class Operands:
    """Copies of the operands of a product, and calls of engines on them."""

    def __init__(self, bench: Bench, case: Product) -> None:
        batch = (case.batch,) if case.batch else ()
        stored = (case.n, case.k) if case.layout == "nt" else (case.k, case.n)
        self._bench, self.case, self.count = bench, case, bench.rotated(case)
        self.x = bench.copies(self.count, (*batch, case.m, case.k), case.multiply)
        self.stored = bench.copies(self.count, (*batch, *stored), case.multiply)
        self.w = [w.mT if case.layout == "nt" else w for w in self.stored]
        self.y = bench.copies(self.count, (*batch, case.m, case.n), case.multiply)

    def ours(self, products: Products) -> list[Call]:
        each = zip(self.x, self.w, self.y, strict=True)
        return [partial(Matmul(products), *operands) for operands in each]

    def vendor(self) -> list[Call]:
        if not self.case.batch:
            return self.linear(torch.nn.functional.linear)
        pairs = zip(self.x, self.w, strict=True)
        return [lambda x=x, w=w: torch.bmm(x, w) for x, w in pairs]

    def linear(self, function: Callable[..., torch.Tensor]) -> list[Call]:
        pairs = zip(self.x, self.stored, strict=True)
        return [lambda x=x, w=w: function(x, w) for x, w in pairs]

    def padded(self, rows: int) -> list[Call]:
        """Layers on operands that lie padded, as in a model that is padded once, at its inputs."""
        functional, case = torch.nn.functional, self.case
        wide = self._bench.copies(self.count, (rows, case.k), case.multiply)
        for whole, x in zip(wide, self.x, strict=True):
            whole[: case.m].copy_(x)
        pairs = zip(wide, self.stored, strict=True)
        return [lambda x=x, w=w: functional.linear(x, w)[: case.m] for x, w in pairs]

    def fix_weights(self) -> None:
        """Tell PyTorch's compiler that weights keep their extents, as a module's do."""
        for w in self.stored:
            torch._dynamo.mark_static(w)

    def error(self, call: Callable[[], Any], number: int) -> float:
        """Of a call on the operands of this number."""
        y = call()
        return error_of(y, self.x[number], self.w[number], self.case.multiply)


def run_case(bench: Bench, case: Product, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Check and time one product; the result as JSON. `more`: functions of x and the stored weight,
    by name."""
    with multiplying(case.multiply), torch.inference_mode():
        operands = Operands(bench, case)
        calls = {SUBJECT: operands.ours(bench.backend.products), VENDOR: operands.vendor()}
        if case.set == "specialised":
            calls[SPECIALISED] = operands.ours(specialised(bench))
        calls |= {name: operands.padded(rows) for name, rows in padded_rows(case).items()}
        for name, function in (more or {}).items():
            calls[name] = operands.linear(function)
            operands.fix_weights()
        return bench.result(case, operands, calls, asdict(case))


def gemm(bench: Bench) -> Iterator[Attempt]:
    """Layers without bias, of a constant weight and any number of rows."""
    return attempts(bench, dry_cases() if bench.dry else ordered(gemm_cases()), run_case)


def bmm(bench: Bench) -> Iterator[Attempt]:
    """Batches of products of two inputs: of one size, and grouped."""
    cases: list[Product | Grouped] = [*bmm_cases(), *grouped_cases()]
    if bench.dry:
        plain = next(dry_cases())
        cases = [replace(plain, batch=3, layout=layout) for layout in ("nt", "nn")]
        cases += dry_groups()
    return attempts(bench, cases if bench.dry else shuffled(cases), _run_any)


def _run_any(bench: Bench, case: Product | Grouped) -> dict[str, Any]:
    return run_grouped(bench, case) if isinstance(case, Grouped) else run_case(bench, case)


def compiled(bench: Bench) -> Iterator[Attempt]:
    """A sample of layers by `torch.compile`, each compiled once for all its rows."""
    dry = next(dry_cases())
    layers = ((dry.n, dry.k),) if bench.dry else (LLAMA_LAYERS[0], LLAMA_LAYERS[2])
    needs_s = 0.0 if bench.dry else COMPILED_SECONDS
    for n, k in layers:
        work = partial(_compiled_layer, bench, replace(dry, n=n, k=k))
        yield Attempt(f"{n}x{k}", work, needs_s)


def _compiled_layer(bench: Bench, like: Product) -> dict[str, Any]:
    multiply = like.multiply if bench.dry else MAIN
    rows = (9, 5) if bench.dry else COMPILED_ROWS
    cases = [replace(like, set="compiled", multiply=multiply, m=m) for m in rows]
    torch._dynamo.reset()
    options = {"backend": "eager"} if bench.dry else {"mode": COMPILED_MODE}
    function = torch.compile(torch.nn.functional.linear, dynamic=True, **options)
    with torch.inference_mode():
        first = Operands(bench, cases[0])
        first.fix_weights()
        began = time.perf_counter()
        function(first.x[0], first.stored[0])
    bench.synchronize()
    compile_s = time.perf_counter() - began
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    results = []
    for case in cases:
        if bench.left_s <= 0:
            break
        results.append({"label": case.label, **run_case(bench, case, {COMPILED: function})})
    after = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"compile_s": compile_s, "recompilations": after - graphs, "shapes": results}
