"""Whole ONNX files on the engines: prepared for a number of threads, then bound to inputs.

All compute in float32 and take inputs of any extents; none prepares for a shape. Outputs are what
each engine gives its caller without a further copy, and may be overwritten by the next call.
Libraries are imported when an engine is first asked for.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from ftuner_tools.engines import OPENVINO_SETTINGS, installed, onnxruntime_session
from ftuner_tools.timing import SUBJECT

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Bind = Callable[[Feeds], Callable[[], Array]]
"""Binds inputs by name, and gives the call that computes one output."""
BindAll = Callable[[Feeds], Callable[[], list[Array]]]
"""The same, of several outputs in their order."""
Outputs = Sequence[str | int] | None
"""Outputs by name or place; None for all."""


class OnnxEngine(NamedTuple):
    """The modules that an engine needs, and how it prepares a file for a number of threads."""

    modules: tuple[str, ...]
    prepare: Callable[[Path, int, Outputs], BindAll]

    def available(self) -> bool:
        return installed(self.modules)

    def one(self, path: Path, threads: int, output: str | None = None) -> Bind:
        """A file prepared for one output, by default its first."""
        bind_all = self.prepare(path, threads, [0 if output is None else output])

        def bind(feeds: Feeds) -> Callable[[], Array]:
            call = bind_all(feeds)
            return lambda: call()[0]

        return bind


def _ftuner(path: Path, threads: int, outputs: Outputs) -> BindAll:
    model = importlib.import_module("ftuner").load(path, threads=threads)
    return _chosen(model.run, [spec.name for spec in model.outputs], outputs)


def _onnxruntime(path: Path, threads: int, outputs: Outputs) -> BindAll:
    session = onnxruntime_session(str(path), threads)
    names = [found.name for found in session.get_outputs()]
    return _chosen(lambda feeds: session.run(None, feeds), names, outputs)


def _chosen(
    run: Callable[[Feeds], Sequence[Array]], names: Sequence[str], outputs: Outputs
) -> BindAll:
    """Some results of an engine that computes all outputs from arrays by name."""
    wanted = range(len(names)) if outputs is None else outputs
    places = [x if isinstance(x, int) else names.index(x) for x in wanted]

    def bind(feeds: Feeds) -> Callable[[], list[Array]]:
        def call() -> list[Array]:
            found = run(feeds)
            return [found[place] for place in places]

        return call

    return bind


def _openvino(path: Path, threads: int, outputs: Outputs) -> BindAll:
    openvino = importlib.import_module("openvino")
    settings = {**OPENVINO_SETTINGS, "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    request = compiled.create_infer_request()
    ports = compiled.outputs if outputs is None else [compiled.output(x) for x in outputs]

    def bind(feeds: Feeds) -> Callable[[], list[Array]]:
        tensors = {
            name: openvino.Tensor(array, shared_memory=True) for name, array in feeds.items()
        }

        def call() -> list[Array]:
            for name, tensor in tensors.items():
                request.set_tensor(name, tensor)
            request.infer(share_outputs=True)
            return [request.get_tensor(port).data for port in ports]

        return call

    return bind


_MNN_CONVERTS = """import sys, _tools
_tools.mnnconvert(["", "-f", "ONNX", "--modelFile", sys.argv[1], "--MNNModel", sys.argv[2],
                   "--bizCode", "benchmark"])"""
"""The converter prints, and its own command installs packages."""


def _mnn(path: Path, threads: int, outputs: Outputs) -> BindAll:
    mnn, onnx = importlib.import_module("MNN"), importlib.import_module("onnx")
    graph = onnx.load(path, load_external_data=False).graph
    names = [value.name for value in graph.input]
    results = [value.name for value in graph.output]
    if outputs is not None:
        results = [results[x] if isinstance(x, int) else x for x in outputs]
    with tempfile.TemporaryDirectory() as folder:
        converted = str(Path(folder) / "model.mnn")
        command = [sys.executable, "-c", _MNN_CONVERTS, str(path), converted]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        settings = {"backend": "CPU", "numThread": threads, "precision": "high"}
        manager = mnn.nn.create_runtime_manager((settings,))
        net = mnn.nn.load_module_from_file(converted, names, results, runtime_manager=manager)

    def bind(feeds: Feeds) -> Callable[[], list[Array]]:
        given = [mnn.expr.placeholder(list(feeds[n].shape), mnn.expr.NCHW) for n in names]
        for variable, name in zip(given, names, strict=True):
            variable.write(feeds[name])

        def call() -> list[Array]:
            found = net.forward(given)
            return [x.read() for x in (found if isinstance(found, (list, tuple)) else [found])]

        return call

    return bind


ONNX_ENGINES: dict[str, OnnxEngine] = {
    SUBJECT: OnnxEngine(("ftuner", "onnx"), _ftuner),
    "onnxruntime": OnnxEngine(("onnxruntime",), _onnxruntime),
    "openvino": OnnxEngine(("openvino",), _openvino),
    "mnn": OnnxEngine(("MNN", "onnx"), _mnn),
}
