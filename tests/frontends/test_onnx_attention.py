"""ONNX's Attention becomes one node, unless scores are asked for; both ways give the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx_models import model_of

from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.ir import Graph
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

BATCH, ROWS, NEW, PAST, DEPTH = 2, 5, 7, 3, 4
NAMES = ("q", "k", "v", "mask", "past_key", "past_value", "valid")


def graph_of(
    inputs: dict[str, Any], symbolic: bool, scores: bool = False, **attributes: Any
) -> Graph:
    """A model of one node; with its scores as an output if they are asked for."""
    given = [name if name in inputs else "" for name in NAMES]
    shapes = {
        n: (x.dtype.name, [None] * x.ndim if symbolic and n == "mask" else
            [f"{n}{i}" if symbolic and i != 1 else e for i, e in enumerate(x.shape)])
        for n, x in inputs.items()
    }  # fmt: skip
    outputs = ["y", "", "", "scores"] if scores else ["y"]
    node = helper.make_node("Attention", given, outputs, **attributes)
    model = model_of([node], shapes, [n for n in outputs if n], opset=25)
    return import_model(model).graph


def operands(
    heads: int, shared: int, mask: tuple[int, ...] | None = None, kind: str = "float32",
    past: bool = False, dtype: str = "float32",
) -> dict[str, Any]:  # fmt: skip
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    found = {
        "q": floats(BATCH, heads, ROWS, DEPTH),
        "k": floats(BATCH, shared, NEW, DEPTH),
        "v": floats(BATCH, shared, NEW, DEPTH + 1),
    }
    if mask is not None and kind == "bool":
        found["mask"] = rng.random(mask) < 0.5
        found["mask"][..., 2, :] = False
    elif mask is not None:
        found["mask"] = floats(*mask)
        found["mask"][..., 2, :] = -np.inf
        found["mask"][..., 3:] = -np.inf
    if past:
        found["past_key"] = floats(BATCH, shared, PAST, DEPTH)
        found["past_value"] = floats(BATCH, shared, PAST, DEPTH + 1)
    return found


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def assert_both_ways(backend: CpuBackend, inputs: dict[str, Any], **attributes: Any) -> None:
    """References of both graphs agree, and so does compiled code, whatever is a symbol."""
    for symbolic in (False, True):
        fused = graph_of(inputs, symbolic, **attributes)
        apart = graph_of(inputs, symbolic, scores=True, **attributes)
        assert ops(fused).count("attention") == 1
        assert not {"softmax", "matmul"} & set(ops(fused))
        assert "attention" not in ops(apart)
        (expected, _), (found,) = (
            run_reference(g, [inputs[v.name] for v in g.inputs]) for g in (apart, fused)
        )
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
        model = Model(optimised(fused), backend)
        for threads in (1, 2):
            backend.threads = threads
            np.testing.assert_allclose(model.run(inputs)[0], expected, 1e-4, 1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(("heads", "shared"), [(3, 3), (6, 2), (4, 1)])
def test_heads(widest: CpuBackend, heads: int, shared: int, past: bool, causal: int) -> None:
    assert_both_ways(widest, operands(heads, shared, past=past), is_causal=causal)


@pytest.mark.parametrize("kind", ["float32", "bool"])
@pytest.mark.parametrize(
    "mask", [(ROWS, NEW), (1, ROWS, NEW), (6, ROWS, NEW), (BATCH, 1, ROWS, NEW), (1, 6, ROWS, NEW),
             (BATCH, 6, ROWS, NEW), (1, 1, ROWS, NEW - 2)],
)  # fmt: skip
def test_masks(widest: CpuBackend, mask: tuple[int, ...], kind: str) -> None:
    """Rows that they hide whole are zeros."""
    for shared, causal in itertools.product((6, 2), (0, 1)):
        inputs = operands(6, shared, mask, kind)
        if mask[-1] == NEW:
            assert_both_ways(widest, inputs, is_causal=causal)
        else:
            graph = graph_of(inputs, False, is_causal=causal)
            assert ops(graph).count("attention") == 1


def test_double_precision(widest: CpuBackend) -> None:
    inputs = operands(6, 2, (ROWS, NEW), "bool", dtype="float64")
    assert_both_ways(widest, inputs, is_causal=1, scale=0.3)


@pytest.mark.parametrize("window", [{"left_window_size": 1}, {"right_window_size": 2},
                                    {"left_window_size": 2, "right_window_size": 0}])  # fmt: skip
def test_windows(widest: CpuBackend, window: dict[str, int]) -> None:
    for causal in (0, 1):
        assert_both_ways(widest, operands(6, 2), is_causal=causal, **window)


def test_keys_of_padding(widest: CpuBackend) -> None:
    for causal in (0, 1):
        inputs = operands(6, 2)
        inputs["valid"] = np.array([6, 5], np.int64)
        assert_both_ways(widest, inputs, is_causal=causal)


def test_an_addend_in_a_window(widest: CpuBackend) -> None:
    inputs = operands(6, 2, (BATCH, 1, ROWS, NEW))
    assert_both_ways(widest, inputs, is_causal=1, left_window_size=2)


def test_limits_become_no_masks() -> None:
    inputs = operands(6, 2, past=True)
    graph = graph_of(inputs, False, is_causal=1)
    (node,) = [n for n in graph.nodes if n.op == "attention"]
    assert node.attributes["causal"] == PAST
    assert len(node.inputs) == 3


@pytest.mark.parametrize("mask", [None, (BATCH, 1, ROWS, NEW)])
def test_soft_caps(widest: CpuBackend, mask: tuple[int, ...] | None) -> None:
    inputs = operands(6, 2, mask)
    assert_both_ways(widest, inputs, is_causal=1, softcap=0.7, scale=3.0)


def test_what_has_no_kernel() -> None:
    attributes = {"softmax_precision": TensorProto.DOUBLE}
    assert "attention" not in ops(graph_of(operands(6, 2), False, is_causal=1, **attributes))


def test_a_precision_that_changes_nothing() -> None:
    graph = graph_of(operands(6, 2), False, softmax_precision=TensorProto.FLOAT)
    assert "attention" in ops(graph)
