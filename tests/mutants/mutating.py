"""Mutants: models with bytes, or with parts of their structure, changed at random."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from tests.mutants.corpus import SPECIAL, SPECIAL_SHARE, random_model, special_model

MODELS = 5000
"""Random graphs that mutants are made of."""
STRUCTURE_SHARE = 0.7
"""Of mutants, those whose structure is changed; the others have bytes changed."""
CHANGES = (1, 1, 1, 2, 3, 8)
HOSTILE_INTEGERS = (
    0, 1, -1, 2, 3, -2, 7, 64, 1000, 2**16, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1,
    -(2**63), -(2**63) + 1,
)  # fmt: skip
HOSTILE_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, -3e38, 1e300, np.inf, -np.inf, np.nan)
HOSTILE_TEXTS = (
    "", "x", "nearest", "add", "../../etc/passwd", "/dev/zero", "a" * 300, "\x00", "\n", "NOTSET",
)  # fmt: skip


def mutant(seed: int) -> bytes:
    """The mutant of a seed."""
    random = Random(seed)
    base = _base(random)
    if random.random() < STRUCTURE_SHARE:
        return _structure_changed(base, random)
    return _bytes_changed(base, random)


def _base(random: Random) -> bytes:
    if random.random() < SPECIAL_SHARE:
        return special_model(random.choice(list(SPECIAL)))
    return random_model(random.randrange(MODELS))


def _bytes_changed(base: bytes, random: Random) -> bytes:
    data = bytearray(base)
    for _ in range(random.choice(CHANGES)):
        random.choice(_BYTES)(data, random)
    return bytes(data)


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _insert(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.choice((1, 2, 9)))


def _delete(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.choice((1, 2, 30))]


def _repeat(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = data[at : at + random.randrange(1, 200)]


def _truncate(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data) + 1) :]


def _splice(data: bytearray, random: Random) -> None:
    """Bytes of another model in the place of some."""
    other = _base(random)
    begin, size = random.randrange(len(other)), random.randrange(1, 300)
    at = random.randrange(len(data) + 1)
    data[at : at + size] = other[begin : begin + size]


_BYTES = (_flip, _flip, _set, _set, _insert, _delete, _repeat, _truncate, _splice)


def _structure_changed(base: bytes, random: Random) -> bytes:
    model = onnx.ModelProto.FromString(base)
    for _ in range(random.choice(CHANGES)):
        try:
            random.choice(_STRUCTURE)(model, random)
        except (IndexError, TypeError, ValueError, DecodeError):
            # There is nothing of the kind, or it takes no such value.
            continue
    return bytes(model.SerializeToString())


Model = Any
"""An `onnx.ModelProto`: generated classes have no types."""


def _nodes(model: Model, random: Random) -> Any:
    """The nodes of the graph, of a branch or of a function."""
    places = [model.graph.node, *(f.node for f in model.functions)]
    for node in model.graph.node:
        places += [a.g.node for a in node.attribute if a.HasField("g")]
    return random.choice(places)


def _node(model: Model, random: Random) -> Any:
    return random.choice(_nodes(model, random))


def _names(model: Model) -> list[str]:
    names = [x.name for x in (*model.graph.input, *model.graph.initializer)]
    return names + [name for node in model.graph.node for name in node.output]


def _other_input(model: Model, random: Random) -> None:
    node = _node(model, random)
    at = random.randrange(len(node.input))
    node.input[at] = random.choice([*_names(model), "", "nothing of the name"])


def _swapped_inputs(model: Model, random: Random) -> None:
    inputs = _node(model, random).input
    first, second = random.randrange(len(inputs)), random.randrange(len(inputs))
    inputs[first], inputs[second] = inputs[second], inputs[first]


def _fewer_inputs(model: Model, random: Random) -> None:
    node = _node(model, random)
    del node.input[random.randrange(len(node.input))]


def _more_inputs(model: Model, random: Random) -> None:
    _node(model, random).input.append(random.choice(_names(model)))


def _other_output(model: Model, random: Random) -> None:
    node = _node(model, random)
    at = random.randrange(len(node.output))
    node.output[at] = random.choice([*_names(model), "", "another"])


def _without_node(model: Model, random: Random) -> None:
    nodes = _nodes(model, random)
    del nodes[random.randrange(len(nodes))]


def _twice(model: Model, random: Random) -> None:
    nodes = _nodes(model, random)
    nodes.add().CopyFrom(random.choice(nodes))


def _reordered(model: Model, random: Random) -> None:
    nodes = _nodes(model, random)
    first, second = random.choice(nodes), random.choice(nodes)
    kept = onnx.NodeProto.FromString(first.SerializeToString())
    first.CopyFrom(second)
    second.CopyFrom(kept)


def _other_operator(model: Model, random: Random) -> None:
    other = onnx.ModelProto.FromString(_base(random))
    theirs, ours = _node(other, random), _node(model, random)
    ours.op_type, ours.domain = theirs.op_type, theirs.domain
    if random.random() < 0.5:
        del ours.attribute[:]
        ours.attribute.extend(theirs.attribute)


def _attribute(model: Model, random: Random) -> Any:
    attributes = [a for node in _nodes(model, random) for a in node.attribute]
    return random.choice(attributes)


def _hostile_attribute(model: Model, random: Random) -> None:
    attribute = _attribute(model, random)
    kind = attribute.type
    if kind == AttributeProto.INT:
        attribute.i = random.choice(HOSTILE_INTEGERS)
    elif kind == AttributeProto.FLOAT:
        attribute.f = random.choice(HOSTILE_FLOATS[:7])
    elif kind == AttributeProto.STRING:
        attribute.s = random.choice(HOSTILE_TEXTS).encode()
    elif kind == AttributeProto.INTS:
        _list_changed(attribute.ints, HOSTILE_INTEGERS, random)
    elif kind == AttributeProto.TENSOR:
        _tensor_changed(attribute.t, random)


def _list_changed(numbers: Any, hostile: Sequence[int], random: Random) -> None:
    how = random.randrange(4)
    if how == 0 or not numbers:
        numbers.append(random.choice(hostile))
    elif how == 1:
        del numbers[random.randrange(len(numbers))]
    elif how == 2:
        first, second = random.randrange(len(numbers)), random.randrange(len(numbers))
        numbers[first], numbers[second] = numbers[second], numbers[first]
    else:
        numbers[random.randrange(len(numbers))] = random.choice(hostile)


def _other_type_of_attribute(model: Model, random: Random) -> None:
    _attribute(model, random).type = random.randrange(16)


def _without_attribute(model: Model, random: Random) -> None:
    attributes = _node(model, random).attribute
    del attributes[random.randrange(len(attributes))]


def _another_attribute(model: Model, random: Random) -> None:
    other = onnx.ModelProto.FromString(_base(random))
    _node(model, random).attribute.add().CopyFrom(_attribute(other, random))


def _tensor(model: Model, random: Random) -> None:
    _tensor_changed(random.choice(model.graph.initializer), random)


def _tensor_changed(tensor: Any, random: Random) -> None:
    how = random.randrange(7)
    if how == 0:
        _list_changed(tensor.dims, HOSTILE_INTEGERS, random)
    elif how == 1:
        tensor.data_type = random.randrange(26)
    elif how == 2:
        tensor.raw_data = tensor.raw_data[: random.randrange(len(tensor.raw_data) + 1)]
    elif how == 3:
        tensor.external_data.add(key="location", value=random.choice(HOSTILE_TEXTS))
        tensor.data_location = TensorProto.EXTERNAL
    else:
        _elements_changed(tensor, random)


def _place_changed(model: Model, random: Random) -> None:
    """Which bytes of which file a tensor has."""
    tensors = [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    place = random.choice(random.choice(tensors).external_data)
    place.value = random.choice((*map(str, HOSTILE_INTEGERS), *HOSTILE_TEXTS, "32", "64", "128"))


def _elements_changed(tensor: Any, random: Random) -> None:
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    values = numpy_helper.to_array(tensor).copy()
    hostile: Sequence[float] = HOSTILE_INTEGERS if values.dtype.kind in "iu" else HOSTILE_FLOATS
    if values.dtype.kind not in "iuf" or not values.size:
        return
    with np.errstate(all="ignore"):
        number = np.array(random.choice(hostile)).astype(values.dtype)
    values.reshape(-1)[random.randrange(values.size)] = number
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _input_shape(model: Model, random: Random) -> None:
    dims = random.choice(model.graph.input).type.tensor_type.shape.dim
    how = random.randrange(4)
    if how == 0:
        dims.add().dim_value = random.choice(HOSTILE_INTEGERS)
    elif how == 1:
        del dims[random.randrange(len(dims))]
    elif how == 2:
        random.choice(dims).dim_value = random.choice(HOSTILE_INTEGERS)
    else:
        random.choice(dims).dim_param = random.choice(("B", "n0", "", "x" * 300, "1", "-"))


def _input_type(model: Model, random: Random) -> None:
    random.choice(model.graph.input).type.tensor_type.elem_type = random.randrange(26)


def _outputs(model: Model, random: Random) -> None:
    name = random.choice([*_names(model), "", "nothing of the name"])
    model.graph.output.append(helper.make_empty_tensor_value_info(name))


def _opset(model: Model, random: Random) -> None:
    imported = random.choice(model.opset_import)
    imported.version = random.choice((0, 1, 6, 7, 9, 11, 13, 17, 18, 21, 24, 99, *HOSTILE_INTEGERS))


_STRUCTURE: tuple[Callable[[Model, Random], None], ...] = (
    _other_input, _other_input, _swapped_inputs, _fewer_inputs, _more_inputs, _other_output,
    _without_node, _twice, _reordered, _other_operator, _other_operator, _hostile_attribute,
    _hostile_attribute, _hostile_attribute, _other_type_of_attribute, _without_attribute,
    _another_attribute, _tensor, _tensor, _tensor, _place_changed, _input_shape, _input_shape,
    _input_type, _outputs, _opset,
)  # fmt: skip
