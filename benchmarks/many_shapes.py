"""`python -m benchmarks.many_shapes`: resident memory of small models over many distinct shapes.

Each model runs in a process of its own, on shapes in random order, each once: a text model of three
lengths, a picture network of heights and widths, and a loop over a part of a graph.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper

from benchmarks.onnx_writing import Writer
from benchmarks.run import ROOT, command_of, console, environment

WIDTH, HEADS = 32, 2
CHANNELS = 8
CARRIED = 8
"""Width of what the loop carries."""
TRIPS = 3
SHAPES = 100_000
REPORTED = (100, 1_000, 10_000, 100_000)
"""After as many shapes."""
MB = 1e6
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Subject:
    """A model, and the shapes of its inputs for numbers."""

    model: Callable[[], onnx.ModelProto]
    shapes: Callable[[int], Shapes]


def _weight(writer: Writer, *shape: int) -> str:
    rng = np.random.default_rng(shape)
    return writer.constant(rng.standard_normal(shape) / shape[0] ** 0.5, np.float32)


def text() -> onnx.ModelProto:
    """Two layers of attention over another text, with products and norms."""
    writer = Writer()
    x = "x"
    batch, length, other = writer.extent("x", 0), writer.extent("x", 1), writer.extent("y", 1)
    for _ in range(2):
        q = writer.node("MatMul", x, _weight(writer, WIDTH, WIDTH))
        k, v = (writer.node("MatMul", "y", _weight(writer, WIDTH, WIDTH)) for _ in "kv")
        parts = [
            writer.heads(part, batch, n, HEADS, WIDTH // HEADS)
            for part, n in ((q, length), (k, other), (v, other))
        ]
        z = writer.attention(*parts, depth=WIDTH // HEADS)
        z = writer.node("Transpose", z, perm=[0, 2, 1, 3])
        x = writer.node("Add", x, writer.reshaped(z, batch, length, WIDTH))
        ones, zeros = (writer.constant(np.full(WIDTH, n), np.float32) for n in (1, 0))
        x = writer.node("LayerNormalization", x, ones, zeros)
        inner = writer.node("Relu", writer.node("MatMul", x, _weight(writer, WIDTH, 4 * WIDTH)))
        x = writer.node("Add", x, writer.node("MatMul", inner, _weight(writer, 4 * WIDTH, WIDTH)))
    given = {name: (TensorProto.FLOAT, ["b", n, WIDTH]) for name, n in (("x", "s"), ("y", "t"))}
    return writer.model(given, {x: ["b", "s", WIDTH]})


def picture() -> onnx.ModelProto:
    """Convolutions, one with strides and one of each channel, and a mean."""
    writer = Writer()
    x = writer.node("Conv", "x", _weight(writer, CHANNELS, 3, 3, 3), pads=[1] * 4, strides=[2, 2])
    x = writer.node("Relu", x)
    y = writer.node("Conv", x, _weight(writer, CHANNELS, 1, 3, 3), pads=[1] * 4, group=CHANNELS)
    x = writer.node("Add", x, writer.node("Conv", y, _weight(writer, CHANNELS, CHANNELS, 1, 1)))
    x = writer.node("GlobalAveragePool", x)
    return writer.model({"x": (TensorProto.FLOAT, [1, 3, "h", "w"])}, {x: [1, CHANNELS, 1, 1]})


def loop() -> onnx.ModelProto:
    """Iterations of a product and a sum."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["going_on"]),
            helper.make_node("MatMul", ["carried", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["turned"]),
            helper.make_node("Add", ["turned", "x"], ["carried_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, ["b", "s", CARRIED]),
        ],
        [
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried_on", TensorProto.FLOAT, ["b", "s", CARRIED]),
        ],
    )
    weight = np.random.default_rng(0).standard_normal((CARRIED, CARRIED)).astype(np.float32) / 8
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["z"], body=body)],
        "model",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", CARRIED]),
            helper.make_tensor_value_info("trips", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["b", "s", CARRIED])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _three(number: int) -> Shapes:
    batch, rest = number % 4 + 1, number // 4
    return {"x": (batch, rest % 160 + 1, WIDTH), "y": (batch, rest // 160 + 1, WIDTH)}


def _two(number: int) -> Shapes:
    return {"x": (1, 3, number % 320 + 1, number // 320 + 1)}


def _looped(number: int) -> Shapes:
    return {"x": (number % 320 + 1, number // 320 + 1, CARRIED), "trips": ()}


SUBJECTS = {
    "text": Subject(text, _three),
    "picture": Subject(picture, _two),
    "loop": Subject(loop, _looped),
}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def here(name: str, count: int, threads: int, memory_limit: int | None) -> dict[str, float]:
    """Resident bytes of this process after numbers of shapes, and after `Model.trim`."""
    subject = SUBJECTS[name]
    file = subject.model().SerializeToString()
    model = importlib.import_module("ftuner").load(
        file, threads=threads, memory_limit=memory_limit
    )  # fmt: skip
    numbers = np.random.default_rng(0).permutation(max(count, SHAPES))[:count].tolist()
    most = max(math.prod(s) for n in numbers for s in subject.shapes(n).values())
    elements, trips = np.full(most, 0.5, np.float32), np.array(TRIPS)
    found: dict[str, float] = {}
    began = time.process_time()
    for done, number in enumerate(numbers, 1):
        shapes = subject.shapes(number)
        feeds = {n: elements[: math.prod(s)].reshape(s) if s else trips for n, s in shapes.items()}
        model.run(feeds)
        if done in REPORTED or done == count:
            found[f"{done:,}"] = resident_bytes()
            print(f"{name}: {found}", file=sys.stderr)
    seconds = time.process_time() - began
    found["kept by the model"] = model.kept_bytes
    model.trim()
    found["after trim"] = resident_bytes()
    found["us of CPU per shape"] = 1e6 * seconds / count
    return found


def main(
    subjects: Annotated[list[str] | None, typer.Argument(help="Some of them; all.")] = None,
    shapes: Annotated[int, typer.Option(help="Distinct shapes.")] = SHAPES,
    threads: Annotated[int, typer.Option(help="Threads of a run.")] = 1,
    memory_limit: Annotated[int | None, typer.Option(help="As of `ftuner.load`.")] = None,
    inside: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Resident memory of small models over many distinct shapes, in MB."""
    if inside:
        assert subjects is not None
        print(json.dumps(here(subjects[0], shapes, threads, memory_limit)))
        return
    for name in subjects or SUBJECTS:
        limit = {} if memory_limit is None else {"memory-limit": memory_limit}
        command = command_of(
            "benchmarks.many_shapes", name, inside=True, shapes=shapes, threads=threads, **limit
        )
        done = subprocess.run(command, env=environment(threads), check=True, text=True, cwd=ROOT,
                              stdout=subprocess.PIPE)  # fmt: skip
        found = json.loads(done.stdout)
        micros = found.pop("us of CPU per shape")
        parts = ", ".join(f"{what}: {n / MB:.0f}" for what, n in found.items())
        console.print(f"{name}: MB after shapes {parts}; {micros:.0f} us of CPU a shape")


if __name__ == "__main__":
    typer.run(main)
