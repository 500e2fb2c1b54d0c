"""`python -m benchmarks.operators`: models of one operator each, against onnxruntime.

Extents are dynamic, threads equal, and calls interleaved. Printed are onnxruntime's times over
ftuner's: above one, ftuner is faster.
"""

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import typer
from onnx import helper, numpy_helper

from benchmarks import machine
from benchmarks.onnx_writing import IR_VERSION
from ftuner_tools.onnx_engines import ONNX_ENGINES
from ftuner_tools.timing import Settings, measure

OPSET = 19
LEARNING, LEARNING_OPSET = "ai.onnx.ml", 4
SUBJECT, REFERENCE = "ftuner", "onnxruntime"
Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(0)


class Operator(NamedTuple):
    """A node: its inputs in their order, by name, those in upper case known when it is loaded."""

    op: str
    inputs: Mapping[str, Array]
    attributes: Mapping[str, Any] = {}
    domain: str = ""
    result: Array | None = None
    """Has the dtype and the number of axes of what it gives, by default its first input."""

    @property
    def label(self) -> str:
        shapes = (
            f"{name}={x.item():g}" if x.shape == (1,) and name.isupper()
            else f"{name}{'x'.join(map(str, x.shape))}" for name, x in self.inputs.items()
        )  # fmt: skip
        given = (f"{key}={value!s:.20}" for key, value in self.attributes.items())
        return " ".join([self.op, *shapes, *given])

    @property
    def feeds(self) -> dict[str, Array]:
        return {name: x for name, x in self.inputs.items() if name.islower()}

    def model(self) -> onnx.ModelProto:
        """The second axis is known, as channels are."""
        infos = []
        for name, x in self.feeds.items():
            shape = [n if axis == 1 else f"{name}{axis}" for axis, n in enumerate(x.shape)]
            infos.append(helper.make_tensor_value_info(name, _type(x), shape))
        constants = [numpy_helper.from_array(x, n) for n, x in self.inputs.items() if n.isupper()]
        results = ["y", "where"] if self.op == "TopK" else ["y"]
        node = helper.make_node(
            self.op, list(self.inputs), results, domain=self.domain, **self.attributes
        )
        x = next(iter(self.feeds.values()))
        result = x if self.result is None else self.result
        y = helper.make_tensor_value_info("y", _type(result), [None] * result.ndim)
        graph = helper.make_graph([node], "operator", infos, [y], constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(LEARNING, LEARNING_OPSET)]
        return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opsets)


def _type(x: Array) -> int:
    return helper.np_dtype_to_tensor_dtype(x.dtype)


def _floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, np.float32)


def _integers(*values: int) -> Array:
    return np.array(values, np.int64)


