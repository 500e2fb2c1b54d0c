"""Small models that say much: each stands for work or memory that grows faster than the file."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper
from tests.frontends.onnx_models import Dims, model_of

node = helper.make_node
FLOATS = {"x": ("float32", ["N"])}
ROWS = {"x": ("float32", ["N", 4])}


@dataclass(frozen=True)
class Bomb:
    """A model and what becomes of it."""

    make: Callable[[], onnx.ModelProto]
    error: str | None
    """The name of the error that refuses it; None if it is compiled."""


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def chain(step: Callable[[str, str], Sequence[onnx.NodeProto]], length: int, first: str = "x",
          last: str = "y") -> list[onnx.NodeProto]:  # fmt: skip
    """Steps from one value to the next. A step is given their names."""
    names = [first, *(f"v{i}" for i in range(length - 1)), last]
    return [n for a, b in itertools.pairwise(names) for n in step(a, b)]


def alternating(*ops: str) -> Callable[[str, str], Sequence[onnx.NodeProto]]:
    """A step of one of several operators in turns, so that no two are one."""
    turns = iter(range(1 << 30))

    def step(a: str, b: str) -> Sequence[onnx.NodeProto]:
        return [node(ops[next(turns) % len(ops)], [a], [b])]

    return step


def of_shape(step: Callable[[str, str], Sequence[onnx.NodeProto]], length: int,
             **constants: object) -> onnx.ModelProto:  # fmt: skip
    """Arithmetic on the shape of x, and a tensor of the shape that it gives."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        *chain(step, length, "s", "extents"),
        node("Expand", ["zero", "extents"], ["y"]),
    ]
    return model_of(nodes, FLOATS, ["y"], {"zero": np.float32(0), **constants})


# Functions.


