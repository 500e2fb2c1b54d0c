"""Whole ONNX files on the engines: prepared for a number of threads, then bound to inputs.

Outputs are what each engine gives its caller without a further copy. Libraries are imported when
an engine is first asked for.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.engines import OPENVINO_SETTINGS, SUBJECT, onnxruntime_session

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Bind = Callable[[Feeds], Callable[[], Array]]
"""Binds inputs by name, and gives the call that computes the output."""
Prepare = Callable[[Path, int, "str | None"], Bind]
"""From a file, a number of threads and the name of an output, by default the first."""


def prepare_ftuner(path: Path, threads: int, output: str | None = None) -> Bind:
    model = importlib.import_module("ftuner").load(path, threads=threads)
    at = _place([spec.name for spec in model.outputs], output)
    return lambda feeds: lambda: model.run(feeds)[at]


def prepare_onnxruntime(path: Path, threads: int, output: str | None = None) -> Bind:
    session = onnxruntime_session(str(path), threads)
    at = _place([found.name for found in session.get_outputs()], output)
    return lambda feeds: lambda: session.run(None, feeds)[at]


def prepare_openvino(path: Path, threads: int, output: str | None = None) -> Bind:
    openvino = importlib.import_module("openvino")
    settings = {**OPENVINO_SETTINGS, "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    at = compiled.output(0 if output is None else output)

    def bind(feeds: Feeds) -> Callable[[], Array]:
        tensors = {
            name: openvino.Tensor(array, shared_memory=True) for name, array in feeds.items()
        }

        def call() -> Array:
            for name, tensor in tensors.items():
                request.set_tensor(name, tensor)
            request.infer(share_outputs=True)
            return request.get_tensor(at).data  # type: ignore[no-any-return]

        return call

    return bind


_MNN_CONVERTS = """import sys, _tools
_tools.mnnconvert(["", "-f", "ONNX", "--modelFile", sys.argv[1], "--MNNModel", sys.argv[2],
                   "--bizCode", "benchmark"])"""
"""The converter prints, and its own command installs packages."""


def prepare_mnn(path: Path, threads: int, output: str | None = None) -> Bind:
    mnn, onnx = importlib.import_module("MNN"), importlib.import_module("onnx")
    graph = onnx.load(path, load_external_data=False).graph
    names = [value.name for value in graph.input]
    results = [value.name for value in graph.output]
    results = results[:1] if output is None else [output]
    with tempfile.TemporaryDirectory() as folder:
        converted = str(Path(folder) / "model.mnn")
        command = [sys.executable, "-c", _MNN_CONVERTS, str(path), converted]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        settings = {"backend": "CPU", "numThread": threads, "precision": "high"}
        manager = mnn.nn.create_runtime_manager((settings,))
        net = mnn.nn.load_module_from_file(converted, names, results, runtime_manager=manager)

    def bind(feeds: Feeds) -> Callable[[], Array]:
        given = [mnn.expr.placeholder(list(feeds[n].shape), mnn.expr.NCHW) for n in names]
        for variable, name in zip(given, names, strict=True):
            variable.write(feeds[name])

        def call() -> Array:
            found = net.forward(given)
            found = found[0] if isinstance(found, (list, tuple)) else found
            return found.read()  # type: ignore[no-any-return]

        return call

    return bind


def _place(names: list[str], wanted: str | None) -> int:
    return 0 if wanted is None else names.index(wanted)


ONNX_ENGINES: Mapping[str, Prepare] = {
    SUBJECT: prepare_ftuner,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "mnn": prepare_mnn,
}
