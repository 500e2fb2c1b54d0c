"""A start that finds everything in the cache: LLVM is neither imported nor in memory."""

import os
import queue
import sys
import threading
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.child import printed

from ftuner.codegen.llvm.objects.keys import COMPILER_MODULE
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.builder import Builder
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.system import SystemFacts
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.backend import Options
from ftuner.runtime.cache import CACHE_VARIABLE, Cache
from ftuner.runtime.compile_processes import Started
from ftuner.runtime.cpu import compilation, session
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.kernels import Kernels

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="LLVM loads objects other than ELF"
)
PRODUCT = """
import numpy as np, ftuner
x = np.ones((3, 40), np.float32)
assert np.array_equal(ftuner.matmul(x, x.T), np.full((3, 3), 40, np.float32))
"""
MODEL = """
import sys, numpy as np, ftuner
model = ftuner.load(sys.argv[1])
(found,) = model.run({"x": np.ones((5, 24), np.float32)})
assert np.allclose(found, 1 / 16)
"""
LOADED = """
import sys
from pathlib import Path
print(*{"llvmlite.binding", "llvmlite.ir"} & sys.modules.keys(), end=" ")
print("libllvmlite" in Path("/proc/self/maps").read_text())
"""


def run(script: str, cache_folder: Path, *arguments: str) -> str:
    """What a process says of LLVM after a script: modules of llvmlite but the one that tells its
    version, and whether the library is mapped."""
    environment = {**os.environ, CACHE_VARIABLE: str(cache_folder)}
    return printed("-c", script + LOADED, *arguments, env=environment).strip()


def test_products_start_without_llvm(cache_folder: Path) -> None:
    run(PRODUCT, cache_folder)
    assert run(PRODUCT, cache_folder) == "False"


def test_models_start_without_llvm(cache_folder: Path, tmp_path: Path) -> None:
    parsed = pytest.importorskip("tests.frontends.onnx_models").parsed
    text = "(float[rows, 24] x) => (float[rows, 16] y) { s = MatMul(x, w) y = Softmax(s) }"
    path = tmp_path / "small.onnx"
    path.write_bytes(parsed(text, w=np.ones((24, 16), np.float32)).SerializeToString())
    run(MODEL, cache_folder, str(path))
    assert run(MODEL, cache_folder, str(path)) == "False"


def test_only_a_cold_start_compiles_ahead(
    backend: CpuBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes have compiled the runtime, or end with what they were started for."""
    seen: list[Started] = []

    def started(*given: Any) -> Started:
        seen.append(Started(*given))
        return seen[-1]

    monkeypatch.setattr(compilation, "Started", started)
    isa = backend.kernels.isa.name
    for failing, expected in ((True, 1), (False, 2), (False, 2)):
        kernels = Kernels(backend.hardware, isa, Cache(tmp_path))
        with suppress(ValueError), kernels.compiled_ahead():
            if failing:
                raise ValueError
            assert kernels.runtime.addresses
        assert len(seen) == expected
        assert not any(found.wait for found in seen)


def test_models_need_what_is_compiled_ahead(widest: CpuBackend) -> None:
    backend = widest
    wanted = {backend.kernels._runtime_bundle(), backend.kernels._first_family()}
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("rows"), 64))
    weights = [builder.constant(np.ones((64, n), np.float32)) for n in (256, 1000)]
    products = [builder.add("matmul", x, weight) for weight in weights]
    graph = builder.graph([x], [(value.name, value) for value in products])
    assert wanted <= {*CompiledGraph(graph, backend, Options()).bundles()}


def test_an_unknown_machine_is_probed_while_processes_have_the_runtime(
    backend: CpuBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they were asked for before the probe is what the machine needs after it."""
    paused: list[bool] = []

    def probe(facts: SystemFacts, quiet: AbstractContextManager[None] | None = None) -> CpuHardware:
        paused.append(quiet is not None)
        return replace(backend.hardware, tuning=CpuTuning())

    monkeypatch.setattr(session, "probe_machine", probe)
    isa = backend.kernels.isa.name
    new = CpuBackend(Cache(tmp_path), isa=isa)
    with new.probed_ahead():
        kernels, started = new.kernels, new._ahead.started
        assert started is not None
        with new.compiled_ahead():
            assert kernels._started is started
            wanted = [kernels._runtime_bundle(), kernels._first_family()]
            asked = [process.first for process in started._processes][:2]
            assert asked == [compilation.requested(b, kernels._llvm_target) for b in wanted]
            assert kernels.runtime.addresses
    assert not started.wait
    assert new._ahead.started is None
    for known in (True, False):
        new = CpuBackend(Cache(tmp_path if known else tmp_path / "other"), isa=isa)
        if known:
            with new.probed_ahead():
                assert new.hardware
        assert new.hardware
        assert new._ahead.started is None
    assert paused == [True, False]


def test_processes_are_of_the_thread_that_started_them() -> None:
    """The system ends them with it, so that another thread would lose what it asks for."""
    made, checked = queue.SimpleQueue[Started](), threading.Event()

    def start() -> None:
        started = Started(COMPILER_MODULE)
        made.put(started)
        checked.wait(60)
        assert started.taken()
        started.end()

    thread = threading.Thread(target=start)
    thread.start()
    other = made.get()
    waits, taken = other.wait, other.taken()
    checked.set()
    thread.join()
    assert not waits
    assert taken == []
