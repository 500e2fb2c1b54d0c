"""Small models, as the bytes of files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, load_from_string, numpy_helper

Dims = Sequence["int | str | None"]


def info(name: str, number: int, dims: Dims | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, number, dims)


def model_of(
    nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto], constants: Sequence[TensorProto] = (), ir: int = 10,
) -> bytes:  # fmt: skip
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(constants))
    opsets = [helper.make_opsetid("", 17)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=ir).SerializeToString()
    return data


def scaled_sum(ir: int = 10, overridable: bool = False) -> bytes:
    """`z = (x + y) * weight` for rows of three, and the shape of x."""
    nodes = [
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node("Mul", ["sum", "weight"], ["z"]),
        helper.make_node("Shape", ["x"], ["shape"]),
    ]
    inputs = [info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    if overridable:
        inputs.append(info("weight", TensorProto.FLOAT, [3]))
    outputs = [info("z", TensorProto.FLOAT, ["batch", 3]), info("shape", TensorProto.INT64, [2])]
    weight = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "weight")
    return model_of(nodes, inputs, outputs, [weight], ir)


def with_weight_outside() -> bytes:
    """`scaled_sum` whose weight is in a file that does not exist."""
    model = load_from_string(scaled_sum())
    (weight,) = model.graph.initializer
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weight.bin")
    data: bytes = model.SerializeToString()
    return data


def described() -> bytes:
    """A model whose file says much of it."""
    nodes = [helper.make_node("Exp", ["x"], ["y"])]
    graph = helper.make_graph(
        nodes, "graph", [info("x", TensorProto.FLOAT, [None, "n", 3])],
        [info("y", TensorProto.FLOAT, [None, "n", 3])], doc_string="a graph",
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10, producer_name="tests",
        model_version=3, domain="org.example", doc_string="a model",
    )  # fmt: skip
    helper.set_model_props(model, {"language": "en", "classes": "a\nb"})
    data: bytes = model.SerializeToString()
    return data


def identity(number: int, dims: Dims = ("n",)) -> bytes:
    """A model that returns its input, of an element type by ONNX's number."""
    return model_of(
        [helper.make_node("Identity", ["x"], ["y"])], [info("x", number, dims)],
        [info("y", number, dims)],
    )  # fmt: skip


def decoder() -> bytes:
    """`present` is `past` with the rows of `new` after its own, in each of two heads; and the sum
    of all rows."""
    nodes = [
        helper.make_node("Concat", ["past", "new"], ["present"], axis=2),
        helper.make_node("ReduceSum", ["present", "axes"], ["total"], keepdims=0),
    ]
    inputs = [
        info(name, TensorProto.FLOAT, ["batch", 2, rows, 4])
        for name, rows in (("past", "rows"), ("new", "more"))
    ]
    outputs = [
        info("total", TensorProto.FLOAT, ["batch", 2, 4]),
        info("present", TensorProto.FLOAT, ["batch", 2, "all", 4]),
    ]
    return model_of(nodes, inputs, outputs, [numpy_helper.from_array(np.array([2]), "axes")])


def gathered() -> bytes:
    """Elements of `x` at the indices `i`."""
    return model_of(
        [helper.make_node("Gather", ["x", "i"], ["y"])],
        [info("x", TensorProto.FLOAT, ["n"]), info("i", TensorProto.INT64, ["m"])],
        [info("y", TensorProto.FLOAT, ["m"])],
    )


def of_node(op: str, inputs: Sequence[str] = ("x",), domain: str = "") -> bytes:
    """A model of one node."""
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), ["y"], domain=domain)], "graph",
        [info("x", TensorProto.FLOAT, ["n"])], [info("y", TensorProto.FLOAT, ["n"])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return data
