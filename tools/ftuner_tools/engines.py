"""The engines under comparison, one class each, with one protocol.

An engine prepares a layer for a constant weight (gemm) or a product of two inputs (bmm), then
binds arrays to it: outputs are allocated and inputs wrapped in the engine's own tensors outside the
timed call. What is timed is the bound call: one operator on data in place.

Libraries are imported when an engine is first asked for, so that a process that measures two
engines starts the threads of two engines, and so that none of them is needed to read results.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner_tools.timing import SUBJECT

Array = npt.NDArray[np.float32]
Call = Callable[[], Array]
Layer = Callable[[Array], Call]
"""Binds x[m, k] and gives the call that computes y[m, n]."""
Product = Callable[[Array, Array], Call]
"""Binds a[batch, m, k] and b, and gives the call that computes y[batch, m, n]."""

TRANSPOSED = {"nn": False, "nt": True}
"""Whether b is stored as [batch, n, k], by layout."""


def output(*shape: int) -> Array:
    """An output array whose elements are NaN until an engine has written them."""
    return np.full(shape, np.nan, dtype=np.float32)


def _columns(b: Array, layout: str) -> int:
    return int(b.shape[-2 if TRANSPOSED[layout] else -1])


def _stored_as_kn(b: Array, layout: str) -> Array:
    """b as [batch, k, n]: a view, transposed for `nt`."""
    return b.swapaxes(-1, -2) if TRANSPOSED[layout] else b


def installed(modules: Sequence[str]) -> bool:
    """Whether all these modules can be imported."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


class Engine(ABC):
    """One way to compute the cases."""

    name: str
    modules: tuple[str, ...]
    """What has to be importable."""

    def available(self) -> bool:
        """Whether the engine can be used in this process."""
        return installed(self.modules)

    @abstractmethod
    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        """A layer for weight[n, k] and bias[n], if any, float32, on `threads` threads; any m."""

    @abstractmethod
    def prepare_bmm(self, layout: str, threads: int) -> Product:
        """A batched product for b stored as `layout` says, on `threads` threads; any shape."""


class FTuner(Engine):
    name = SUBJECT
    modules = ("ftuner",)

    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        ftuner: Any = importlib.import_module("ftuner")
        ftuner.set_num_threads(threads)
        layer = ftuner.Dense(weight, bias)
        n = weight.shape[0]

        def bind(x: Array) -> Call:
            out = output(x.shape[0], n)
            return lambda: layer(x, out=out)

        return bind

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        ftuner: Any = importlib.import_module("ftuner")
        ftuner.set_num_threads(threads)

        def bind(a: Array, b: Array) -> Call:
            out = output(*a.shape[:2], _columns(b, layout))
            right = _stored_as_kn(b, layout)
            return lambda: ftuner.matmul(a, right, out=out)

        return bind


class NumPy(Engine):
    """NumPy with its OpenBLAS; the thread count is the environment's."""

    name = "numpy"
    modules = ("numpy",)

    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        by_rows, by_columns = weight.T, np.ascontiguousarray(weight.T)

        def bind(x: Array) -> Call:
            out = output(x.shape[0], weight.shape[0])
            # One row is a product with a vector, faster as dot products along [n, k]; more rows
            # are faster from [k, n]. NumPy is given the better of the two.
            right = by_rows if x.shape[0] == 1 else by_columns

            def call() -> Array:
                np.matmul(x, right, out=out)
                return out if bias is None else np.add(out, bias, out=out)

            return call

        return bind

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        def bind(a: Array, b: Array) -> Call:
            out = output(*a.shape[:2], _columns(b, layout))
            right = _stored_as_kn(b, layout)
            return lambda: np.matmul(a, right, out=out)

        return bind


_torch_configured: list[int] = []
"""Thread count that torch was set to in this process, once it was."""


