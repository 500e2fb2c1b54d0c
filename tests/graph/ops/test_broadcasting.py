"""Extents of one symbol that are broadcast with each other, and with others: slices of one element
are repeated, other extents of one symbol must agree."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of
from tests.guarded import guarded, guarding

from ftuner.errors import ShapeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.model import Model

Array = np.ndarray[Any, Any]
NUMBERS = {
    "zero": np.array([0], np.int64), "one": np.array([1], np.int64),
    "five": np.array([5], np.int64), "end": np.array([1 << 40], np.int64),
    "last": np.array([-1], np.int64),
}  # fmt: skip
NODE = helper.make_node
FIRST = NODE("Slice", ["x", "zero", "one", "zero"], ["first"])
LAST = NODE("Slice", ["x", "last", "end", "zero"], ["final"])
FIVE = NODE("Slice", ["x", "zero", "five", "zero"], ["few"])

Shape = tuple[int, ...]
CASES: dict[str, tuple[list[Any], dict[str, Any], Callable[..., Array], list[Any], list[Any]]] = {
    "the first with all": (
        [FIRST, NODE("Add", ["first", "x"], ["y"])], {"x": ["N", 3]}, lambda x: x[:1] + x,
        [[(7, 3)], [(1, 3)], [(0, 3)]], [],
    ),
    "all with the last": (
        [LAST, NODE("Sub", ["x", "final"], ["y"])], {"x": ["N"]}, lambda x: x - x[-1:],
        [[(7,)], [(64,)], [(1,)], [(0,)]], [],
    ),
    "the last of one, as many as there are": (
        [NODE("Shape", ["x"], ["n"]), NODE("Sub", ["one", "n"], ["less"]),
         NODE("Max", ["less", "zero"], ["begin"]),
         NODE("Slice", ["z", "begin", "end", "zero"], ["few"]),
         NODE("Add", ["x", "few"], ["y"])],
        {"x": ["N"], "z": [1]}, lambda x, z: x + z[max(1 - len(x), 0) :],
        [[(7,), (1,)], [(1,), (1,)], [(0,), (1,)]], [],
    ),
    "one, another symbol, all": (
        [FIRST, NODE("Max", ["first", "z", "x"], ["y"])], {"x": ["N"], "z": [3, "M"]},
        lambda x, z: np.maximum(np.maximum(x[:1], z), x),
        [[(7,), (3, 1)], [(63,), (3, 63)], [(1,), (3, 7)], [(1,), (3, 1)], [(0,), (3, 1)]],
        [[(3,), (3, 7)], [(0,), (3, 7)]],
    ),
    "all, another symbol, one": (
        [FIRST, NODE("Max", ["x", "z", "first"], ["y"])], {"x": ["N"], "z": [3, "M"]},
        lambda x, z: np.maximum(np.maximum(x, z), x[:1]),
        [[(7,), (3, 1)], [(1,), (3, 7)], [(9,), (3, 9)]], [[(3,), (3, 7)]],
    ),
    "a product of batches": (
        [FIRST, NODE("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
         NODE("MatMul", ["first", "t"], ["y"])],
        {"x": ["N", 5, 9]}, lambda x: x[:1] @ x.transpose(0, 2, 1),
        [[(4, 5, 9)], [(1, 5, 9)], [(0, 5, 9)]], [],
    ),
    "a choice": (
        [FIRST, LAST, NODE("Less", ["first", "x"], ["c"]),
         NODE("Where", ["c", "x", "final"], ["y"])],
        {"x": ["N", 17]}, lambda x: np.where(x[:1] < x, x, x[-1:]),
        [[(6, 17)], [(1, 17)], [(0, 17)]], [],
    ),
    "some, which must be all": (
        [FIVE, NODE("Mul", ["few", "x"], ["y"])], {"x": ["N"]}, lambda x: x[:5] * x,
        [[(5,)], [(3,)], [(1,)], [(0,)]], [[(6,)]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_extents_are_broadcast_as_numpy_does(name: str) -> None:
    nodes, shapes, expected, right, wrong = CASES[name]
    inputs = {n: ("float32", shape) for n, shape in shapes.items()}
    used = {x for node in nodes for x in node.input}
    numbers = {n: x for n, x in NUMBERS.items() if n in used}
    graph = optimised(import_model(model_of(nodes, inputs, ["y"], numbers, opset=13)).graph)
    random = np.random.default_rng(0)
    with guarding():
        model = Model(graph, default_backend())
        for extents in right:
            given = [random.standard_normal(shape).astype(np.float32) for shape in extents]
            (found,) = model.run({n: guarded(x) for n, x in zip(inputs, given, strict=True)})
            reference = expected(*given)
            assert found.shape == reference.shape
            assert np.allclose(found, reference, 1e-5, 1e-5)
        for extents in wrong:
            feeds = {n: np.zeros(s, "f") for n, s in zip(inputs, extents, strict=True)}
            with pytest.raises(ShapeError):
                model.run(feeds)
