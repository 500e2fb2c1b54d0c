"""What launches take on the host, in a process with a CUDA driver that only counts.

Prints a JSON object: for each call that was seen before, its Python calls, launches and encoded
descriptors; and what else `test_launching` asks.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import triton
from tests.graph.graphs import Maker, S
from tests.runtime.gpu.fake_cuda import Driver, h200
from torch.utils._python_dispatch import TorchDispatchMode

from ftuner.graph.ir import Graph
from ftuner.runtime.backend import Options
from ftuner.runtime.gpu import scratch
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.dense import Dense
from ftuner.runtime.gpu.executable import CompiledGraph
from ftuner.runtime.gpu.launching import FixedLaunch

THREADS, CALLS = 4, 200
ROWS, WIDTH, LAYERS = 16, 2048, 4


class Ops(TorchDispatchMode):
    """The operators of torch that are called meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Capture:
    """A recorder that notes what a capture would contain beside kernels."""

    usable = True

    def __init__(self) -> None:
        self.ops: list[str] = []

    def record(self, work: FixedLaunch) -> FixedLaunch:
        is_capturing = scratch.is_capturing
        scratch.is_capturing = lambda device: True
        with Ops() as ops:
            work()
        scratch.is_capturing = is_capturing
        self.ops += ops.names
        return work


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def measured(driver: Driver, call: Callable[[], object]) -> dict[str, int]:
    """The least of several calls: the CPU's allocator gives a result many addresses at first."""
    names = "launches", "encodes"
    samples = []
    for _ in range(20):
        before = [driver.count(name) for name in names]
        frames = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal frames
            frames += event == "call"

        sys.setprofile(count)
        call()
        sys.setprofile(None)
        samples.append((frames, *(driver.count(n) - b for n, b in zip(names, before, strict=True))))
    return dict(zip(("frames", *names), min(samples), strict=True))


def operators(driver: Driver, backend: GpuBackend) -> dict[str, Any]:
    x, w, y, bias, residual = (bf16(*s) for s in ((256,) * 2,) * 3 + ((256,), (256,) * 2))
    long, wide, short = bf16(64, 8192), bf16(512, 8192), bf16(64, 512)
    q, k, v, out = (bf16(2, 16, 512, 64) for _ in range(4))
    layer = Dense(w, bias, "gelu", True, session=backend)
    calls: dict[str, Callable[[], object]] = {
        "split": lambda: backend.matmul(long, wide.mT, out=short),
        "matmul": lambda: backend.matmul(x, w.mT, out=y),
        "Dense": lambda: layer(x, residual, out=y),
        "attention": lambda: backend.attention(q, k, v, causal=True, out=out),
    }
    found = {name: measured(driver, call) for name, call in calls.items()}
    return found | {"others": others(driver, backend, x, w, y)}


def others(
    driver: Driver, backend: GpuBackend, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor
) -> dict[str, Any]:
    """Descriptors for operands elsewhere and unaligned ones, launches of threads, and hooks."""
    room = bf16(2 * 256 * 256 + 8)
    aligned, unaligned = room[8:].view(2, 256, 256), room[1:-7].view(2, 256, 256)
    encodes, right = [], []
    for place in (x, bf16(256, 256), x, *aligned, *unaligned, x):
        before = driver.count("encodes")
        backend.matmul(place, w.mT, out=y)
        encodes.append(driver.count("encodes") - before)
        expected = [z.data_ptr() for z in (place, w, y)]
        pointers = 1 if encodes[-1] or place is x else 3
        right.append(driver.pointers[:pointers] == expected[:pointers])
    # A result over an operand is computed elsewhere and copied, whatever was kept before.
    backend.matmul(y, w.mT, out=y)
    right.append(driver.pointers[0] == y.data_ptr())
    # The result of a call without `out` is where its launch writes.
    results = [backend.matmul(place, w.mT) for place in unaligned]
    right.append(driver.pointers[2] == results[-1].data_ptr())

    def calls() -> None:
        for _ in range(CALLS):
            backend.matmul(x, w.mT, out=y)

    before = driver.count("launches")
    threads = [Thread(target=calls) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = THREADS * CALLS - (driver.count("launches") - before)
    seen: list[str] = []

    def hook(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(hook)
    backend.matmul(x, w.mT, out=y)
    triton.knobs.runtime.launch_enter_hook.remove(hook)
    backend.matmul(x, w.mT, out=y)
    counts = {"lost_by_threads": lost, "hooked": len(seen)}
    return counts | {"encodes": encodes, "pointers_right": all(right)}


def layers() -> Graph:
    """Products that are split along k, and means of few long rows, which are split too."""
    maker = Maker()
    y = maker.given("x", S, WIDTH)
    for _ in range(LAYERS):
        y = maker.add("softmax", maker.linear(y, WIDTH), axis=1, log=False)
    return maker.made(y)


def model(driver: Driver, backend: GpuBackend) -> dict[str, Any]:
    capture = Capture()
    backend.recorder = lambda: capture  # type: ignore[method-assign, assignment, return-value]
    compiled = CompiledGraph(layers(), backend, Options())
    compiled.recording = False
    x = torch.randn(ROWS, WIDTH)
    found: dict[str, Any] = measured(driver, lambda: compiled.run([x]))
    (program,) = compiled._programs.values()
    found["steps"] = len(program._launches)
    found["split"] = sum(launch.scratch[1] > 0 for launch in program._launches)
    program.record([x], capture)
    found["captured"] = capture.ops
    return found


if __name__ == "__main__":
    driver, backend = Driver(Path(sys.argv[1])), h200()
    with torch.inference_mode():
        print(json.dumps(operators(driver, backend) | {"model": model(driver, backend)}))