def _torch(threads: int) -> Any:
    """torch on `threads` threads, in inference mode for the rest of the process: entering costs a
    microsecond, which a model pays once and not once a layer."""
    torch = importlib.import_module("torch")
    if not _torch_configured:
        torch.set_num_interop_threads(1)
        torch.inference_mode().__enter__()
    if _torch_configured != [threads]:
        torch.set_num_threads(threads)
        _torch_configured[:] = [threads]
    return torch


class Torch(Engine):
    """PyTorch, eager."""

    name = "torch"
    modules = ("torch",)

    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        torch = _torch(threads)
        linear = torch.nn.functional.linear
        w, b = torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias)

        def bind(x: Array) -> Call:
            result = output(x.shape[0], weight.shape[0])
            tensor, out = torch.from_numpy(x), torch.from_numpy(result)

            def call() -> Array:
                linear(tensor, w, b, out=out)
                return result

            return call

        return bind

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        torch = _torch(threads)

        def bind(a: Array, b: Array) -> Call:
            result = output(*a.shape[:2], _columns(b, layout))
            left, out = torch.from_numpy(a), torch.from_numpy(result)
            right = torch.from_numpy(_stored_as_kn(b, layout))

            def call() -> Array:
                torch.bmm(left, right, out=out)
                return result

            return call

        return bind


def _fresh_code(function: Any) -> Any:
    """`function` with a code object of its own.

    Dynamo keeps what it compiled by code object, tries the guards one after the other and stops
    compiling past a limit; so every prepared layer gets its own.
    """
    return types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


class TorchCompile(Engine):
    """PyTorch through Inductor with dynamic shapes; compiled before the timing starts."""

    name = "torch.compile"
    modules = ("torch",)

    def available(self) -> bool:
        compilers = (os.environ.get("CXX"), "g++", "clang++")
        return super().available() and any(c and shutil.which(c) for c in compilers)

    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        torch = _torch(threads)
        linear = torch.nn.functional.linear
        w, b = torch.from_numpy(weight), None if bias is None else torch.from_numpy(bias)
        layer = torch.compile(_fresh_code(lambda x: linear(x, w, b)), dynamic=True)

        def bind(x: Array) -> Call:
            tensor = torch.from_numpy(x)
            return lambda: layer(tensor).numpy()

        return bind

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        torch = _torch(threads)
        product = torch.compile(_fresh_code(lambda a, b: torch.bmm(a, b)), dynamic=True)

        def bind(a: Array, b: Array) -> Call:
            left, right = torch.from_numpy(a), torch.from_numpy(_stored_as_kn(b, layout))
            return lambda: product(left, right).numpy()

        return bind


_onnxruntime_pool: list[int] = []
"""Size of ONNX Runtime's global thread pool in this process, once it was set."""