def functions(levels: int, calls: int, body: Sequence[onnx.NodeProto] = ()) -> onnx.ModelProto:
    """Functions of which each calls the one before some times."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    first = body or [node("Neg", ["x"], ["y"])]
    made = [helper.make_function("local", "f0", ["x"], ["y"], list(first), opsets)]
    for i in range(1, levels):
        names = ["x", *(f"t{j}" for j in range(calls - 1)), "y"]
        nodes = [node(f"f{i - 1}", [a], [b], domain="local") for a, b in itertools.pairwise(names)]
        made.append(helper.make_function("local", f"f{i}", ["x"], ["y"], nodes, opsets))
    last = node(f"f{levels - 1}", ["x"], ["y"], domain="local")
    model = model_of([last], FLOATS, ["y"], functions=made)
    del model.opset_import[3:]
    return model


def _constant_in_function() -> onnx.ModelProto:
    """A constant of 40 KB, written out a thousand times."""
    value = onnx.numpy_helper.from_array(np.ones(10_000, np.float32))
    body = [node("Constant", [], ["c"], value=value), node("Add", ["x", "c"], ["y"])]
    return functions(3, 32, body)


# Arithmetic on shapes.


def _squares(a: str, b: str) -> Sequence[onnx.NodeProto]:
    return [node("Mul", [a, a], [f"{b}_m"]), node("Add", [f"{b}_m", "s"], [b])]


def _quotients(a: str, b: str) -> Sequence[onnx.NodeProto]:
    """Each number is read twice by the next."""
    return [
        node("Div", [a, "three"], [f"{b}_d"]), node("Add", [f"{b}_d", "one"], [f"{b}_e"]),
        node("Div", [a, f"{b}_e"], [f"{b}_f"]), node("Add", [f"{b}_f", "one"], [b]),
    ]  # fmt: skip


def _sums_of_products() -> onnx.ModelProto:
    """A product of forty sums of two symbols."""
    nodes: list[onnx.NodeProto] = []
    for i in range(40):
        nodes += [
            node("Shape", [f"x{i}"], [f"s{i}"]), node("ReduceSum", [f"s{i}"], [f"r{i}"]),
            node("Mul", [f"p{i - 1}" if i else "one", f"r{i}"], [f"p{i}"]),
        ]  # fmt: skip
    nodes.append(node("Expand", ["zero", "p39"], ["y"]))
    inputs: dict[str, tuple[str, Dims]] = {
        f"x{i}": ("float32", [f"A{i}", f"B{i}"]) for i in range(40)
    }
    return model_of(nodes, inputs, ["y"], {"one": integers(1), "zero": np.float32(0)})


def slices(length: int) -> onnx.ModelProto:
    steps = chain(lambda a, b: [node("Slice", [a, "one", "minus"], [b])], length)
    return model_of(steps, FLOATS, ["y"], {"one": integers(1), "minus": integers(-1)})


def concatenation(count: int) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(count)]
    inputs: dict[str, tuple[str, Dims]] = {n: ("float32", [f"N{n}"]) for n in names}
    return model_of([node("Concat", names, ["y"], axis=0)], inputs, ["y"])


def _doubling(op: str, length: int) -> onnx.ModelProto:
    axis = {"axis": 0} if op == "Concat" else {}
    steps = chain(lambda a, b: [node(op, [a, a], [b], **axis)], length, last="v")
    return model_of([*steps, node("ReduceSum", ["v"], ["y"])], FLOATS, ["y"])


# Constants.


def _filled(*shape: int, then: Sequence[onnx.NodeProto] = (), **constants: object):  # type: ignore[no-untyped-def]
    """A constant of a shape, and what reads it as `c`."""
    nodes = [node("ConstantOfShape", ["shape"], ["c"]), *(then or _sum_of("c"))]
    return model_of(nodes, FLOATS, ["y"], {"shape": integers(*shape), **constants})


def _sum_of(name: str) -> list[onnx.NodeProto]:
    return [node("ReduceSum", [name], ["y"], keepdims=0)]


def _one(
    op: str, inputs: Sequence[str], opset: int = 18,
    attributes: dict[str, object] | None = None, **constants: object,
) -> onnx.ModelProto:  # fmt: skip
    """One node, and the largest element of what it gives."""
    nodes = [
        node(op, inputs, ["r"], **(attributes or {})), node("ReduceMax", ["r"], ["y"], keepdims=0)
    ]  # fmt: skip
    return model_of(nodes, FLOATS, ["y"], constants, opset)


def _folded_in_all() -> onnx.ModelProto:
    """Two hundred constants of 60 MB, each below what one may have."""
    nodes: list[onnx.NodeProto] = []
    for i in range(200):
        value = helper.make_tensor("v", onnx.TensorProto.FLOAT, [1], [float(i)])
        nodes += [
            node("ConstantOfShape", ["shape"], [f"c{i}"], value=value),
            node("CumSum", [f"c{i}", "axis"], [f"k{i}"]),
        ]
    names = [f"k{i}" for i in range(200)]
    nodes += [node("Concat", names, ["k"], axis=0), node("Gather", ["k", "i"], ["y"])]
    constants = {"shape": integers(15 << 20), "axis": np.int64(0)}
    return model_of(nodes, {"i": ("int64", ["N"])}, ["y"], constants)


def _folded_products(dtype: int) -> onnx.ModelProto:
    cast = [
        node("Cast", ["c"], ["k"], to=dtype), node("CumSum", ["k", "axis"], ["a"]),
        node("MatMul", ["a", "a"], ["m"]), node("MatMul", ["m", "a"], ["n"]),
        node("ReduceMax", ["n"], ["y"], keepdims=0),
    ]  # fmt: skip
    return _filled(2000, 2000, then=cast, axis=np.int64(0))


def _widened_by_zero_point() -> onnx.ModelProto:
    """A row of integers less a column of zero points."""
    nodes = [
        node("Cast", ["w"], ["f"], to=1), node("Sub", ["f", "zero"], ["d"]),
        node("MatMul", ["x", "d"], ["y"]),
    ]  # fmt: skip
    constants = {"w": np.ones((1, 30_000), np.int8), "zero": np.ones((30_000, 1), np.float32)}
    return model_of(nodes, {"x": ("float32", ["N", 30_000])}, ["y"], constants)


def _weights_of_many(count: int, combinations: bool) -> onnx.ModelProto:
    """Weights of 64 KiB, of which each tensor is multiplied with some."""
    nodes: list[onnx.NodeProto] = []
    outputs: list[str] = []
    for i in range(count):
        nodes.append(node("Add", ["x", f"c{i}"], [f"x{i}"]))
        # Pairs that differ from each other, or the same one.
        pair = (i % 16, (i // 16 + i) % 16) if combinations else (0, 1)
        for w in {*pair}:
            nodes += [
                node("MatMul", [f"x{i}", f"w{w}"], [f"m{i}_{w}"]),
                node("ReduceSum", [f"m{i}_{w}"], [f"s{i}_{w}"], keepdims=0),
            ]
            outputs.append(f"s{i}_{w}")
    nodes.append(node("Sum", outputs, ["y"]))
    constants = {f"c{i}": np.float32(i) for i in range(count)}
    weights = {f"w{i}": np.full((4, 4096), i, np.float32) for i in range(16)}
    return model_of(nodes, ROWS, ["y"], {**constants, **weights})


# Graphs.


def nested(depth: int) -> onnx.ModelProto:
    def graph(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), "g", [], [helper.make_empty_tensor_value_info("o")])

    inner = graph([node("Neg", ["x"], ["o"])])
    other = inner
    for _ in range(depth):
        inner = graph([node("If", ["c"], ["o"], then_branch=inner, else_branch=other)])
    last = node("If", ["c"], ["y"], then_branch=inner, else_branch=other)
    return model_of([last], FLOATS, ["y"], {"c": np.bool_(True)})


def _branches(count: int) -> onnx.ModelProto:
    def graph(op: str) -> onnx.GraphProto:
        value = helper.make_empty_tensor_value_info("o")
        return helper.make_graph([node(op, ["x"], ["o"])], "g", [], [value])

    names = [f"v{i}" for i in range(count)]
    nodes = [
        node("If", ["c"], [n], then_branch=graph("Neg"), else_branch=graph("Abs")) for n in names
    ]
    return model_of([*nodes, node("Sum", names, ["y"])], FLOATS, ["y"], {"c": np.bool_(True)})


def after(op: str, inputs: Sequence[str], length: int, *ops: str) -> onnx.ModelProto:
    """A node and what could be taken into its stores."""
    nodes = [node(op, inputs, ["v"]), *chain(alternating(*ops), length, "v")]
    for i, other in enumerate(nodes[1:]):
        other.output[0] = "y" if i == length - 1 else f"u{i}"
        other.input[0] = "v" if i == 0 else f"u{i - 1}"
    return model_of(nodes, ROWS, ["y"], {"w": np.ones((4, 4), np.float32)})


def _scaled_integers(length: int) -> onnx.ModelProto:
    """A weight of integers, scaled again and again."""
    nodes = [
        node("Cast", ["w"], ["f"], to=1),
        *chain(lambda a, b: [node("Mul", [a, "s"], [b])], length, "f", "scaled"),
        node("MatMul", ["x", "scaled"], ["y"]),
    ]
    constants = {"w": np.ones((4, 8192), np.int8), "s": np.float32(1.01)}
    return model_of(nodes, ROWS, ["y"], constants)


def outputs(count: int) -> onnx.ModelProto:
    names = [f"y{i}" for i in range(count)]
    nodes = [node("Add", ["x", f"c{i}"], [name]) for i, name in enumerate(names)]
    return model_of(nodes, ROWS, names, {f"c{i}": np.float32(i) for i in range(count)})


def _names(name: str) -> onnx.ModelProto:
    return model_of([node("Neg", [name], ["y"], name=name)], FLOATS, ["y"])


def _types(depth: int) -> bytes:
    """A type of types, as bytes: the library does not nest them so deep."""

    def field(number: int, content: bytes) -> bytes:
        size, length = b"", len(content)
        while True:
            byte, length = length & 127, length >> 7
            size += bytes([byte | (128 if length else 0)])
            if not length:
                return bytes([number << 3 | 2]) + size + content

    kind = b""
    for _ in range(depth):
        kind = field(4, field(1, kind))
    return field(7, field(11, field(1, b"x") + field(2, kind)))


def _numbered(count: int, name: Callable[[int], str]) -> onnx.ModelProto:
    inputs: dict[str, tuple[str, Dims]] = {f"x{i}": ("float32", [name(i)]) for i in range(count)}
    return model_of([node("Neg", ["x0"], ["y"])], inputs, ["y"])


BOMBS: dict[str, Bomb] = {
    "functions that double": Bomb(lambda: functions(18, 2), "GraphError"),
    "functions that double for long": Bomb(lambda: functions(60, 2), "GraphError"),
    "functions of a thousand calls": Bomb(lambda: functions(40, 1000), "GraphError"),
    "functions in a row": Bomb(lambda: functions(60, 1), None),
    "functions in a long row": Bomb(lambda: functions(2000, 1), "GraphError"),
    "functions with a constant": Bomb(_constant_in_function, "GraphError"),
    "squares of shapes": Bomb(lambda: of_shape(_squares, 18), None),
    "many squares of shapes": Bomb(lambda: of_shape(_squares, 300), None),
    "quotients of shapes": Bomb(
        lambda: of_shape(_quotients, 60, three=integers(3), one=integers(1)), None
    ),
    "sums of a shape": Bomb(
        lambda: of_shape(lambda a, b: [node("Add", [a, "s"], [b])], 1000), None
    ),
    "coefficients": Bomb(
        lambda: of_shape(
            lambda a, b: [node("Mul", [a, "big"], [b])], 1000, big=integers(1 << 62)
        ), None
    ),
    "numbers": Bomb(
        lambda: model_of(
            [
                node("Shape", ["x"], ["s"]), node("Concat", ["s", "big"], ["v"], axis=0),
                *chain(lambda a, b: [node("Mul", [a, a], [b])], 40, "v", "w"),
                node("Expand", ["x", "w"], ["y"]),
            ],
            FLOATS, ["y"], {"big": integers(1 << 62)},
        ), None
    ),
    "products of sums": Bomb(_sums_of_products, None),
    "slices of slices": Bomb(lambda: slices(140), None),
    "many slices of slices": Bomb(lambda: slices(500), None),
    "extents that are joined": Bomb(lambda: concatenation(400), None),
    "a tensor that doubles": Bomb(lambda: _doubling("Concat", 62), None),
    "a sum that doubles": Bomb(lambda: _doubling("Add", 1000), None),
    "names that read alike": Bomb(lambda: _numbered(3000, lambda i: chr(0x4E00 + i)), None),
    "names that are numbers": Bomb(lambda: _numbered(30, str), None),
    "2^62 elements": Bomb(lambda: _filled(1 << 62), "ShapeError"),
    "2^80 elements": Bomb(lambda: _filled(1 << 40, 1 << 40), "ShapeError"),
    "2^62 elements, given out": Bomb(
        lambda: _filled(1 << 62, then=[node("Identity", ["c"], ["y"])]), "ShapeError"
    ),
    "2^62 elements by Expand": Bomb(
        lambda: _one("Expand", ["c", "s"], c=np.float32(1), s=integers(1 << 31, 1 << 31)),
        "ShapeError",
    ),
    "2^62 elements by Tile": Bomb(
        lambda: _one("Tile", ["c", "s"], c=np.ones(1, np.float32), s=integers(1 << 62)),
        "ShapeError",
    ),
    "2^62 elements by OneHot": Bomb(
        lambda: _one("OneHot", ["i", "d", "v"], i=integers(1), d=np.int64(1 << 62),
                     v=np.array([0, 1], np.float32)),
        "ShapeError",
    ),
    "2^63 elements by Pad": Bomb(
        lambda: _one("Pad", ["c", "p"], c=np.ones(1, np.float32), p=integers(1 << 62, 1 << 62)),
        "ShapeError",
    ),
    "2^64 elements by Range": Bomb(
        lambda: _one("Range", ["a", "b", "d"], a=np.int64(-(1 << 63)), b=np.int64((1 << 63) - 1),
                     d=np.int64(1)),
        "ShapeError",
    ),
    "1e616 elements by Range": Bomb(
        lambda: _one("Range", ["a", "b", "d"], a=np.float64(-1e308), b=np.float64(1e308),
                     d=np.float64(1e-308)),
        "GraphError",
    ),
    "a reshape to 2^62": Bomb(
        lambda: _one("Reshape", ["x", "s"], s=integers(1 << 62)), "ShapeError"
    ),
    "a reshape to 2^66": Bomb(
        lambda: _one("Reshape", ["x", "s"], s=integers(1 << 32, 1 << 32, 4)), "ShapeError"
    ),
    "a reshape to 2^62 and what is left": Bomb(
        lambda: _one("Reshape", ["x", "s"], s=integers(1 << 31, -1, 1 << 31)), None
    ),
    "a reshape with two unknown": Bomb(
        lambda: _one("Reshape", ["x", "s"], s=integers(-1, -1)), "GraphError"
    ),
    "a reshape to less than none": Bomb(
        lambda: _one("Reshape", ["x", "s"], s=integers(-2, -2)), "ShapeError"
    ),
    "a reshape to none and unknown": Bomb(
        lambda: _one("Reshape", ["x", "s"], attributes={"allowzero": 1}, s=integers(0, -1)),
        "GraphError",
    ),
    "five thousand axes": Bomb(
        lambda: _one("Unsqueeze", ["x"], 11, {"axes": list(range(1, 5000))}), "ShapeError"
    ),
    "folding in all": Bomb(_folded_in_all, None),
    "folding of products": Bomb(lambda: _folded_products(onnx.TensorProto.FLOAT), None),
    "folding of integer products": Bomb(lambda: _folded_products(onnx.TensorProto.INT64), None),
    "folding of elementary functions": Bomb(
        lambda: _filled(15 << 20, then=[*chain(alternating("Erf", "Tanh"), 100, "c", "e"),
                                        *_sum_of("e")]),
        None,
    ),
    "positions of what is not zero": Bomb(
        lambda: _filled(*[1] * 63, 15 << 20, then=[node("NonZero", ["c"], ["n"]), *_sum_of("n")]),
        None,
    ),
    "a zero point for each row": Bomb(_widened_by_zero_point, None),
    "one pair of weights": Bomb(lambda: _weights_of_many(100, False), None),
    "many pairs of weights": Bomb(lambda: _weights_of_many(100, True), None),
    "a weight that is scaled": Bomb(lambda: _scaled_integers(1000), None),
    "nested branches": Bomb(lambda: nested(12), None),
    "deeply nested branches": Bomb(lambda: nested(20), "GraphError"),
    "many branches": Bomb(lambda: _branches(500), None),
    "nested types": Bomb(lambda: _types(50_000), "ParseError"),
    "functions after a product": Bomb(
        lambda: after("MatMul", ["x", "w"], 500, "Relu", "Neg"), None
    ),
    "activations after a product": Bomb(
        lambda: after("MatMul", ["x", "w"], 200, "Mish", "Sigmoid", "HardSwish"), None
    ),
    "functions after a softmax": Bomb(lambda: after("Softmax", ["x"], 500, "Relu", "Neg"), None),
    "many outputs": Bomb(lambda: outputs(500), None),
    "extents that are broadcast": Bomb(
        lambda: model_of(
            [node("Sum", [f"x{i}" for i in range(1000)], ["y"])],
            {f"x{i}": ("float32", [f"N{i}"]) for i in range(1000)}, ["y"],
        ),
        "ShapeError",
    ),
    "operands of Einsum": Bomb(
        lambda: model_of(
            [node("Einsum", ["x"] * 800, ["y"], equation=",".join("i" * 800) + "->i")], FLOATS,
            ["y"],
        ),
        None,
    ),
    "extents by data": Bomb(
        lambda: model_of(
            chain(
                lambda a, b: [node("Neg", [a], [f"{a}n"]), node("NonZero", [f"{a}n"], [b])], 1000
            ),
            FLOATS, ["y"],
        ),
        "UnsupportedOperatorError",
    ),
    "a long name": Bomb(lambda: _names("x" * (8 << 20)), "GraphError"),
    "a name that is no text": Bomb(lambda: _names("\x1b[31m\0\n"), "GraphError"),
}  # fmt: skip


def linear_chains() -> Iterator[tuple[str, Callable[[int], onnx.ModelProto]]]:
    """Models of any length."""
    yield "functions", lambda n: model_of(chain(alternating("Relu", "Neg"), n), FLOATS, ["y"])
    yield "slices", slices
    yield "extents", concatenation
    yield "outputs", outputs
    yield "after a softmax", lambda n: after("Softmax", ["x"], n, "Relu", "Neg")
    yield "branches", _branches
