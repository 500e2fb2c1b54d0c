"""The engines that `ftuner bench` compares, with one protocol: prepare for operands, then call.

Preparing does everything that an engine can do once; the timed call computes one product into
memory that is already allocated. A library is imported when its engine is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.api import set_num_threads
from ftuner.ops import Dense, matmul

Array = npt.NDArray[np.float32]
Call = Callable[[], Array]


class Operands(NamedTuple):
    """`a[..., m, k]` and `b`: a constant weight `[n, k]` for gemm, an input `[batch, k, n]` for
    bmm; all float32."""

    a: Array
    b: Array
    constant: bool

    def output(self) -> Array:
        """Memory for the product, filled with NaN."""
        n = self.b.shape[0] if self.constant else self.b.shape[-1]
        return np.full((*self.a.shape[:-1], n), np.nan, np.float32)

    def right(self) -> Array:
        """b as `[..., k, n]`, a view."""
        return self.b.T if self.constant else self.b


def _ftuner(operands: Operands, threads: int) -> Call:
    set_num_threads(threads)
    a, out = operands.a, operands.output()
    if operands.constant:
        layer = Dense(operands.b)
        return lambda: layer(a, out=out)
    return lambda: matmul(a, operands.b, out=out)


def _numpy(operands: Operands, threads: int) -> Call:
    a, out = operands.a, operands.output()
    # One row is faster as dot products along the weight's rows, more rows from [k, n].
    right = operands.right() if a.shape[-2] == 1 else np.ascontiguousarray(operands.right())
    return lambda: np.matmul(a, right, out=out)


def _torch(operands: Operands, threads: int) -> Call:
    torch = import_module("torch")
    torch.set_num_threads(threads)
    result = operands.output()
    a, b, out = (torch.from_numpy(x) for x in (operands.a, operands.b, result))
    product = torch.nn.functional.linear if operands.constant else torch.bmm

    def call() -> Array:
        product(a, b, out=out)
        return result

    return call


def _onnxruntime(operands: Operands, threads: int) -> Call:
    runtime, onnx = import_module("onnxruntime"), import_module("onnx")
    make, floats = onnx.helper, onnx.TensorProto.FLOAT
    inputs = {"a": operands.a} if operands.constant else {"a": operands.a, "b": operands.b}
    out = operands.output()
    weight = np.ascontiguousarray(operands.right())
    graph = make.make_graph(
        [make.make_node("MatMul", ["a", "b"], ["y"])],
        "product",
        [make.make_tensor_value_info(name, floats, x.shape) for name, x in inputs.items()],
        [make.make_tensor_value_info("y", floats, out.shape)],
        [onnx.numpy_helper.from_array(weight, "b")] if operands.constant else [],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=9)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    value, binding = runtime.OrtValue.ortvalue_from_numpy, session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, value(array))
    binding.bind_ortvalue_output("y", value(out))

    def call() -> Array:
        session.run_with_iobinding(binding)
        return out

    return call


def _openvino(operands: Operands, threads: int) -> Call:
    openvino, ops = import_module("openvino"), import_module("openvino.opset13")
    inputs = [operands.a] if operands.constant else [operands.a, operands.b]
    parameters = [ops.parameter(list(x.shape), np.float32) for x in inputs]
    right = ops.constant(operands.b) if operands.constant else parameters[1]
    result = ops.matmul(parameters[0], right, False, operands.constant)
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    model = openvino.Model([result], parameters)
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    for index, array in enumerate(inputs):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
    out = operands.output()
    request.set_output_tensor(openvino.Tensor(out, shared_memory=True))

    def call() -> Array:
        request.infer(share_outputs=True)
        return out

    return call


class Engine(NamedTuple):
    """The modules that an engine needs, and how it prepares."""

    modules: tuple[str, ...]
    prepare: Callable[[Operands, int], Call]

    def available(self) -> bool:
        return all(find_spec(module) is not None for module in self.modules)


SUBJECT = "ftuner"
"""The engine whose time ratios are relative to; the others are its peers."""
ENGINES: dict[str, Engine] = {
    SUBJECT: Engine(("ftuner",), _ftuner),
    "numpy": Engine(("numpy",), _numpy),
    "torch": Engine(("torch",), _torch),
    "onnxruntime": Engine(("onnxruntime", "onnx"), _onnxruntime),
    "openvino": Engine(("openvino",), _openvino),
}


def version_of(name: str) -> str:
    """The version of an engine's package."""
    module: Any = import_module(ENGINES[name].modules[0])
    return str(module.__version__)
