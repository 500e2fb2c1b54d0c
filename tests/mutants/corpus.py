"""Models that mutants are made of: random graphs over every operator, and some with what these do
not have: layers as exporters write them, local functions, branches, data in other files."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.frontends.onnx_models import model_of
from tests.random_graphs.generating import seeded

SPECIAL_SHARE = 0.2
"""Of mutants, those that are made of one of `SPECIAL`."""
BESIDE = "weights.bin"
"""A file of 128 bytes in the folder of every mutant."""


@lru_cache(maxsize=256)
def random_model(seed: int) -> bytes:
    """The model of a random graph."""
    return seeded(seed, small=True).case.model


@lru_cache(maxsize=8)
def special_model(name: str) -> bytes:
    return SPECIAL[name]()


def encoder_layer(dtype: str) -> bytes:
    """A layer of a transformer: embedding, attention, norm, gelu."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape in (("table", (11, 8)), ("wq", (8, 8)), ("wk", (8, 8)), ("wv", (8, 8)),
                            ("scale", (8,)), ("shift", (8,)))
    }  # fmt: skip
    constants = {
        **weights,
        "heads": np.array([0, 0, 2, 4], np.int64),
        **{
            name: np.array(number, dtype)
            for name, number in (("root", 2.0), ("half", 0.5), ("one", 1.0), ("sqrt2", 2**0.5))
        },
    }
    node = helper.make_node
    nodes = [node("Gather", ["table", "ids"], ["x"], axis=0)]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "heads"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Softmax", ["scaled"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        node("Shape", ["x"], ["extents"]),
        node("Reshape", ["turned", "extents"], ["flat"]),
        node("LayerNormalization", ["flat", "scale", "shift"], ["normed"], axis=-1),
        node("Div", ["normed", "sqrt2"], ["g0"]),
        node("Erf", ["g0"], ["g1"]),
        node("Add", ["g1", "one"], ["g2"]),
        node("Mul", ["normed", "g2"], ["g3"]),
        node("Mul", ["g3", "half"], ["y"]),
    ]
    model = model_of(nodes, {"ids": ("int64", ("B", "S"))}, ["y"], constants)
    return bytes(model.SerializeToString())


def _functions() -> bytes:
    """Local functions that call each other, with an attribute of the call."""
    node = helper.make_node
    opset = [helper.make_opsetid("", 18)]
    leaky = node("LeakyRelu", ["x"], ["y"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=1))
    functions = [
        helper.make_function("own", "inner", ["x"], ["y"], [leaky], opset, ["slope"]),
        helper.make_function(
            "own", "outer", ["x"], ["y"],
            [node("inner", ["x"], ["a"], domain="own", slope=0.5), node("Add", ["a", "x"], ["y"])],
            [*opset, helper.make_opsetid("own", 1)],
        ),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node("outer", ["x"], ["t"], domain="own"), node("outer", ["t"], ["y"], domain="own")],
        "g", [info("x", TensorProto.FLOAT, ["B", 5])], [info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(
        graph, functions=functions, opset_imports=[*opset, helper.make_opsetid("own", 1)],
        ir_version=10,
    )  # fmt: skip
    return bytes(model.SerializeToString())


def _branches() -> bytes:
    """A branch inside a branch, by constants, over values from outside."""
    node, info = helper.make_node, helper.make_tensor_value_info
    floats = TensorProto.FLOAT

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [info(f"{name}_y", floats, None)])

    deep = node(
        "If", ["no"], ["then_y"],
        then_branch=branch("deep", node("Exp", ["x"], ["deep_y"])),
        else_branch=branch("other", node("Neg", ["x"], ["other_y"])),
    )  # fmt: skip
    outer = node(
        "If", ["yes"], ["y"], then_branch=branch("then", deep),
        else_branch=branch("else", node("Abs", ["x"], ["else_y"])),
    )  # fmt: skip
    constants = {"yes": np.array(True), "no": np.array(False)}
    return bytes(
        model_of([outer], {"x": ("float32", ("B", 3))}, ["y"], constants).SerializeToString()
    )


def _arithmetic() -> bytes:
    """Shapes that are computed from shapes."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "first"], ["b"]),
        node("Mul", ["b", "two"], ["twice"]),
        node("Concat", ["twice", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["r"]),
        node("Slice", ["r", "starts", "ends", "axes", "steps"], ["p"]),
        node("Expand", ["p", "wide"], ["e"]),
        node("Pad", ["e", "pads"], ["d"], mode="edge"),
        node("Range", ["zero", "n", "step"], ["range"]),
        node("ConstantOfShape", ["wide"], ["c"]),
        node("Tile", ["d", "repeats"], ["t"]),
        node("TopK", ["t", "k"], ["values", "at"], axis=-1),
        node("ReduceSum", ["values", "axes"], ["y"], keepdims=0),
    ]
    numbers = {
        "first": [0], "two": [2], "rest": [-1], "starts": [-1], "ends": [-1000], "axes": [1],
        "steps": [-1], "wide": [3, 1, 1], "pads": [0, 0, 1, 0, 2, 0], "repeats": [1, 2, 1],
        "k": [2],
    }  # fmt: skip
    constants = {name: np.array(x, np.int64) for name, x in numbers.items()}
    constants |= {n: np.array(x, np.int64) for n, x in (("zero", 0), ("n", 7), ("step", 2))}
    model = model_of(nodes, {"x": ("float32", ("B", 4))}, ["y", "range", "c"], constants)
    return bytes(model.SerializeToString())


def _apart() -> bytes:
    """A weight in the file `BESIDE`."""
    model = onnx.ModelProto.FromString(
        model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ("float32", ("B", 4))}, ["y"],
            {"w": np.ones((4, 4), np.float32)},
        ).SerializeToString()
    )  # fmt: skip
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", BESIDE), ("offset", "32"), ("length", "64")):
        weight.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


SPECIAL: dict[str, Callable[[], bytes]] = {
    "layer": lambda: encoder_layer("float32"),
    "halves": lambda: encoder_layer("float16"),
    "functions": _functions,
    "branches": _branches,
    "arithmetic": _arithmetic,
    "apart": _apart,
}
