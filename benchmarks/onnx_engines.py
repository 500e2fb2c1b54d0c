"""Whole ONNX files on the engines: prepared for a number of threads, then bound to inputs.

Outputs are what each engine gives its caller without a further copy. Libraries are imported when
an engine is first asked for.
"""

from __future__ import annotations

import importlib
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


def _place(names: list[str], wanted: str | None) -> int:
    return 0 if wanted is None else names.index(wanted)


ONNX_ENGINES: Mapping[str, Prepare] = {
    SUBJECT: prepare_ftuner,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
}
