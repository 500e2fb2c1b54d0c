"""`python -m benchmarks.precisions`: layers of float32 whose products are computed in bfloat16 or
in 8-bit levels, beside the same in float32 and beside peers in the same precision.

The layers are the `mlp` set of transformers. ONNX Runtime runs what its `quantize_dynamic` makes of
the file, OpenVINO the file with bfloat16 as its precision, PyTorch a layer of bfloat16 on rows of
bfloat16, which it need not round. Engines are interleaved, with equal threads; each has three
layers, which calls rotate through.
"""

import io
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import openvino
import torch
import typer
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import ftuner
from benchmarks import machine
from benchmarks.measure import header
from benchmarks.results import save
from benchmarks.run import console, results_here
from ftuner_tools.timing import Settings, geomean, measure

Array = npt.NDArray[Any]
LAYERS = (
    (768, 768), (768, 3072), (3072, 768), (768, 2304), (512, 512), (2048, 1000), (384, 384),
    (384, 1536), (1536, 384),
)  # fmt: skip
"""k and n."""
ROWS = (1, 5, 16, 33, 77, 128, 300)
COPIES = 3
PRECISIONS = ("float32", "bfloat16", "int8-dynamic")
PEERS = {"bfloat16": ("openvino", "torch"), "int8-dynamic": ("onnxruntime",)}
LOSSES = {"float32": 1e-5, "bfloat16": 2e-2, "int8-dynamic": 4e-2}
"""How far results may be from float64's, over the norm of them all."""
Run = Callable[[Array], Array]


def file_of(weight: Array) -> bytes:
    """An ONNX file of a product by a weight."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", extent])
        for name, extent in zip("xy", weight.shape, strict=True)
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "layer", [x], [y], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def quantised(file: bytes) -> bytes:
    """What ONNX Runtime's tool makes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "given.onnx", Path(folder) / "made.onnx"
        given.write_bytes(file)
        quantize_dynamic(given, made, weight_type=QuantType.QInt8)
        return made.read_bytes()


def engines(weight: Array, threads: int) -> Mapping[str, Run]:
    """The engines, each as a function of x, by precision and name."""
    file, options = file_of(weight), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        quantised(file), options, providers=["CPUExecutionProvider"]
    )
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(core.read_model(io.BytesIO(file)), "CPU", settings)
    request = compiled.create_infer_request()
    linear = torch.from_numpy(weight.T.copy()).bfloat16()
    own = {p: ftuner.load(file, threads=threads, precision=p) for p in PRECISIONS}
    return {
        **{
            f"{p} ftuner": lambda x, model=model: model.run({"x": x})[0] for p, model in own.items()
        },
        "int8-dynamic onnxruntime": lambda x: session.run(None, {"x": x})[0],
        "bfloat16 openvino": lambda x: np.array(request.infer([x])[compiled.output(0)]),
        "bfloat16 torch": lambda x: torch.nn.functional.linear(x, linear),
    }  # type: ignore[dict-item]


def main(
    threads: Annotated[int, typer.Option(help="Threads of every engine.")] = 1,
    budget: Annotated[float, typer.Option(help="Seconds for each case, over its engines.")] = 0.5,
) -> None:
    """Measure, print and save."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(0)
    cases: list[dict[str, Any]] = []
    for k, n in LAYERS:
        weights = [
            rng.standard_normal((k, n), np.float32) / np.float32(k**0.5) for _ in range(COPIES)
        ]
        runs = [engines(weight, threads) for weight in weights]
        for rows in ROWS:
            inputs = [rng.standard_normal((rows, k), np.float32) for _ in range(COPIES)]
            wanted = inputs[0].astype(np.float64) @ weights[0]
            calls: dict[str, list[Callable[[], object]]] = {}
            for name in runs[0]:
                given: list[Any] = list(inputs)
                if name.endswith("torch"):
                    given = [torch.from_numpy(x).bfloat16() for x in inputs]
                got = runs[0][name](given[0])
                got = got.float().numpy() if isinstance(got, torch.Tensor) else got
                loss = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
                if not loss <= LOSSES[name.split()[0]]:
                    raise ValueError(f"{name} is wrong at {rows} x {k} x {n}: {loss:.2g}")
                calls[name] = [
                    lambda run=run[name], x=x: run(x) for run, x in zip(runs, given, strict=True)
                ]
            timings = measure(calls, Settings(budget_s_per_engine=budget), random.Random(rows))
            cases.append(
                {"k": k, "n": n, "rows": rows,
                 "engines": {name: t.to_json() for name, t in timings.items()}}
            )  # fmt: skip
            own = timings["float32 ftuner"].min_s
            ratios = ", ".join(f"{name} {own / t.min_s:.2f}" for name, t in timings.items())
            console.print(f"{rows:>4} x {k} x {n}: {ratios}")
    for precision, peers in PEERS.items():
        for few, some in ((False, "16 rows and more"), (True, "fewer")):
            times = [c["engines"] for c in cases if (c["rows"] < 16) == few]
            own = f"{precision} ftuner"
            of_float = geomean(t["float32 ftuner"]["min_s"] / t[own]["min_s"] for t in times)
            best = [
                min(t[f"{precision} {p}"]["min_s"] for p in peers) / t[own]["min_s"] for t in times
            ]
            console.print(
                f"{precision}, {some}: {of_float:.2f} times float32; "
                f"{geomean(best):.2f} times {' and '.join(peers)}, least {min(best):.2f}"
            )
    document = header("precisions", "mlp", threads, machine.describe()) | {"cases": cases}
    save(document, results_here() / f"precisions-t{threads}.json")


if __name__ == "__main__":
    typer.run(main)
