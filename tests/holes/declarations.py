"""Holes in what a model declares: its nodes still mean the same."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import onnx
from onnx import TensorProto, helper

Model = Any
"""An `onnx.ModelProto`: generated classes have no types."""
Hole = Callable[[Model, Random], None]
ODD = (
    "ä/β:0",
    "a b\tc",
    "{0}%s",
    "'\"\\",
    "x" * 300,
    "\N{GRINNING FACE}",
    "<unk>",
    "../../x",
    "\n",
)
"""Parts of names."""
FLOAT_MISTAKEN = (TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING, TensorProto.UNDEFINED)


def _dims(model: Model) -> Iterator[Any]:
    """Dims of inputs that are symbols."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                yield dim


def _middle(model: Model, random: Random) -> str:
    """The name of a tensor that a node makes."""
    named = [name for node in model.graph.node for name in node.output if name]
    return random.choice(named)


def _of_dims(field: str, value: str | int) -> Hole:
    """Each symbol becomes a value."""

    def change(model: Model, _: Random) -> None:
        for dim in list(_dims(model)):
            setattr(dim, field, value)

    return change


empty_dim_params, one_symbol = _of_dims("dim_param", ""), _of_dims("dim_param", "N")
negative_dims, zero_dims = _of_dims("dim_value", -1), _of_dims("dim_value", 0)


def unnamed_dims(model: Model, _: Random) -> None:
    for dim in list(_dims(model)):
        dim.ClearField("dim_param")


def odd_symbols(model: Model, random: Random) -> None:
    names = {dim.dim_param: f"{random.choice(ODD)}{n}" for n, dim in enumerate(_dims(model))}
    for dim in list(_dims(model)):
        dim.dim_param = names[dim.dim_param]


def symbols_that_are_sums(model: Model, _: Random) -> None:
    for dim in list(_dims(model)):
        dim.dim_param = f"{dim.dim_param} + 1*({dim.dim_param})"


def symbols_that_are_numbers(model: Model, random: Random) -> None:
    for dim in list(_dims(model)):
        dim.dim_param = random.choice(("1", "-1", "3", "None", "?"))


def inputs_without_shape(model: Model, _: Random) -> None:
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")


def an_input_without_type(model: Model, random: Random) -> None:
    random.choice(model.graph.input).ClearField("type")


def wrong_value_info(model: Model, random: Random) -> None:
    for _ in range(3):
        kind = random.choice((TensorProto.FLOAT, TensorProto.INT64))
        shape = random.choice(([3], [7, "q", 2, 2, 2], None, [0], [-1, -1]))
        info = helper.make_tensor_value_info(_middle(model, random), kind, shape)
        model.graph.value_info.append(info)


def contradicting_value_info(model: Model, random: Random) -> None:
    name = _middle(model, random)
    for shape in (["batch", 5], ["batch", 6, 6]):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        model.graph.value_info.append(info)


def value_info_of_nothing(model: Model, _: Random) -> None:
    info = helper.make_tensor_value_info("nothing of the name", TensorProto.FLOAT, [2])
    model.graph.value_info.append(info)
    model.graph.value_info.add()


def value_info_of_an_input(model: Model, random: Random) -> None:
    info = model.graph.value_info.add()
    info.CopyFrom(random.choice(model.graph.input))


def outputs_without_shape(model: Model, _: Random) -> None:
    for value in model.graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        value.type.tensor_type.ClearField("shape")


def outputs_of_wrong_rank(model: Model, random: Random) -> None:
    for value in model.graph.output:
        shape = random.choice(([2], [1, 2, 3, 4, 5, 6], []))
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))


def outputs_of_wrong_extents(model: Model, random: Random) -> None:
    value = random.choice(model.graph.output)
    value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [7, 7, 7]))


def outputs_of_wrong_dtype(model: Model, random: Random) -> None:
    for value in model.graph.output:
        value.type.tensor_type.elem_type = random.choice(FLOAT_MISTAKEN)


def a_dead_branch(model: Model, random: Random) -> None:
    name = _middle(model, random)
    model.graph.node.append(helper.make_node("Identity", [name], ["dead_0"]))
    model.graph.node.append(helper.make_node("Shape", ["dead_0"], ["dead_1"]))


