"""Holes in versions, in constants, and in what lies outside the graph."""

from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.holes.declarations import Model

BESIDE = "holes.bin"
"""The file that external data names."""
LARGE = 64
"""Bytes of an initialiser from which on it is put beside the model."""


def an_ir_version(model: Model, random: Random) -> None:
    model.ir_version = random.choice((3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13))


def no_ir_version(model: Model, _: Random) -> None:
    model.ClearField("ir_version")


def an_ir_version_of_later(model: Model, _: Random) -> None:
    model.ir_version = 99


def an_opset(model: Model, random: Random) -> None:
    """Some nodes are of another form there: they are refused, or the same."""
    model.opset_import[0].version = random.choice((7, 11, 13, 14, 17, 19, 20, 21, 22, 23, 24))


def an_opset_of_later(model: Model, _: Random) -> None:
    model.opset_import[0].version = 999


def no_opset(model: Model, _: Random) -> None:
    del model.opset_import[:]


def no_opset_of_onnx(model: Model, _: Random) -> None:
    del model.opset_import[0]


def an_opset_twice(model: Model, _: Random) -> None:
    model.opset_import.append(model.opset_import[0])


def two_opsets(model: Model, random: Random) -> None:
    model.opset_import.append(helper.make_opsetid("", random.choice((11, 17, 21))))


def two_names_of_onnx(model: Model, random: Random) -> None:
    version = random.choice((model.opset_import[0].version, 11, 21))
    model.opset_import.append(helper.make_opsetid("ai.onnx", version))


def the_long_name_of_onnx(model: Model, _: Random) -> None:
    model.opset_import[0].domain = "ai.onnx"
    for node in list(model.graph.node)[::2]:
        node.domain = "ai.onnx"


def opsets_of_others(model: Model, _: Random) -> None:
    for domain in ("ai.onnx.ml", "of.nobody", "pkg.onnxscript.torch_lib"):
        if all(opset.domain != domain for opset in model.opset_import):
            model.opset_import.append(helper.make_opsetid(domain, 3))


def a_function(model: Model, random: Random) -> None:
    """In the place of a node; perhaps of another opset, in which the node is the same."""
    nodes = [n for n in model.graph.node if n.op_type in ("MatMul", "Add", "Erf", "Concat", "Conv")]
    node = random.choice(nodes)
    inside = onnx.NodeProto()
    inside.CopyFrom(node)
    inside.input[:] = [f"in_{n}" for n in range(len(node.input))]
    inside.output[:] = ["out"]
    inner = helper.make_opsetid("", random.choice((13, 14, 18, 21)))
    model.functions.append(
        helper.make_function("own", "One", list(inside.input), ["out"], [inside], [inner])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    del node.attribute[:]
    node.domain, node.op_type = "own", "One"
    model.ir_version = max(model.ir_version, 8)


def a_function_that_is_not_there(model: Model, random: Random) -> None:
    a_function(model, random)
    del model.functions[:]


def a_function_of_an_operator_of_onnx(model: Model, random: Random) -> None:
    """Functions come before operators only in domains of their own."""
    a_function(model, random)
    model.functions[0].name = "Unheard"


def a_constant_of_another_dtype(model: Model, random: Random) -> None:
    tensor = random.choice(model.graph.initializer)
    kinds = {TensorProto.FLOAT: np.float64, TensorProto.INT64: np.int32}
    other = numpy_helper.to_array(tensor).astype(kinds[tensor.data_type])
    tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))


def constants_as_numbers(model: Model, _: Random) -> None:
    """In fields of their types in place of bytes."""
    for tensor in model.graph.initializer:
        x = numpy_helper.to_array(tensor)
        numbers = x.reshape(-1).tolist()
        tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, x.shape, numbers))


def constants_as_nodes(model: Model, _: Random) -> None:
    for tensor in list(model.graph.initializer):
        constant = helper.make_node("Constant", [], [tensor.name], value=tensor)
        model.graph.node.insert(0, constant)
    del model.graph.initializer[:]


def a_constant_that_is_too_short(model: Model, random: Random) -> None:
    tensor = random.choice(model.graph.initializer)
    tensor.raw_data = tensor.raw_data[:-1]


def a_constant_that_is_too_long(model: Model, random: Random) -> None:
    random.choice(model.graph.initializer).raw_data += b"\0\0\0\0"


def a_constant_of_bytes_and_numbers(model: Model, random: Random) -> None:
    tensors = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    tensor = random.choice(tensors)
    tensor.float_data[:] = [1.0] * (len(tensor.raw_data) // 4)


def _put_beside(model: Model) -> bytes:
    """The contents of the file with the larger initialisers, which then name it."""
    data = b""
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) < LARGE:
            continue
        place = {"location": BESIDE, "offset": str(len(data)), "length": str(len(tensor.raw_data))}
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
    return data


# Holes in a file beside the model: they change the model and return the contents of the file.


def beside(model: Model) -> bytes:
    """As it should be."""
    return _put_beside(model)


def beside_truncated(model: Model) -> bytes:
    return _put_beside(model)[:-5]


def beside_empty(model: Model) -> bytes:
    return _put_beside(model)[:0]


def beside_missing(model: Model) -> None:
    _put_beside(model)


def beside_longer_than_its_tensors(model: Model) -> bytes:
    return _put_beside(model) + b"\xff" * 100


def beside_without_lengths(model: Model) -> bytes:
    data = _put_beside(model)
    for tensor in model.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    return data
