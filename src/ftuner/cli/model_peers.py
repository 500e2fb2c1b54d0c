"""The engines that `ftuner bench model` and `ftuner compare` run models with: prepare for a file,
then call with arrays by name.

All compute in float32 on the same number of threads and take inputs of any extents; none prepares
for a shape. A library is imported when its engine is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from ftuner.cli.inputs import Array
from ftuner.cli.peers import SUBJECT
from ftuner.inference import load

Runner = Callable[[Mapping[str, Array]], list[Array]]
"""The outputs of a model, in order. They may be overwritten by the next call."""


def _ftuner(path: str, threads: int) -> Runner:
    return load(path, threads=threads).run


def _onnxruntime(path: str, threads: int) -> Runner:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its warnings about optimisations would mix with the output of the command.
    options.log_severity_level = 3
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))


def _openvino(path: str, threads: int) -> Runner:
    core = import_module("openvino").Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    request = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [results[i] for i in range(len(results))]

    return run


class ModelEngine(NamedTuple):
    """The modules that an engine needs, and how it prepares."""

    modules: tuple[str, ...]
    prepare: Callable[[str, int], Runner]

    def available(self) -> bool:
        return all(find_spec(module) is not None for module in self.modules)


MODEL_ENGINES: dict[str, ModelEngine] = {
    SUBJECT: ModelEngine(("ftuner", "onnx"), _ftuner),
    "onnxruntime": ModelEngine(("onnxruntime",), _onnxruntime),
    "openvino": ModelEngine(("openvino",), _openvino),
}