def a_dead_product(model: Model, _: Random) -> None:
    """Nothing reads it, and its extents do not fit."""
    for name, dims in (("dead_a", [2, 3]), ("dead_b", [4, 5])):
        elements = [0.0] * (dims[0] * dims[1])
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, dims, elements))
    model.graph.node.append(helper.make_node("MatMul", ["dead_a", "dead_b"], ["dead_2"]))


def a_dead_unknown_node(model: Model, random: Random) -> None:
    name = _middle(model, random)
    model.graph.node.append(helper.make_node("Unheard", [name], ["dead"], domain="of.nobody"))
    model.opset_import.append(helper.make_opsetid("of.nobody", 1))


def unused_initialisers(model: Model, _: Random) -> None:
    for kind in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16, TensorProto.BOOL):
        tensor = helper.make_tensor(f"unused_{kind}", kind, [2, 0], [])
        model.graph.initializer.append(tensor)


def an_unused_input(model: Model, _: Random) -> None:
    """It has a default, so that nobody has to give it."""
    value = helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1])
    model.graph.input.append(value)
    model.graph.initializer.append(helper.make_tensor("unused", TensorProto.FLOAT, [1], [0.0]))


def initialisers_as_inputs(model: Model, _: Random) -> None:
    """As files of IR version 3 have them: inputs with a default."""
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        model.graph.input.append(value)


def initialisers_as_inputs_of_ir_3(model: Model, random: Random) -> None:
    initialisers_as_inputs(model, random)
    model.ir_version = 3


def initialisers_as_inputs_of_wrong_shape(model: Model, random: Random) -> None:
    tensor = random.choice(model.graph.initializer)
    value = helper.make_tensor_value_info(tensor.name, tensor.data_type, [*tensor.dims, 2])
    model.graph.input.append(value)


def equal_names_of_nodes(model: Model, _: Random) -> None:
    for node in model.graph.node:
        node.name = "node"


def an_initialiser_twice(model: Model, random: Random) -> None:
    model.graph.initializer.append(random.choice(model.graph.initializer))


def an_output_twice(model: Model, _: Random) -> None:
    model.graph.output.append(model.graph.output[0])


def a_tensor_made_twice(model: Model, random: Random) -> None:
    name = _middle(model, random)
    model.graph.node.append(helper.make_node("Identity", [model.graph.input[0].name], [name]))


def an_input_twice(model: Model, _: Random) -> None:
    model.graph.input.append(model.graph.input[0])


def an_initialiser_named_as_an_output(model: Model, _: Random) -> None:
    name = model.graph.output[0].name
    model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [1], [0.0]))


def nodes_in_no_order(model: Model, random: Random) -> None:
    nodes = list(model.graph.node)
    random.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def nodes_backwards(model: Model, _: Random) -> None:
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def odd_names(model: Model, random: Random) -> None:
    """Of all tensors but inputs, whose names feeds have."""
    kept = {value.name for value in model.graph.input}
    renamed: dict[str, str] = {}

    def name(old: str) -> str:
        if not old or old in kept:
            return old
        return renamed.setdefault(old, f"{random.choice(ODD)}{len(renamed)}")

    for node in model.graph.node:
        node.input[:] = [name(x) for x in node.input]
        node.output[:] = [name(x) for x in node.output]
        node.name = random.choice(ODD)
    for thing in (*model.graph.initializer, *model.graph.output, *model.graph.value_info):
        thing.name = name(thing.name)
    model.graph.name = random.choice(ODD)


def names_that_are_left_out_at_the_end(model: Model, _: Random) -> None:
    """Empty names in the places of optional inputs."""
    version = model.opset_import[0].version
    for node in model.graph.node:
        most = onnx.defs.get_schema(node.op_type, version, node.domain).max_input
        if node.op_type not in ("Concat", "Min") and len(node.input) < most:
            node.input.append("")


def an_optional_input_in_the_middle(model: Model, _: Random) -> None:
    """A Clip without a least and with a most, before the first output."""
    node = next(n for n in model.graph.node if model.graph.output[0].name in n.output)
    limit = helper.make_tensor("limit", TensorProto.FLOAT, [], [3.0e38])
    model.graph.initializer.append(limit)
    place = list(model.graph.node).index(node)
    clip = helper.make_node("Clip", [node.input[0], "", "limit"], ["clipped"])
    node.input[0] = "clipped"
    model.graph.node.insert(place, clip)
