"""Engines that generate token by token: the keys and values of a token are inputs of the next one.

A file's first output is the logits. The outputs after it are, in the order of the inputs called
`past_0`, `past_1`, ..., these inputs with the rows of the new tokens appended. Each engine hands
them on as its own interface does best. Libraries are imported when an engine is first asked for.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.zoo.architecture import Array, Feeds
from ftuner_tools.engines import OPENVINO_SETTINGS, onnxruntime_session
from ftuner_tools.timing import SUBJECT

IN_PLACE = "ftuner, in place"
"""The engine that ratios are about."""


class Generator(ABC):
    """A decoder on one engine, and the keys and values of the text so far."""

    @abstractmethod
    def begin(self, pasts: Feeds) -> None:
        """Start from keys and values, by the names of the inputs."""

    @abstractmethod
    def step(self, given: Feeds) -> Array:
        """The logits of the tokens in `given`, the inputs other than keys and values."""


class OnArrays(Generator):
    """An engine with one function from arrays by name to all outputs in order."""

    def __init__(self, run: Callable[[Feeds], list[Array]]):
        self._run = run

    def begin(self, pasts: Feeds) -> None:
        self._pasts = pasts

    def step(self, given: Feeds) -> Array:
        logits, *presents = self._run({**given, **self._pasts})
        self._pasts = dict(zip(self._pasts, presents, strict=True))
        return logits


def ftuner(path: Path, threads: int, append_in_place: bool) -> Generator:
    load = importlib.import_module("ftuner").load
    return OnArrays(load(path, threads=threads, append_in_place=append_in_place).run)


def onnxruntime(path: Path, threads: int) -> Generator:
    return OnArrays(partial(onnxruntime_session(str(path), threads).run, None))


class OnnxRuntimeBound(Generator):
    """ONNX Runtime with bound values: keys and values never become arrays."""

    def __init__(self, path: Path, threads: int):
        self._session = onnxruntime_session(str(path), threads)
        self._value = importlib.import_module("onnxruntime").OrtValue.ortvalue_from_numpy
        self._outputs = [output.name for output in self._session.get_outputs()]

    def begin(self, pasts: Feeds) -> None:
        self._binding = self._session.io_binding()
        self._pasts = {name: self._value(past) for name, past in pasts.items()}

    def step(self, given: Feeds) -> Array:
        binding = self._binding
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        for name, past in self._pasts.items():
            binding.bind_ortvalue_input(name, past)
        for name in self._outputs:  # Otherwise a run writes to the memory of the one before.
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        logits, *presents = binding.get_outputs()
        self._pasts = dict(zip(self._pasts, presents, strict=True))
        return logits.numpy()  # type: ignore[no-any-return]


class OpenVino(Generator):
    """OpenVINO on the file as it is. Two requests take turns, so that the outputs of one are the
    inputs of the other without a copy."""

    def __init__(self, path: Path, threads: int):
        self._tensor = importlib.import_module("openvino").Tensor
        compiled = _compiled(str(path), threads)
        self._requests = [compiled.create_infer_request() for _ in range(2)]

    def begin(self, pasts: Feeds) -> None:
        self._arrays = pasts  # The tensors do not keep them alive.
        self._pasts = {name: self._shared(past) for name, past in pasts.items()}

    def _shared(self, array: Array) -> Any:
        return self._tensor(array, shared_memory=True)

    def step(self, given: Feeds) -> Array:
        request, other = self._requests
        self._requests = [other, request]
        for name, array in given.items():
            request.set_tensor(name, self._shared(array))
        for name, past in self._pasts.items():
            request.set_tensor(name, past)
        request.infer(share_outputs=True)
        logits, *presents = request.output_tensors
        self._pasts = dict(zip(self._pasts, presents, strict=True))
        return logits.data  # type: ignore[no-any-return]


class OpenVinoStateful(Generator):
    """OpenVINO after its transformation of keys and values into state that a request holds."""

    def __init__(self, path: Path, threads: int):
        openvino = importlib.import_module("openvino")
        transformations = importlib.import_module("openvino._offline_transformations")
        self._tensor = openvino.Tensor
        model = openvino.Core().read_model(str(path))
        names = [x.any_name for x in model.inputs if x.any_name.startswith("past_")]
        presents = [x.any_name for x in model.outputs[1:]]
        pairs = dict(zip(names, presents, strict=True))
        transformations.apply_make_stateful_transformation(model, pairs)
        self._request = _compiled(model, threads).create_infer_request()
        # A state is called by the names of its input and output, one after the other.
        self._state = {name + present: name for name, present in pairs.items()}

    def begin(self, pasts: Feeds) -> None:
        self._request.reset_state()
        for state in self._request.query_state():
            state.state = self._tensor(pasts[self._state[state.name]])

    def step(self, given: Feeds) -> Array:
        for name, array in given.items():
            self._request.set_tensor(name, self._tensor(array, shared_memory=True))
        self._request.infer(share_outputs=True)
        return self._request.output_tensors[0].data  # type: ignore[no-any-return]


def _compiled(model: Any, threads: int) -> Any:
    settings = {**OPENVINO_SETTINGS, "INFERENCE_NUM_THREADS": threads,
                "KV_CACHE_PRECISION": "f32"}  # fmt: skip
    return importlib.import_module("openvino").Core().compile_model(model, "CPU", settings)


GENERATORS: Mapping[str, Callable[[Path, int], Generator]] = {
    IN_PLACE: partial(ftuner, append_in_place=True),
    SUBJECT: partial(ftuner, append_in_place=False),
    "onnxruntime": onnxruntime,
    "onnxruntime, bound": OnnxRuntimeBound,
    "openvino": OpenVino,
    "openvino, stateful": OpenVinoStateful,
}
