"""Changes that make a right node hostile, or merely odd."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, helper
from tests.hostile.bases import Array, Node

INTEGERS = (-(2**63), -(2**31), -3, -1, 0, 1, 2, 3, 64, 2**31, 2**62, 2**63 - 1)
FLOATS = (0.0, -1.0, 1e-45, 3.4e38, float("nan"), float("inf"), -float("inf"))
TEXTS = (b"", b"bogus", b"add", b"constant", b"...->", b"ij,jk->ik", b"\xff\xfe")
DTYPES = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint64", "bool")
FEW_ELEMENTS = 16
"""Of inputs whose values are changed one by one: what tells shapes is small."""


@dataclass(frozen=True)
class Change:
    """A changed node."""

    what: str
    node: Node
    huge: bool = False
    """Whether elements are as large as floats can be: the order of sums decides what overflows."""
    other_dtype: bool = False
    """Whether ONNX may not have the operator for its element types."""


def _resized(x: Array, axis: int, extent: int) -> Array:
    shape = list(x.shape)
    shape[axis] = extent
    return np.resize(x, shape) if x.size else np.zeros(shape, x.dtype)


def fills(x: Array) -> Iterator[tuple[str, Array]]:
    """Arrays like one, of other elements."""
    elements: dict[str, list[Any]]
    if x.dtype.kind == "f":
        info = np.finfo(x.dtype)
        elements = {
            "nan": [np.nan], "infinity": [np.inf], "minus infinity": [-np.inf],
            "mixed": [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, info.tiny],
            "zero": [0.0], "minus zero": [-0.0], "huge": [info.max, -info.max, info.tiny / 4],
            "halves": [0.5, 1.5, 2.5, -0.5, -1.5],
        }  # fmt: skip
    elif x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        elements = {
            "least": [limits.min], "largest": [limits.max], "zero": [0], "one": [1],
            "mixed": [0, 1, limits.max, limits.min, limits.max - 1, limits.min + 1, 2],
        }  # fmt: skip
    else:
        elements = {"true": [True], "false": [False]}
    for name, values in elements.items():
        yield name, np.resize(np.array(values, x.dtype), x.shape)


def at_run_time(node: Node) -> Iterator[Change]:
    """Other extents and elements of inputs; the model stays as it is."""
    yield Change("as it is", node)
    for i in node.given:
        x = node.inputs[i]
        assert x is not None
        for axis in range(x.ndim):
            for extent in {0, 1, x.shape[axis] + 1, 17} - {x.shape[axis]}:
                changed = node.with_inputs({i: _resized(x, axis, extent)})
                yield Change(f"input {i}: {extent} along axis {axis}", changed)
        for name, y in fills(x):
            yield Change(f"input {i}: {name}", node.with_inputs({i: y}), huge=name == "huge")
    most = max((x.ndim for i in node.given if (x := node.inputs[i]) is not None), default=0)
    for axis in range(-most, 0):
        for extent in (0, 1):
            together: dict[int, Array | None] = {}
            for i in node.given:
                x = node.inputs[i]
                if x is not None and x.ndim >= -axis:
                    together[i] = _resized(x, axis, extent)
            yield Change(f"all inputs: {extent} along axis {axis}", node.with_inputs(together))
    mixed: dict[int, Array | None] = {}
    for i in node.given:
        x = node.inputs[i]
        assert x is not None
        mixed[i] = np.roll(dict(fills(x)).get("mixed", x), i)
    yield Change("all inputs: mixed", node.with_inputs(mixed))


def of_models(node: Node) -> Iterator[Change]:
    """Other attributes, ranks, element types, constants."""
    for what, attributes in _attributes(node):
        yield Change(what, replace(node, attributes=tuple(attributes)))
    for i, x in enumerate(node.inputs):
        if x is not None:
            yield from _of_input(node, i, x)
    if node.inputs:
        yield Change("one more input", replace(node, inputs=(*node.inputs, node.inputs[-1])))
    yield Change("more outputs", replace(node, outputs=(*node.outputs, True, True)))


def _of_input(node: Node, i: int, x: Array) -> Iterator[Change]:
    for dtype in DTYPES:
        if dtype != x.dtype.name:
            with np.errstate(all="ignore"):
                other = node.with_inputs({i: x.astype(dtype)})
            yield Change(f"input {i} as {dtype}", other, other_dtype=True)
    ranks = {"an axis in front": x[None], "an axis behind": x[..., None], "flat": x.ravel(),
             "two of it": np.stack([x, x])}  # fmt: skip
    if x.size:
        ranks |= {"a scalar": np.asarray(x.flat[0]), "its first": np.asarray(x[0] if x.ndim else x)}
    for name, y in ranks.items():
        yield Change(f"input {i}: {name}", node.with_inputs({i: y}))
    yield Change(f"input {i} left out", node.with_inputs({i: None}))
    yield Change(f"no input from {i} on", replace(node, inputs=node.inputs[:i]))
    constant = replace(node, fixed=node.fixed | {i})
    yield Change(f"input {i} as a constant", constant)
    yield Change(f"input {i} as an input", replace(node, fixed=node.fixed - {i}))
    if x.size > FEW_ELEMENTS or x.dtype.kind not in "iuf":
        return
    values: tuple[float, ...] = FLOATS
    if x.dtype.kind != "f":
        limits = np.iinfo(x.dtype)
        values = tuple(v for v in INTEGERS if limits.min <= v <= limits.max)
    for value in values:
        huge = x.dtype.kind == "f" and abs(value) > 1e30
        with np.errstate(all="ignore"):
            whole = np.full_like(x, value)
        yield Change(f"input {i}: all {value}", constant.with_inputs({i: whole}), huge)
        for place, name in ((0, "first"), (-1, "last")):
            if x.size > 1:
                y = x.copy()
                y.flat[place] = whole.flat[0]
                yield Change(f"input {i}: {name} {value}", constant.with_inputs({i: y}), huge)
    if x.ndim == 1:
        yield Change(f"input {i}: longer", constant.with_inputs({i: np.resize(x, x.size + 1)}))
        yield Change(f"input {i}: empty", constant.with_inputs({i: x[:0]}))


def _attributes(node: Node) -> Iterator[tuple[str, list[bytes]]]:
    """Attributes left out, of other values and other types, and one of no name."""
    have = {(a := AttributeProto.FromString(data)).name: a for data in node.attributes}
    types = {name: a.type for name, a in have.items()}
    try:
        schema = onnx.defs.get_schema(node.op, node.opset, node.domain)
    except onnx.defs.SchemaError:
        schema = None
    if schema is not None:
        kinds = AttributeProto.AttributeType
        types |= {name: kinds.Value(a.type.name) for name, a in schema.attributes.items()}
    for name, kind in sorted(types.items()):
        others = [a.SerializeToString() for n, a in have.items() if n != name]
        yield f"{name} left out", others
        for a in _values(name, kind, have.get(name)):
            text = helper.printable_attribute(a) if a.type else f"{name} of no type"
            yield text[:60], [*others, a.SerializeToString()]
    bogus = helper.make_attribute("bogus", 3).SerializeToString()
    yield "an attribute of no such name", [*node.attributes, bogus]


def _values(name: str, kind: int, given: AttributeProto | None) -> Iterator[AttributeProto]:
    if kind == AttributeProto.INT:
        yield from (AttributeProto(name=name, type="INT", i=n) for n in INTEGERS)
    elif kind == AttributeProto.FLOAT:
        yield from (AttributeProto(name=name, type="FLOAT", f=x) for x in FLOATS)
    elif kind == AttributeProto.STRING:
        yield from (AttributeProto(name=name, type="STRING", s=t) for t in TEXTS)
    elif kind == AttributeProto.INTS:
        own = list(given.ints) if given is not None else [0]
        for ints in ([], [*own, 0], own[:-1], own[::-1], own + own, [-1] * len(own),
                     [99] * len(own), [2**62] * len(own), [-(2**63)] * len(own)):  # fmt: skip
            yield AttributeProto(name=name, type="INTS", ints=ints)
    wrong = {
        "INT": {"i": 1}, "FLOAT": {"f": 1.0}, "STRING": {"s": b"x"}, "INTS": {"ints": [0, 1]},
        "FLOATS": {"floats": [1.0]},
    }  # fmt: skip
    for type_, value in wrong.items():
        if AttributeProto.AttributeType.Value(type_) != kind:
            yield AttributeProto(name=name, type=type_, **value)
    yield AttributeProto(name=name)
