"""`python -m benchmarks.many_shapes`: resident memory of small models over many distinct shapes.

Each model runs in a process of its own, on shapes in random order, each once: a text model of three
lengths, a picture network of heights and widths, and a loop over a part of a graph.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper

from benchmarks.onnx_writing import Writer
from benchmarks.run import console, environment

WIDTH, HEADS = 32, 2
CHANNELS = 8
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
        ones, zeros = writer.constant(np.ones(WIDTH), np.float32), writer.constant(
            np.zeros(WIDTH), np.float32
        )  # fmt: skip
        x = writer.node("LayerNormalization", x, ones, zeros)
        inner = writer.node("Gelu" if False else "Relu", writer.node("MatMul", x, _weight(writer, WIDTH, 4 * WIDTH)))
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
    """Three iterations of a product and a sum."""
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
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, ["b", "s", WIDTH]),
        ],
        [
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried_on", TensorProto.FLOAT, ["b", "s", WIDTH]),
        ],
    )
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["z"], body=body)],
        "model",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "s", WIDTH]),
            helper.make_tensor_value_info("trips", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["b", "s", WIDTH])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _three(number: int) -> Shapes:
    batch, rest = number % 4 + 1, number // 4
    return {"x": (batch, rest % 160 + 1, WIDTH), "y": (batch, rest // 160 + 1, WIDTH)}


def _two(number: int) -> Shapes:
    return {"x": (1, 3, number % 320 + 1, number // 320 + 1)}


def _looped(number: int) -> Shapes:
    return {"x": (number % 320 + 1, number // 320 + 1, WIDTH), "trips": ()}


SUBJECTS = {
    "text": Subject(text, _three),
    "picture": Subject(picture, _two),
    "loop": Subject(loop, _looped),
}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def here(name: str, count: int, threads: int, memory_limit: int | None) -> dict[str, float]:
    """Resident bytes of this process after numbers of shapes, and after `trim`."""
    import ftuner

    subject = SUBJECTS[name]
    model = ftuner.load(subject.model().SerializeToString(), threads=threads)
    numbers = np.random.default_rng(0).permutation(max(count, 102_400))[:count]
    most = max(int(np.prod(s)) for n in numbers.tolist() for s in subject.shapes(n).values())
    elements = np.full(most, 0.5, np.float32)
    found: dict[str, float] = {}
    began = time.process_time()
    for done, number in enumerate(numbers.tolist(), 1):
        feeds: dict[str, Any] = {
            n: elements[: int(np.prod(s))].reshape(s) for n, s in subject.shapes(number).items()
        }
        if "trips" in feeds:
            feeds["trips"] = np.array(3)
        model.run(feeds)
        if done in REPORTED or done == count:
            found[str(done)] = resident_bytes()
    found["seconds"] = time.process_time() - began
    if hasattr(model, "trim"):
        model.trim()
        gc.collect()
        found["after trim"] = resident_bytes()
    return found
if __name__ == "__main__":
    print(json.dumps(here(sys.argv[1], int(sys.argv[2]), 1, None)))
