"""Models that are malformed, unsupported, or need more than one node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.frontends.onnx_models import model_of

from ftuner.core.dim import symbol
from ftuner.errors import (
    FTunerError,
    GraphError,
    IndexRangeError,
    ShapeError,
    UnsupportedOperatorError,
)
from ftuner.frontends.onnx import import_model
from ftuner.frontends.onnx.reading import MAX_ATTRIBUTE_ELEMENTS, MAX_NESTING
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.reference import run_reference

NODE = helper.make_node
X: dict[str, Any] = {"x": ("float32", ["n", 4])}


def _external(location: str, values: Any, **entries: int) -> Any:
    """An initialiser `w` in a file of its own."""
    tensor = numpy_helper.from_array(values, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _with_weight(tensor: Any) -> Any:
    model = model_of([NODE("MatMul", ["x", "w"], ["y"])], X, ["y"])
    model.graph.initializer.append(tensor)
    return model


# What is read.


def test_import_reads_path_bytes_and_proto(tmp_path: Path) -> None:
    model = model_of([NODE("Relu", ["x"], ["y"], name="/relu")], X, ["y"])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (str(path), path, model.SerializeToString(), model):
        imported = import_model(source)
        assert imported.inputs[0][1].shape == (symbol("n"), 4)
        assert imported.outputs == ("y",)
        assert imported.nodes == ("y = Relu '/relu'(x)",)
        assert [node.op for node in imported.graph.nodes] == ["maximum"]


def test_importing_ftuner_does_not_import_onnx() -> None:
    script = "import sys, ftuner.frontends.onnx; print('onnx' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_a_part_of_a_file_is_an_error_or_a_model() -> None:
    weight = np.ones((4, 3), np.float32)
    data = model_of([NODE("MatMul", ["x", "w"], ["y"])], X, ["y"], {"w": weight})
    whole = data.SerializeToString()
    refused = 0
    for length in range(len(whole)):
        try:
            import_model(whole[:length])
        except FTunerError:
            refused += 1
    assert refused >= len(whole) - 20  # All but those that miss only what nothing needs.


@pytest.mark.parametrize("source", [b"", b"not a model", 7, "/nowhere/model.onnx"])
def test_garbage_is_no_model(source: Any) -> None:
    with pytest.raises(GraphError):
        import_model(source)


def test_external_data(tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"\0" * 64 + weight.tobytes())
    path = tmp_path / "model.onnx"
    model = _with_weight(_external("data/w.bin", weight, offset=64, length=48))
    path.write_bytes(model.SerializeToString())
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(run_reference(import_model(path).graph, [x])[0], weight)
    with pytest.raises(GraphError, match="path"):
        import_model(model)


@pytest.mark.parametrize(
    "location", ["../w.bin", "/etc/passwd", "data/../../w.bin", "link", "", "data", "gone", "a\0b"]
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(b"\0" * 48)
    (folder / "link").symlink_to(tmp_path / "w.bin")
    path = folder / "model.onnx"
    tensor = _external(location, np.zeros((4, 3), np.float32))
    path.write_bytes(_with_weight(tensor).SerializeToString())
    with pytest.raises(GraphError, match="no file"):
        import_model(path)


@pytest.mark.parametrize(
    "entries", [{"offset": 1}, {"length": 8}, {"offset": -8}, {"offset": 1 << 60}]
)
def test_external_data_of_another_size(tmp_path: Path, entries: dict[str, int]) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 48)
    path = tmp_path / "model.onnx"
    tensor = _external("w.bin", np.zeros((4, 3), np.float32), **entries)
    path.write_bytes(_with_weight(tensor).SerializeToString())
    with pytest.raises(GraphError, match="48 bytes wanted"):
        import_model(path)


# What is refused.


def test_all_unsupported_operators_are_listed() -> None:
    nodes = [
        NODE("ImageDecoder", ["x"], ["a"], name="first"),
        NODE("ImageDecoder", ["a"], ["b"], name="second"),
        NODE("Fancy", ["b"], ["c"], domain="org.example"),
        NODE("Relu", ["c"], ["y"]),
    ]
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_model(model_of(nodes, X, ["y"]))
    text = str(caught.value)
    assert "2 operators" in text
    assert "ImageDecoder (2: 'first', 'second')" in text
    assert "org.example.Fancy (1: 'c')" in text
    assert "Relu" not in text


def _branch(output: str, nodes: list[Any]) -> Any:
    return helper.make_graph(nodes, "branch", [], [helper.make_empty_tensor_value_info(output)])


def _nested(depth: int) -> Any:
    graph = _branch("z", [NODE("Relu", ["x"], ["z"])])
    for _ in range(depth):
        node = NODE("If", ["c"], ["z"], then_branch=graph, else_branch=graph)
        graph = _branch("z", [node])
    return graph


MALFORMED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "cycle": (
        [NODE("Add", ["x", "b"], ["a"]), NODE("Relu", ["a"], ["b"]), NODE("Relu", ["b"], ["y"])],
        X, "wait for each other",
    ),
    "missing value": ([NODE("Add", ["x", "gone"], ["y"])], X, "nothing gives its input 'gone'"),
    "missing input": ([NODE("Add", ["x", ""], ["y"])], X, "input 1 is missing"),
    "missing output": ([NODE("Relu", ["x"], ["z"])], X, "no node gives the output 'y'"),
    "two givers": ([NODE("Relu", ["x"], ["y"]), NODE("Abs", ["x"], ["y"])], X, "already"),
    "gives an input": ([NODE("Relu", ["x"], ["x"]), NODE("Abs", ["x"], ["y"])], X, "already"),
    "too many outputs": ([NODE("Relu", ["x"], ["y", "z"])], X, "2 outputs; at most 1"),
    "unknown dtype": ([NODE("Cast", ["x"], ["y"], to=99)], X, "no element type"),
    "contradicting extents": (
        [NODE("MatMul", ["x", "z"], ["y"])], {**X, "z": ("float32", [5, 3])}, "4 and 5",
    ),
    "negative extent": ([NODE("Relu", ["x"], ["y"])], {"x": ("float32", [-3])}, "-3 elements"),
    "axis": ([NODE("Softmax", ["x"], ["y"], axis=2)], X, "axis 2"),
    "attribute of another type": ([NODE("Softmax", ["x"], ["y"], axis="1")], X, "attribute axis"),
    "missing attribute": ([NODE("Concat", ["x", "x"], ["y"])], X, "attribute axis is missing"),
    "long attribute": (
        [NODE("Transpose", ["x"], ["y"], perm=[0] * (MAX_ATTRIBUTE_ELEMENTS + 1))], X, "at most",
    ),
    "many axes": ([NODE("Relu", ["x"], ["y"])], {"x": ("float32", [1] * 65)}, "at most 64"),
    "nesting": (list(_nested(MAX_NESTING + 1).node), X, "nested deeper"),
    "dtypes": ([NODE("Add", ["x", "z"], ["y"])], {**X, "z": ("int64", [4])}, "add of float32, i"),
    "equation": ([NODE("Einsum", ["x"], ["y"], equation="ijk->i")], X, "labels 'ijk'"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "inputs", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed(nodes: list[Any], inputs: dict[str, Any], text: str) -> None:
    with pytest.raises((GraphError, ShapeError), match=text):
        import_model(model_of(nodes, inputs, ["y"]))


def test_errors_name_the_node() -> None:
    nodes = [NODE("Reshape", ["x", "s"], ["y"], name="/encoder/Reshape")]
    model = model_of(nodes, {**X, "s": ("int64", [2])}, ["y"])
    with pytest.raises(UnsupportedOperatorError, match="Reshape node '/encoder/Reshape'"):
        import_model(model)


def test_data_dependent_shapes_are_unsupported() -> None:
    nodes = [NODE("Expand", ["x", "s"], ["y"])]
    with pytest.raises(UnsupportedOperatorError, match="data-dependent shape"):
        import_model(model_of(nodes, {**X, "s": ("int64", [2])}, ["y"]))


def test_an_index_that_is_known_to_be_outside() -> None:
    nodes = [NODE("Gather", ["w", "i"], ["y"])]
    with pytest.raises(IndexRangeError):
        import_model(model_of(nodes, {}, ["y"], {"w": np.zeros(3, np.float32), "i": np.int64(3)}))


def test_inputs_need_types_and_ranks() -> None:
    model = model_of([NODE("Relu", ["x"], ["y"])], X, ["y"])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(GraphError, match="has no shape"):
        import_model(model)
    model.graph.input[0].ClearField("type")
    with pytest.raises(GraphError, match="has no type"):
        import_model(model)


def test_names_are_distinct() -> None:
    model = model_of([NODE("Relu", ["x"], ["y"])], X, ["y"])
    model.graph.input.append(model.graph.input[0])
    with pytest.raises(GraphError, match="named 'x'"):
        import_model(model)
    model = model_of([NODE("Relu", ["x"], ["y"])], X, ["y", "y"])
    with pytest.raises(GraphError, match="named 'y'"):
        import_model(model)


def test_a_version_is_named_for_each_domain() -> None:
    model = model_of([NODE("Relu", ["x"], ["y"])], X, ["y"])
    del model.opset_import[:]
    with pytest.raises(GraphError, match="names no version"):
        import_model(model)


def test_domains_have_one_version() -> None:
    model = model_of([NODE("Relu", ["x"], ["y"])], X, ["y"], opset=18)
    again = model.opset_import.add()
    again.domain, again.version = "ai.onnx", 18
    import_model(model)
    again.version = 13
    with pytest.raises(GraphError, match=r"two versions of operator set .*: 18 and 13"):
        import_model(model)


# What is understood.


def test_dims_with_and_without_names() -> None:
    inputs: dict[str, Any] = {
        "a": ("float32", ["batch size", None]), "b": ("float32", ["batch size", "batch_size"]),
        "c": ("float32", [-1, 3]),
    }  # fmt: skip
    nodes = [NODE("Relu", [name], [f"y{name}"]) for name in "abc"]
    types = dict(import_model(model_of(nodes, inputs, ["ya", "yb", "yc"])).inputs)
    assert types["a"].shape == (symbol("batch_size"), symbol("a_1"))
    assert types["b"].shape == (symbol("batch_size"), symbol("batch_size_2"))
    assert types["c"].shape == (symbol("c_0"), 3)


def test_shape_arithmetic_leaves_no_nodes() -> None:
    nodes = [
        NODE("Shape", ["x"], ["s"]),
        NODE("Gather", ["s", "zero"], ["n"]),
        NODE("Unsqueeze", ["n", "front"], ["n1"]),
        NODE("Concat", ["n1", "rest"], ["wanted"], axis=0),
        NODE("Reshape", ["x", "wanted"], ["y"]),
    ]
    constants = {
        "zero": np.int64(0), "front": np.array([0]), "rest": np.array([2, -1]),
    }  # fmt: skip
    graph = import_model(model_of(nodes, X, ["y"], constants)).graph
    assert [node.op for node in graph.nodes] == ["reshape"]
    assert graph.outputs[0][1].shape == (symbol("n"), 2, 2)
    assert not graph.constraints


def test_nodes_in_any_order() -> None:
    nodes = [NODE("Relu", ["a"], ["y"]), NODE("Neg", ["x"], ["a"])]
    graph = import_model(model_of(nodes, X, ["y"])).graph
    assert [node.op for node in graph.nodes] == ["negative", "maximum"]


def test_initialisers_that_are_inputs_are_constants() -> None:
    inputs: dict[str, Any] = {**X, "w": ("float32", [4])}
    nodes = [NODE("Add", ["x", "w"], ["y"])]
    model = model_of(nodes, inputs, ["y"], {"w": np.ones(4, np.float32)})
    assert [name for name, _ in import_model(model).inputs] == ["x"]


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken(condition: bool) -> None:
    branches = {
        "then_branch": _branch("t", [NODE("Add", ["a", "x"], ["t"])]),
        "else_branch": _branch("e", [NODE("Sub", ["a", "x"], ["e"])]),
    }
    nodes = [NODE("Abs", ["x"], ["a"]), NODE("If", ["c"], ["y"], **branches)]
    graph = import_model(model_of(nodes, X, ["y"], {"c": np.bool_(condition)})).graph
    assert [n.op for n in graph.nodes] == ["absolute", "add" if condition else "subtract"]
    with pytest.raises(UnsupportedOperatorError, match="known only at run time"):
        import_model(model_of(nodes, {**X, "c": ("bool", [])}, ["y"]))


def test_functions_are_written_out() -> None:
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [NODE("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    nodes = [NODE("Twice", ["x"], ["y"], domain="own")]
    graph = import_model(model_of(nodes, X, ["y"], functions=[function])).graph
    assert [node.op for node in graph.nodes] == ["add"]
    function.node[0].CopyFrom(NODE("Twice", ["a"], ["b"], domain="own"))
    with pytest.raises(GraphError, match="call themselves"):
        import_model(model_of(nodes, X, ["y"], functions=[function]))


def test_extents_that_data_decides() -> None:
    """What is not zero is counted, and its symbol is bound, though only its count is used."""
    nodes = [
        NODE("NonZero", ["x"], ["where"]),
        NODE("Shape", ["where"], ["s"]),
        NODE("Transpose", ["where"], ["rows"]),
        NODE("GatherND", ["x", "rows"], ["found"]),
    ]
    graph = import_model(model_of(nodes, X, ["found", "s"])).graph
    count = symbol("where_count")
    assert graph.outputs[0][1].shape == (count,)
    x = np.array([[0, 2, 0, 3], [0, 0, 5, 0]], np.float32)
    found, shape = run_reference(graph, [x])
    np.testing.assert_array_equal(found, [2, 3, 5])
    np.testing.assert_array_equal(shape, [2, 3])
    only = import_model(model_of(nodes[:2], X, ["s"])).graph
    np.testing.assert_array_equal(run_reference(only, [x])[0], [2, 3])


def test_constraints_wait_for_extents_that_data_decides() -> None:
    nodes = [NODE("NonZero", ["x"], ["where"]), NODE("Add", ["where", "z"], ["y"])]
    inputs: dict[str, Any] = {**X, "z": ("int64", [1, 3])}
    graph = import_model(model_of(nodes, inputs, ["y"])).graph
    z = np.zeros((1, 3), np.int64)
    x = np.zeros((2, 4), np.float32)
    x[0, :3] = 1
    assert run_reference(graph, [x, z])[0].shape == (2, 3)
    x[1, 1] = 1
    with pytest.raises(ShapeError, match="4"):
        run_reference(graph, [x, z])


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=1),
         helper.make_node("MatMul", ["x", "f"], ["y"])],
        [helper.make_node("Cast", ["w"], ["c"], to=1),
         helper.make_node("Mul", ["c", "s"], ["f"]),
         helper.make_node("MatMul", ["x", "f"], ["y"])],
        [helper.make_node("Transpose", ["w"], ["t"]),
         helper.make_node("DequantizeLinear", ["t", "s"], ["f"], axis=0),
         helper.make_node("Gemm", ["x", "f"], ["y"], transB=1)],
    ],
    ids=["DequantizeLinear", "Cast and Mul", "transposed, Gemm"],
)  # fmt: skip
def test_weights_of_int8_stay_int8(nodes: list[Any]) -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(-128, 128, (200, 120)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, 120).astype(np.float32)
    model = model_of(nodes, {"x": ("float32", ["m", 200])}, ["y"], {"w": weight, "s": scale}, 21)
    graph = optimised(import_model(model).graph)
    assert [n.op for n in graph.nodes] == ["narrow_matmul", "multiply"]
    x = rng.standard_normal((3, 200)).astype(np.float32)
    assert np.allclose(run_reference(graph, [x])[0], x @ (weight * scale), rtol=1e-4, atol=1e-3)
