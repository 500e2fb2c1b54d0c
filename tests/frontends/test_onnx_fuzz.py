"""Models with bytes changed at random: a named error or a model, and the process goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import helper
from tests.frontends.onnx_models import model_of

from ftuner.core.dtype import GPU_TENSOR_DTYPES
from ftuner.errors import FTunerError
from ftuner.frontends.onnx import import_model
from ftuner.graph.passes.pipeline import optimised

MUTANTS = 400


def _encoder_layer(dtype: str) -> bytes:
    """A layer of a transformer in one file: embedding, attention, norm, gelu."""
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


@pytest.mark.parametrize(("seed", "dtype"), [*((i, "float32") for i in range(4)), (4, "float16")])
def test_mutants_of_a_layer(seed: int, dtype: str) -> None:
    whole = _encoder_layer(dtype)
    rng = random.Random(seed)
    refused = 0
    for _ in range(MUTANTS):
        mutant = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 8))):
            mutant[rng.randrange(len(mutant))] = rng.randrange(256)
        if rng.random() < 0.1:
            del mutant[rng.randrange(len(mutant)) :]
        try:
            optimised(import_model(bytes(mutant), GPU_TENSOR_DTYPES).graph)
        except FTunerError:
            refused += 1
    assert 0 < refused < MUTANTS


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_layer_itself_is_recognised(dtype: str) -> None:
    """Whatever its numbers were rounded to."""
    graph = optimised(import_model(_encoder_layer(dtype), GPU_TENSOR_DTYPES).graph)
    assert {"attention", "norm", "gelu"} <= {node.op for node in graph.nodes}
