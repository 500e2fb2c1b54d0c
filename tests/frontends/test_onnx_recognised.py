"""What exporters write out, and how few steps it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx_models import Dims, model_of

from ftuner.core.dim import symbol
from ftuner.frontends.onnx import import_model
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.reference import run_reference

NODE = helper.make_node
MICROSOFT = "com.microsoft"
Inputs = Mapping[str, tuple[str, Dims]]
ROWS: Inputs = {"x": ("float32", ["b", "s", 6])}
HEADS: Inputs = {"x": ("float32", ["b", 3, "s", 8])}


def steps_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Inputs,
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
) -> list[str]:
    """The titles of the steps of a model whose result is y."""
    model = model_of(nodes, inputs, ["y"], constants, opset)
    return [step.title for step in lower(optimised(import_model(model).graph)).steps]


def number(value: float) -> Any:
    return np.float32(value)


def row(*values: float) -> Any:
    return np.array(values, np.float32)


def test_softmax() -> None:
    nodes = [
        NODE("ReduceMax", ["x", "last"], ["largest"], keepdims=1),
        NODE("Sub", ["x", "largest"], ["above"]),
        NODE("Exp", ["above"], ["power"]),
        NODE("ReduceSum", ["power", "last"], ["total"], keepdims=1),
        NODE("Div", ["power", "total"], ["y"]),
    ]
    assert steps_of(nodes, ROWS, {"last": np.array([-1])}) == ["softmax"]


def test_gelu_with_tanh() -> None:
    nodes = [
        NODE("MatMul", ["x", "w"], ["h"]),
        NODE("Pow", ["h", "three"], ["cube"]),
        NODE("Mul", ["cube", "a"], ["small"]),
        NODE("Add", ["h", "small"], ["sum"]),
        NODE("Mul", ["sum", "root"], ["argument"]),
        NODE("Tanh", ["argument"], ["tanh"]),
        NODE("Add", ["tanh", "one"], ["lifted"]),
        NODE("Mul", ["h", "lifted"], ["whole"]),
        NODE("Mul", ["whole", "half"], ["y"]),
    ]
    constants = {
        "w": np.ones((6, 5), np.float32), "three": number(3), "a": number(0.044715),
        "root": number(0.7978845834732056), "one": number(1), "half": number(0.5),
    }  # fmt: skip
    assert steps_of(nodes, ROWS, constants) == ["matmul + gelu_tanh"]


ACTIVATIONS: Mapping[str, tuple[Sequence[onnx.NodeProto], int, str]] = {
    # Nodes from h to y, the version of ONNX's operators, and the step.
    "silu": ([NODE("Sigmoid", ["h"], ["g"]), NODE("Mul", ["h", "g"], ["y"])], 18, "silu"),
    "Swish": ([NODE("Swish", ["h"], ["y"])], 24, "silu"),
    "QuickGelu": ([NODE("QuickGelu", ["h"], ["y"], domain=MICROSOFT)], 18, "swish"),
    "HardSwish": ([NODE("HardSwish", ["h"], ["y"])], 18, "hard_swish"),
    "HardSigmoid": (
        [NODE("HardSigmoid", ["h"], ["g"], alpha=1 / 6), NODE("Mul", ["h", "g"], ["y"])],
        18,
        "hard_swish",
    ),
    "Clip": (
        [
            NODE("Add", ["h", "three"], ["sum"]),
            NODE("Clip", ["sum", "zero", "six"], ["g"]),
            NODE("Mul", ["h", "g"], ["whole"]),
            NODE("Div", ["whole", "six"], ["y"]),
        ],
        18,
        "hard_swish",
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_products(name: str) -> None:
    nodes, opset, title = ACTIVATIONS[name]
    constants = {
        "w": np.ones((6, 5), np.float32), "zero": number(0), "three": number(3), "six": number(6),
    }  # fmt: skip
    nodes = [NODE("MatMul", ["x", "w"], ["h"]), *nodes]
    assert steps_of(nodes, ROWS, constants, opset) == [f"matmul + {title}"]


def test_batch_norm_of_a_product() -> None:
    nodes = [
        NODE("Gemm", ["x", "w", "b"], ["h"]),
        NODE("Sub", ["h", "mean"], ["centred"]),
        NODE("Mul", ["centred", "scale"], ["scaled"]),
        NODE("Add", ["variance", "epsilon"], ["lifted"]),
        NODE("Sqrt", ["lifted"], ["root"]),
        NODE("Div", ["scaled", "root"], ["normal"]),
        NODE("Add", ["normal", "shift"], ["whole"]),
        NODE("Relu", ["whole"], ["y"]),
    ]
    constants = {
        "w": np.ones((6, 2), np.float32), "b": row(1, 2), "mean": row(3, 4), "scale": row(5, 6),
        "variance": row(7, 8), "epsilon": number(1e-5), "shift": row(9, 10),
    }  # fmt: skip
    found = steps_of(nodes, {"x": ("float32", ["n", 6])}, constants)
    assert found == ["matmul + add + maximum"]


@pytest.mark.parametrize("rank", [2, 4])
def test_batch_norm(rank: int) -> None:
    """By constants it is one multiplication and one addition, or none after a product."""
    statistics = ["scale", "shift", "mean", "variance"]
    node = NODE("BatchNormalization", ["h", *statistics], ["y"])
    constants = {"w": np.ones((6, 2), np.float32), **{n: row(1, 2) for n in statistics}}
    if rank == 2:
        nodes = [NODE("MatMul", ["x", "w"], ["h"]), node]
        found = steps_of(nodes, {"x": ("float32", ["n", 6])}, constants)
        assert found == ["matmul + add"]
    else:
        found = steps_of([node], {"h": ("float32", ["n", 2, "r", "c"])}, constants)
        assert found == ["multiply + add"]


def test_an_element_by_a_constant_index_is_a_view() -> None:
    nodes = [NODE("Gather", ["x", "at"], ["one"], axis=1), NODE("Tanh", ["one"], ["y"])]
    inputs: Inputs = {"x": ("float32", ["b", 5, "s"])}
    assert steps_of(nodes, inputs, {"at": np.array(-2)}) == ["tanh"]
    model = model_of(nodes, inputs, ["y"], {"at": np.array(-2)})
    x = np.arange(30, dtype=np.float32).reshape(2, 5, 3) / 10
    (found,) = run_reference(import_model(model).graph, [x])
    np.testing.assert_array_equal(found, np.tanh(x[:, 3]))


SLICED = [
    NODE("Slice", ["x", "zero", "half", "last"], ["x1"]),
    NODE("Slice", ["x", "half", "end", "last"], ["x2"]),
]
SPLIT = [NODE("Split", ["x"], ["x1", "x2"], axis=-1, num_outputs=2)]


@pytest.mark.parametrize("parts", [SLICED, SPLIT])
def test_rotary_positions(parts: Sequence[onnx.NodeProto]) -> None:
    nodes = [
        *parts,
        NODE("Neg", ["x2"], ["negative"]),
        NODE("Concat", ["negative", "x1"], ["turned"], axis=-1),
        NODE("Mul", ["x", "cos"], ["straight"]),
        NODE("Mul", ["turned", "sin"], ["across"]),
        NODE("Add", ["straight", "across"], ["y"]),
    ]
    inputs = {**HEADS, **{name: ("float32", ["b", 1, "s", 8]) for name in ("cos", "sin")}}
    constants = {
        "zero": np.array([0]), "half": np.array([4]), "end": np.array([2**63 - 1]),
        "last": np.array([-1]),
    }  # fmt: skip
    assert steps_of(nodes, inputs, constants) == ["rotary"]


@pytest.mark.each_value
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("placed", [False, True])
def test_rotary_embedding(interleaved: int, rank: int, placed: bool) -> None:
    """One step. The angles of positions are looked up before, once for all heads."""
    names = ["x", "cos", "sin", *(["at"] if placed else [])]
    node = NODE("RotaryEmbedding", names, ["y"], interleaved=interleaved, num_heads=3)
    table: Dims = [50, 4] if placed else ["b", "s", 4]
    inputs: dict[str, tuple[str, Dims]] = {
        "x": ("float32", ["b", "s", 24] if rank == 3 else ["b", 3, "s", 8]),
        "cos": ("float32", table),
        "sin": ("float32", table),
    }
    if placed:
        inputs["at"] = ("int64", ["b", "s"])
    looked_up = ["gather", "gather"] if placed else []
    assert steps_of([node], inputs, opset=23) == [*looked_up, "rotary"]


def test_rotary_embedding_by_angles_that_all_sequences_share() -> None:
    """Torch's exporter writes tables with a batch of 1, which ONNX's definition broadcasts."""
    node = NODE("RotaryEmbedding", ["x", "cos", "sin"], ["y"])
    angles: Inputs = {name: ("float32", [1, "s", 4]) for name in ("cos", "sin")}
    model = model_of([node], {**HEADS, **angles}, ["y"], opset=23)
    graph = import_model(model).graph
    assert [step.title for step in lower(optimised(graph)).steps] == ["rotary"]
    rng = np.random.default_rng(0)
    x, *tables = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 5, 8), *[(1, 5, 4)] * 2)
    )
    cosines, sines = (t[:, None] for t in tables)
    first, second = np.split(x, 2, -1)
    wanted = np.concatenate(
        [first * cosines - second * sines, first * sines + second * cosines], -1
    )
    np.testing.assert_allclose(run_reference(graph, [x, *tables])[0], wanted, rtol=1e-5, atol=1e-6)


def test_rotary_embedding_of_part_of_a_head() -> None:
    node = NODE("RotaryEmbedding", ["x", "cos", "sin"], ["y"], rotary_embedding_dim=6)
    angles: dict[str, tuple[str, Dims]] = {
        name: ("float32", ["b", "s", 3]) for name in ("cos", "sin")
    }
    model = model_of([node], {**HEADS, **angles}, ["y"], opset=23)
    graph = optimised(import_model(model).graph)
    assert [n.op for n in graph.nodes].count("rotary") == 1
    assert graph.outputs[0][1].shape == (symbol("b"), 3, symbol("s"), 8)
