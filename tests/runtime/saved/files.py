"""Models that are saved, with inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(3)
NODE = helper.make_node
FLOAT, INT64, BOOL, STRING = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
)  # fmt: skip
Arrays = Mapping[str, Any]
ONES = {"x": np.ones((5, 48), np.float32)}


def weight(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Arrays) -> Any:
    stored = [numpy_helper.from_array(x, name) for name, x in weights.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def dense() -> tuple[Any, Arrays]:
    """Two products that share a weight, and one of two operands."""
    nodes = [
        NODE("MatMul", ["x", "w"], ["a"]), NODE("Relu", ["a"], ["b"]),
        NODE("MatMul", ["b", "w"], ["c"]), NODE("Add", ["c", "v"], ["y"]),
        NODE("Transpose", ["y"], ["t"], perm=[1, 0]), NODE("MatMul", ["y", "t"], ["z"]),
    ]  # fmt: skip
    outputs = [info("y", ["n", 48]), info("z", ["n", "n"])]
    weights = {"w": weight(48, 48), "v": weight(48)}
    return model(nodes, [info("x", ["n", 48])], outputs, weights), {"x": weight(7, 48)}


def pictures() -> tuple[Any, Arrays]:
    """A Winograd convolution, one of few channels, depthwise ones in a chain, groups, a pool."""
    nodes = [
        NODE("Conv", ["x", "w0"], ["a"], pads=[1] * 4, strides=[2, 2]),
        NODE("Clip", ["a", "zero", "six"], ["b"]),
        NODE("Conv", ["b", "w1"], ["c"], pads=[1] * 4),
        NODE("Conv", ["c", "w2"], ["d"]), NODE("Clip", ["d", "zero", "six"], ["e"]),
        NODE("Conv", ["e", "w3"], ["f"], group=96, pads=[1] * 4),
        NODE("Clip", ["f", "zero", "six"], ["g"]), NODE("Conv", ["g", "w4"], ["h"]),
        NODE("Add", ["h", "c"], ["i"]), NODE("Conv", ["i", "w5"], ["j"], group=2),
        NODE("GlobalAveragePool", ["j"], ["y"]),
    ]  # fmt: skip
    weights = {
        "w0": weight(16, 3, 3, 3), "w1": weight(16, 16, 3, 3), "w2": weight(96, 16, 1, 1),
        "w3": weight(96, 1, 3, 3), "w4": weight(16, 96, 1, 1), "w5": weight(24, 8, 1, 1),
        "zero": np.float32(0), "six": np.float32(6),
    }  # fmt: skip
    weights = {name: np.asarray(x) for name, x in weights.items()}
    inputs, outputs = [info("x", ["n", 3, "h", "w"])], [info("y", ["n", 24, 1, 1])]
    return model(nodes, inputs, outputs, weights), {"x": weight(2, 3, 37, 41)}


def recurrent() -> tuple[Any, Arrays]:
    node = NODE("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=20)
    outputs = [info("y", None), info("h", None), info("c", None)]
    weights = {"w": weight(1, 80, 9), "r": weight(1, 80, 20), "b": weight(1, 160)}
    return model([node], [info("x", ["s", "n", 9])], outputs, weights), {"x": weight(6, 3, 9)}


def loop() -> tuple[Any, Arrays]:
    """A loop whose body has a weight, within a model of several parts."""
    body = helper.make_graph(
        [NODE("MatMul", ["s", "w"], ["t"]), NODE("Tanh", ["t"], ["u"]),
         NODE("Identity", ["go"], ["on"])],
        "body", [info("i", [], INT64), info("go", [], BOOL), info("s", ["n", 33])],
        [info("on", [], BOOL), info("u", ["n", 33])],
        [numpy_helper.from_array(weight(33, 33), "w")],
    )  # fmt: skip
    nodes = [NODE("Loop", ["trips", "", "x"], ["z"], body=body), NODE("MatMul", ["z", "v"], ["y"])]
    inputs = [info("x", ["n", 33]), info("trips", [], INT64)]
    feeds = {"x": weight(4, 33), "trips": np.array(3)}
    return model(nodes, inputs, [info("y", ["n", 2])], {"v": weight(33, 2)}), feeds


def found() -> tuple[Any, Arrays]:
    """An extent that depends on data, and elements that are chosen by it."""
    nodes = [
        NODE("NonZero", ["x"], ["at"]), NODE("Transpose", ["at"], ["rows"], perm=[1, 0]),
        NODE("Cast", ["rows"], ["floats"], to=FLOAT), NODE("MatMul", ["floats", "w"], ["y"]),
    ]  # fmt: skip
    x = (RNG.standard_normal((5, 6)) > 0).astype(np.float32)
    return model(nodes, [info("x", ["n", "m"])], [info("y", None)], {"w": weight(2, 5)}), {"x": x}


def words() -> tuple[Any, Arrays]:
    nodes = [NODE("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", stopwords=["a"])]
    nodes = [
        NODE("LabelEncoder", ["x"], ["v"], domain="ai.onnx.ml", keys_strings=["a", "b"],
             values_floats=[1.5, -0.0], default_float=float("inf")), NODE("Neg", ["v"], ["y"]),
    ]  # fmt: skip
    made = model(nodes, [info("x", ["n"], STRING)], [info("y", ["n"])], {})
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return made, {"x": np.array(["a", "b", "c"], object)}


def gathered() -> tuple[Any, Arrays]:
    """A table that no step packs, of 16-bit floats, and symbolic positions."""
    nodes = [
        NODE("Gather", ["table", "ids"], ["a"]), NODE("Cast", ["a"], ["b"], to=FLOAT),
        NODE("Shape", ["ids"], ["s"]), NODE("ReduceMean", ["b"], ["m"], axes=[-1]),
        NODE("Sub", ["b", "m"], ["y"]),
    ]  # fmt: skip
    made = model(
        nodes, [info("ids", ["n", "s"], INT64)], [info("y", None), info("s", [2], INT64)],
        {"table": weight(31, 17).astype(np.float16)},
    )  # fmt: skip
    return made, {"ids": RNG.integers(-31, 31, (3, 4))}


MODELS = (dense, pictures, recurrent, loop, found, words, gathered)