def operators() -> list[Operator]:
    found = [
        Operator("ConvTranspose", {"x": _floats(*x), "W": _floats(*w)}, {"strides": strides})
        for x, w, strides in (
            ((1, 402, 1000), (402, 1, 400), [160]), ((1, 128, 40, 40), (128, 64, 2, 2), [2, 2]),
            ((1, 64, 64, 64), (64, 3, 4, 4), [2, 2]), ((1, 64, 40, 40), (64, 64, 3, 3), [2, 2]),
            ((1, 64, 64, 64), (64, 32, 2, 2), [2, 2]), ((8, 32, 33, 31), (32, 15, 2, 2), [2, 2]),
        )
    ]  # fmt: skip
    for shape, window, stride in (((1, 1, 480, 640), 3, 1), ((1, 1, 480, 640), 9, 1),
                                  ((1, 3, 224, 224), 2, 2), ((1, 64, 40, 40), 5, 1),
                                  ((1, 1, 40, 40), 3, 1), ((1, 3, 40, 40), 3, 1),
                                  ((1, 64, 56, 56), 3, 1), ((1, 64, 40, 40), 3, 2),
                                  ((8, 32, 28, 28), 2, 2)):  # fmt: skip
        x, border = _floats(*shape), window // 2 if stride == 1 else 0
        attributes = {"kernel_shape": [window] * 2, "strides": [stride] * 2, "pads": [border] * 4}
        found += [Operator(op, {"x": x}, attributes) for op in ("MaxPool", "AveragePool")]
    none = np.zeros(0, np.float32)
    for shape, scale in (((1, 3, 224, 224), 2.0), ((1, 3, 480, 640), 0.35),
                         ((1, 64, 40, 40), 2.0), ((1, 3, 640, 480), 0.5),
                         ((8, 16, 33, 35), 0.6), ((1, 64, 20, 20), 1.7)):  # fmt: skip
        inputs: dict[str, Array] = {
            "x": _floats(*shape),
            "R": none,
            "S": np.array([1, 1, scale, scale], np.float32),
        }
        found += [Operator("Resize", inputs, {"mode": m}) for m in ("nearest", "linear", "cubic")]
    for shape, width in (((1, 3, 224, 224), 3), ((8, 3, 128, 128), 2), ((1, 64, 56, 57), 1)):
        pads = _integers(0, 0, width, width, 0, 0, width, width)
        for mode in ("constant", "edge", "reflect", "wrap"):
            found.append(Operator("Pad", {"x": _floats(*shape), "P": pads}, {"mode": mode}))
    for shape, size in (((1, 3, 224, 224), 224), ((8, 3, 64, 64), 48)):
        grid = 2 * RANDOM.random((shape[0], size, size, 2), np.float32) - 1
        for mode in ("bilinear", "nearest"):
            found.append(Operator("GridSample", {"x": _floats(*shape), "g": grid}, {"mode": mode}))
    found.append(Operator("Conv", {"x": _floats(1, 64, 64, 64), "W": _floats(128, 64, 1, 1)}))
    for lines, k in (((1, 8400), 300), ((1, 32000), 50), ((16, 4096), 2048)):
        found.append(Operator("TopK", {"x": _floats(*lines), "K": _integers(k)}))
    at = RANDOM.integers(0, 1000, (2000, 1))
    for kind in ("none", "add", "max"):
        rows: dict[str, Array] = {"x": _floats(1000, 64), "i": at, "u": _floats(2000, 64)}
        found.append(Operator("ScatterND", rows, {"reduction": kind}))
        elements = {**rows, "i": np.repeat(at, 64, 1)}
        found.append(Operator("ScatterElements", elements, {"reduction": kind}))
    keys = RANDOM.permutation(40)
    for values, kind in (((keys * 7).tolist(), np.int64), ([f"v{k}" for k in keys], object)):
        name = {"values_int64s" if kind is np.int64 else "values_strings": values}
        for rows in (1, 100, 10_000):
            for x, given in (
                (RANDOM.choice(keys, rows), {"keys_int64s": keys.tolist()}),
                (
                    RANDOM.choice(keys, rows).astype(np.float32),
                    {"keys_floats": [float(k) for k in keys]},
                ),
                (
                    RANDOM.choice(keys, rows).astype(str).astype(object),
                    {"keys_strings": keys.astype(str).tolist()},
                ),
            ):
                found.append(
                    Operator(
                        "LabelEncoder", {"x": x}, {**given, **name}, LEARNING, np.empty(0, kind)
                    )
                )
    for count, kept in ((100, 20), (1000, 20), (1000, 100), (8400, 100)):
        corners = RANDOM.random((1, count, 2), np.float32)
        boxes = np.concatenate([corners, corners + 0.1], 2)
        given = {
            "x": boxes,
            "s": RANDOM.random((1, 1, count), np.float32),
            "M": _integers(kept),
            "I": np.array([0.5], np.float32),
            "S": np.array([0.25], np.float32),
        }
        found.append(Operator("NonMaxSuppression", given, result=boxes[0].astype(np.int64)))
    return found


def ratio(path: Path, feeds: Mapping[str, Array], threads: int) -> float:
    """onnxruntime's time for a file over ftuner's."""
    calls = {name: [ONNX_ENGINES[name].one(path, threads)(feeds)] for name in (SUBJECT, REFERENCE)}
    times = measure(calls, Settings(), random.Random(0))
    return times[REFERENCE].min_s / times[SUBJECT].min_s


def main(
    threads: Annotated[int, typer.Option(help="Threads of both.")] = 1,
    only: Annotated[str, typer.Option(help="Part of the labels to run.")] = "",
) -> None:
    """Measure each operator, and print a line for it."""
    print(machine.describe().name, machine.versions(), f"{threads} threads")
    for operator in operators():
        if only not in operator.label:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "operator.onnx")
            onnx.save(operator.model(), path)
            found = ratio(path, operator.feeds, threads)
        print(f"{found:6.2f}  {operator.label}", flush=True)


if __name__ == "__main__":
    typer.run(main)
