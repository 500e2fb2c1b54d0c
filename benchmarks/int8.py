"""`python -m benchmarks.int8`: a layer whose weight is of 8-bit integers, at many numbers of rows.

The weight (768 x 12288, a scale for each column) outgrows L2 even as integers, so that a short
input waits for it. ftuner and OpenVINO run the ONNX file with the integers, ftuner and ONNX Runtime
the same layer in float32 (ONNX Runtime would round the input to integers, too, which is another
result); interleaved, with equal threads, on inputs that rotate.
"""

import io
import random
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import openvino
import typer
from onnx import helper, numpy_helper

from benchmarks import machine
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner.ort import InferenceSession, SessionOptions
from ftuner_tools.engines import INT8_SUBJECT
from ftuner_tools.timing import Settings, measure

Array = npt.NDArray[Any]
K, N = 768, 12288
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COPIES = 3
"""Inputs that calls rotate through."""
FLOAT, ONNXRUNTIME, OPENVINO = "ftuner, float32", "onnxruntime, float32", "openvino, int8"


def layer(narrow: bool, integers: Array, scale: Array) -> bytes:
    """An ONNX file of the layer, its weight as integers or as floats."""
    nodes = [helper.make_node("MatMul", ["x", "f"], ["y"])]
    constants = {"f": (integers * scale).astype(np.float32)}
    if narrow:
        nodes.insert(0, helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=1))
        constants = {"w": integers, "s": scale}
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", extent])
        for name, extent in (("x", K), ("y", N))
    )
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "layer", [x], [y], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def sessions(threads: int, integers: Array, scale: Array) -> Mapping[str, Callable[[Array], Array]]:
    """The engines, each as a function of x."""
    narrow, wide = (layer(kind, integers, scale) for kind in (True, False))
    own = SessionOptions()
    own.intra_op_num_threads = threads
    peer = onnxruntime.SessionOptions()
    peer.intra_op_num_threads, peer.inter_op_num_threads = threads, 1
    made = {
        INT8_SUBJECT: InferenceSession(narrow, own),
        FLOAT: InferenceSession(wide, own),
        ONNXRUNTIME: onnxruntime.InferenceSession(wide, peer, providers=["CPUExecutionProvider"]),
    }
    engines = {name: _of(session) for name, session in made.items()}
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        # It, too, would round the input to integers.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(io.BytesIO(narrow)), "CPU", settings)
    request = compiled.create_infer_request()
    return engines | {OPENVINO: lambda x: np.array(request.infer([x])[compiled.output(0)])}


def _of(session: Any) -> Callable[[Array], Array]:
    return lambda x: session.run(None, {"x": x})[0]  # type: ignore[no-any-return]


def main(
    threads: Annotated[int, typer.Option(help="Threads of every engine.")] = 1,
    budget: Annotated[float, typer.Option(help="Seconds for each engine and case.")] = 0.3,
) -> None:
    """Measure, print and save."""
    rng = np.random.default_rng(0)
    integers = rng.integers(-127, 128, (K, N)).astype(np.int8)
    scale = rng.uniform(0.001, 0.01, N).astype(np.float32)
    engines = sessions(threads, integers, scale)
    weight = integers.astype(np.float64) * scale
    cases = []
    for rows in ROWS:
        inputs = [rng.standard_normal((rows, K), np.float32) for _ in range(COPIES)]
        wanted = inputs[0] @ weight
        for name, run in engines.items():
            if not np.allclose(run(inputs[0]), wanted, rtol=1e-3, atol=1e-2):
                raise ValueError(f"{name} is wrong at {rows} rows")
        calls = {n: [lambda r=run, x=x: r(x) for x in inputs] for n, run in engines.items()}
        timings = measure(calls, Settings(budget_s_per_engine=budget), random.Random(rows))
        cases.append({"rows": rows, "engines": {n: t.to_json() for n, t in timings.items()}})
        own = timings[INT8_SUBJECT].min_s
        ratios = ", ".join(f"{name} {t.min_s / own:.2f}" for name, t in timings.items())
        console.print(f"{rows:>4} rows: {ratios}")
    document = header("int8", f"{K}x{N}", threads, machine.describe()) | {"cases": cases}
    save(document, results_here() / f"int8-t{threads}.json")


if __name__ == "__main__":
    typer.run(main)
