"""Weights of half precision stay narrow, and products of them are those of float32. What was half
precision before a concatenation is copied as it is."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, DType
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.arrays import converted
from ftuner.graph.ir import Graph, Value
from ftuner.graph.passes.halves import half_weights, join_halves
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.verify import verify
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

ONNX = {FLOAT16: TensorProto.FLOAT16, BFLOAT16: TensorProto.BFLOAT16, None: TensorProto.FLOAT}
NODE = helper.make_node


def tensor(name: str, array: np.ndarray, dtype: DType | None) -> Any:
    array = np.ascontiguousarray(array, np.float32)
    if dtype == BFLOAT16:
        raw: Any = (array.view(np.uint32) >> 16).astype(np.uint16)
    else:
        raw = array.astype(np.float16 if dtype == FLOAT16 else np.float32)
    return helper.make_tensor(name, ONNX[dtype], array.shape, raw.tobytes(), raw=True)


def layer(dtype: DType | None, k: int, n: int, nodes: list[Any], **others: np.ndarray) -> Graph:
    """A graph of nodes from x (rows, k) to y, whose weight `w` is (k, n), or (n, k) as `t`; its
    input and output are float32."""
    rng = np.random.default_rng(k * n)
    weight = converted(rng.standard_normal((k, n)) / np.sqrt(k), dtype or FLOAT16)
    arrays = {"w": weight, "t": weight.T, **others}
    read = {name for node in nodes for name in node.input}
    kept = [tensor(name, x, dtype) for name, x in arrays.items() if name in read]
    element = ONNX[dtype]
    graph = helper.make_graph(
        [NODE("Cast", ["given"], ["x"], to=element), *nodes,
         NODE("Cast", ["y"], ["found"], to=TensorProto.FLOAT)],
        "layer",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, ["rows", k])],
        [helper.make_empty_tensor_value_info("found")], kept,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return import_model(proto).graph


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op in ("matmul", "narrow_matmul")]


PLAIN = [NODE("MatMul", ["x", "w"], ["y"])]


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    "nodes",
    [
        PLAIN,
        [NODE("Transpose", ["t"], ["u"]), NODE("MatMul", ["x", "u"], ["y"])],
        [NODE("Gemm", ["x", "t", "b"], ["y"], transB=1)],
        # The scale does not go into the weight.
        [NODE("MatMul", ["x", "w"], ["h"]), NODE("Mul", ["h", "b"], ["g"]),
         NODE("Relu", ["g"], ["y"])],
        # Two products of one input are merged.
        [NODE("MatMul", ["x", "w"], ["h"]), NODE("Gemm", ["x", "t"], ["g"], transB=1),
         NODE("Concat", ["h", "g"], ["y"], axis=1)],
    ],
    ids=["matmul", "transposed", "gemm", "scaled", "merged"],
)  # fmt: skip
def test_half_weights_stay_half(dtype: DType, nodes: list[Any], widest: CpuBackend) -> None:
    k, n = 130, 171
    bias = converted(np.random.default_rng(1).standard_normal(n), dtype)
    graph = layer(dtype, k, n, nodes, b=bias)
    after = optimised(graph, halves=False)
    assert set(operators(after)) == {"narrow_matmul"}
    assert all(v.dtype == dtype for node in after.nodes if node.op == "narrow_matmul"
               for v in node.inputs[1:])  # fmt: skip
    model = Model(after, widest)
    rng = np.random.default_rng(2)
    for rows in (0, 1, 3, 17, 200):
        x = rng.standard_normal((rows, k)).astype(np.float32)
        (wanted,) = run_reference(after, [x])
        (found,) = model.run({"given": x})
        np.testing.assert_allclose(found, wanted, 1e-2, 1e-2 if dtype == BFLOAT16 else 1e-3)


def test_half_weights_take_half_of_the_memory(widest: CpuBackend) -> None:
    sizes = []
    for dtype in (FLOAT16, None):
        model = Model(optimised(layer(dtype, 256, 512, PLAIN), halves=False), widest)
        sizes.append(model.memory({"given": np.zeros((1, 256), np.float32)}).weights_bytes)
    assert sizes[0] < 0.6 * sizes[1]


def test_others_stay_as_they_are() -> None:
    # Small ones; those of float32, whatever they hold; those of a device that multiplies halves.
    assert operators(optimised(layer(FLOAT16, 8, 8, PLAIN), halves=False)) == ["matmul"]
    assert operators(optimised(layer(None, 256, 256, PLAIN), halves=False)) == ["matmul"]
    assert operators(optimised(layer(FLOAT16, 256, 256, PLAIN), halves=True)) == ["matmul"]
    # Those that half precision does not hold.
    for weight, kept in (
        (np.full((256, 256), 0.1), "matmul"),
        (np.ones((256, 256)), "narrow_matmul"),
    ):
        graph = layer(None, 256, 256, PLAIN, w=weight)
        assert operators(half_weights([FLOAT16])(graph)) == [kept]


# Concatenations.


def continued(dtype: DType, read: bool) -> Graph:
    """Rows after those of an input, in half precision; `read`: whether they are read, too."""

    def body(g: Maker) -> list[Value]:
        past, new = g.given("past", B, S, 6, dtype=dtype), g.given("new", B, T, 6)
        joined = g.add("concat", g.add("cast", past, to=FLOAT32), g.add("exp", new), axis=1)
        present = g.add("cast", joined, to=dtype)
        return [present, g.add("reduce", joined, kind="sum", axes=(1,))] if read else [present]

    return graph_of(body)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_inputs_are_copied(dtype: DType, read: bool) -> None:
    graph = continued(dtype, read)
    found = join_halves(graph)
    verify(found)
    joined = [n for n in found.nodes if n.op == "concat" and n.output.dtype == dtype]
    assert [n.inputs[0] for n in joined] == [graph.inputs[0]]
    assert sum(n.op == "concat" for n in found.nodes) == 1 + read
    rng = np.random.default_rng(0)
    past = rng.standard_normal((2, 5, 6)).astype(np.float32)
    past[0, 0, :4] = [np.inf, -np.inf, 1e-7, 0]
    feeds = [past, rng.standard_normal((2, 3, 6)).astype(np.float32)]
    for x, y in zip(run_reference(found, feeds), run_reference(graph, feeds), strict=True):
        assert x.tobytes() == y.tobytes()


def test_other_concatenations_stay() -> None:
    def body(g: Maker) -> list[Value]:
        x, y = g.given("x", B, S, 6, dtype=BFLOAT16), g.given("y", B, T, 6)
        wide = g.add("concat", g.add("cast", x, to=FLOAT32), y, axis=1)
        other = g.add("concat", g.add("exp", y), y, axis=1)
        return [wide, g.add("cast", wide, to=FLOAT16), g.add("cast", other, to=FLOAT16)]

    graph = graph_of(body)
    assert join_halves(graph) is graph


def test_a_pass_of_devices_that_multiply_no_halves() -> None:
    graph = continued(FLOAT16, read=False)
    for halves in (False, True):
        last = optimised(graph, halves).nodes[-1]
        assert (last.op == "concat") == (not halves)