def onnxruntime_session(model: str | bytes, threads: int) -> Any:
    """A session of ONNX Runtime's CPU provider, for a path or a model in bytes.

    With one thread, a session has no workers. With several, all sessions share the global thread
    pool: with a pool each, which is the default, the idle workers of one session would spin
    beside the next one's.
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    if threads == 1:
        options.intra_op_num_threads = options.inter_op_num_threads = 1
    elif not _onnxruntime_pool:
        runtime.set_global_thread_pool_sizes(threads, 1)
        _onnxruntime_pool.append(threads)
    assert threads == 1 or _onnxruntime_pool == [threads], "a process sizes the global pool once"
    options.use_per_session_threads = threads == 1
    # Its warnings about optimisations would mix with what is printed here.
    options.log_severity_level = 3
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class OnnxRuntime(Engine):
    """ONNX Runtime's CPU provider, inputs and outputs bound."""

    name = "onnxruntime"
    modules = ("onnxruntime", "onnx")

    def _session(self, inputs: dict[str, Any], nodes: Any, initialisers: Any, threads: int) -> Any:
        onnx = importlib.import_module("onnx")
        floats, rank = onnx.TensorProto.FLOAT, len(next(iter(inputs.values())))
        graph = onnx.helper.make_graph(
            nodes,
            "case",
            [onnx.helper.make_tensor_value_info(x, floats, s) for x, s in inputs.items()],
            [onnx.helper.make_tensor_value_info("y", floats, [f"y{i}" for i in range(rank)])],
            initialisers,
        )
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9
        )
        return onnxruntime_session(model.SerializeToString(), threads)

    @staticmethod
    def _bind(session: Any, inputs: dict[str, Array], out: Array) -> Call:
        value = importlib.import_module("onnxruntime").OrtValue.ortvalue_from_numpy
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, value(array))
        binding.bind_ortvalue_output("y", value(out))

        def call() -> Array:
            session.run_with_iobinding(binding)
            return out

        return call

    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        onnx = importlib.import_module("onnx")
        n, k = weight.shape
        given = {"w": weight} if bias is None else {"w": weight, "b": bias}
        node = onnx.helper.make_node("Gemm", ["x", *given], ["y"], transB=1)
        constants = [onnx.numpy_helper.from_array(x, name) for name, x in given.items()]
        session = self._session({"x": ["m", k]}, [node], constants, threads)
        return lambda x: self._bind(session, {"x": x}, output(x.shape[0], n))

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        make_node = importlib.import_module("onnx").helper.make_node
        nodes = [make_node("MatMul", ["a", "b"], ["y"])]
        if TRANSPOSED[layout]:  # the runtime fuses the transposition into the product
            nodes = [
                make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
                make_node("MatMul", ["a", "t"], ["y"]),
            ]
        inputs = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}
        session = self._session(inputs, nodes, [], threads)

        def bind(a: Array, b: Array) -> Call:
            out = output(*a.shape[:2], _columns(b, layout))
            return self._bind(session, {"a": a, "b": b}, out)

        return bind


OPENVINO_SETTINGS = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
}


class OpenVino(Engine):
    """OpenVINO's CPU plug-in: one latency stream, float32, inputs and outputs bound."""

    name = "openvino"
    modules = ("openvino",)

    def __init__(self) -> None:
        self._core: Any = None

    def _compile(self, result: Any, parameters: Any, threads: int) -> Any:
        openvino = importlib.import_module("openvino")
        if self._core is None:
            self._core = openvino.Core()
        settings = {**OPENVINO_SETTINGS, "INFERENCE_NUM_THREADS": threads}
        return self._core.compile_model(openvino.Model([result], parameters), "CPU", settings)

    @staticmethod
    def _bind(compiled: Any, inputs: list[Array], out: Array) -> Call:
        tensor = importlib.import_module("openvino").Tensor
        request = compiled.create_infer_request()
        for index, array in enumerate(inputs):
            request.set_input_tensor(index, tensor(array, shared_memory=True))
        request.set_output_tensor(tensor(out, shared_memory=True))

        def call() -> Array:
            request.infer(share_outputs=True)
            return out

        return call

    def prepare_gemm(self, weight: Array, bias: Array | None, threads: int) -> Layer:
        ops = importlib.import_module("openvino.opset13")
        n, k = weight.shape
        x = ops.parameter([-1, k], np.float32)
        product = ops.matmul(x, ops.constant(weight), False, True)
        result = product if bias is None else ops.add(product, ops.constant(bias[None, :]))
        compiled = self._compile(result, [x], threads)
        return lambda x: self._bind(compiled, [x], output(x.shape[0], n))

    def prepare_bmm(self, layout: str, threads: int) -> Product:
        ops = importlib.import_module("openvino.opset13")
        a, b = (ops.parameter([-1, -1, -1], np.float32) for _ in range(2))
        result = ops.matmul(a, b, False, TRANSPOSED[layout])
        compiled = self._compile(result, [a, b], threads)

        def bind(a: Array, b: Array) -> Call:
            return self._bind(compiled, [a, b], output(*a.shape[:2], _columns(b, layout)))

        return bind


INT8_SUBJECT = "ftuner, int8"
"""The subject, where weights are of 8-bit integers."""

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (FTuner, NumPy, Torch, TorchCompile, OnnxRuntime, OpenVino)
}
