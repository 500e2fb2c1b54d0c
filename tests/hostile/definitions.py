"""What onnxruntime's operators on levels compute, by its documentation: an operator on floats
between a dequantization and a quantization. Its own kernels round otherwise, and lack some cases;
these models it runs as written."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper, numpy_helper

_SOFTMAX_OF_ONE_AXIS = 13
"""The version of ONNX since which Softmax normalises one axis, not all from it on."""
_ATTRIBUTES_OF_REDUCTIONS = 17
"""The last version of ONNX in which the axes of ReduceMean are an attribute."""


def definition(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model of one node on levels as one of nodes on floats."""
    (node,) = model.graph.node
    writer = _Writer(model)
    DEFINITIONS[node.op_type](writer, node)
    graph = helper.make_graph(
        writer.nodes, "definition", model.graph.input, model.graph.output, model.graph.initializer
    )
    opsets = [helper.make_opsetid("", writer.opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


class _Writer:
    """The nodes of a definition."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes: list[NodeProto] = []
        self.opset = _ATTRIBUTES_OF_REDUCTIONS
        given = {v.name: len(v.type.tensor_type.shape.dim) for v in model.graph.input}
        self.ranks = given | {x.name: len(x.dims) for x in model.graph.initializer}

    def add(
        self, op: str, *inputs: str, result: str = "", given: Sequence[AttributeProto] = (),
        **attributes: object,
    ) -> str:  # fmt: skip
        result = result or f"t{len(self.nodes)}"
        node = helper.make_node(op, inputs, [result], **attributes)
        node.attribute.extend(given)
        self.nodes.append(node)
        return result

    def parameters(self, node: NodeProto, number: int) -> list[str]:
        """A scale, and a zero point if there is one: elements, not tensors of one element."""
        given = [n for n in node.input[number : number + 2] if n]
        whole = self.add("Constant", value=numpy_helper.from_array(np.zeros(0, np.int64)))
        return [self.add("Reshape", name, whole) for name in given]

    def floats(self, node: NodeProto, number: int) -> str:
        parameters = self.parameters(node, number + 1)
        return self.add("DequantizeLinear", node.input[number], *parameters)

    def levels(self, node: NodeProto, y: str, number: int) -> None:
        self.add("QuantizeLinear", y, *self.parameters(node, number), result=node.output[0])

    def turned(self, x: str, rank: int, first: bool) -> str:
        """Channels first or last."""
        order = list(range(rank))
        order = [0, rank - 1, *order[1:-1]] if first else [0, *order[2:], 1]
        return self.add("Transpose", x, perm=order)


def _of_one(op: str) -> Callable[[_Writer, NodeProto], None]:
    def write(writer: _Writer, node: NodeProto) -> None:
        attributes = {a.name: a for a in node.attribute}
        last = attributes.pop("channels_last", AttributeProto()).i
        if op == "Softmax" and attributes.pop("opset").i < _SOFTMAX_OF_ONE_AXIS:
            writer.opset = _SOFTMAX_OF_ONE_AXIS - 1
        x = writer.floats(node, 0)
        rank = writer.ranks[node.input[0]]
        y = writer.add(op, writer.turned(x, rank, True) if last else x,
                       given=list(attributes.values()))  # fmt: skip
        writer.levels(node, writer.turned(y, rank, False) if last else y, 3)

    return write


def _of_two(op: str) -> Callable[[_Writer, NodeProto], None]:
    def write(writer: _Writer, node: NodeProto) -> None:
        writer.levels(node, writer.add(op, writer.floats(node, 0), writer.floats(node, 3)), 6)

    return write


def _concat(writer: _Writer, node: NodeProto) -> None:
    parts = [writer.floats(node, number) for number in range(2, len(node.input), 3)]
    writer.levels(node, writer.add("Concat", *parts, given=node.attribute), 0)


def _where(writer: _Writer, node: NodeProto) -> None:
    x, y = (writer.floats(node, number) for number in (1, 4))
    writer.levels(node, writer.add("Where", node.input[0], x, y), 7)


DEFINITIONS: dict[str, Callable[[_Writer, NodeProto], None]] = {
    "QLinearAdd": _of_two("Add"),
    "QLinearAveragePool": _of_one("AveragePool"),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
    "QLinearLeakyRelu": _of_one("LeakyRelu"),
    "QLinearMul": _of_two("Mul"),
    "QLinearReduceMean": _of_one("ReduceMean"),
    "QLinearSigmoid": _of_one("Sigmoid"),
    "QLinearSoftmax": _of_one("Softmax"),
    "QLinearWhere": _where,
}
