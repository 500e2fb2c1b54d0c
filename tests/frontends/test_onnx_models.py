"""Models that are malformed, unsupported, or need more than one node."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.child import printed
from tests.frontends.onnx_models import model_of, parsed

from ftuner.core.dim import symbol
from ftuner.errors import (
    FTunerError,
    GraphError,
    IndexRangeError,
    ShapeError,
    UnsupportedOperatorError,
)
from ftuner.frontends.onnx.importer import import_model
from ftuner.frontends.onnx.reading import MAX_ATTRIBUTE_ELEMENTS, MAX_NESTING
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.reference import run_reference

NODE = helper.make_node
X = "float[n, 4] x"


def of(nodes: str, outputs: str = "y", inputs: str = X, **constants: Any) -> onnx.ModelProto:
    return parsed(f"({inputs}) => ({outputs}) {{ {nodes} }}", **constants)


def _external(location: str, values: Any, **entries: int) -> Any:
    """An initialiser `w` in a file of its own."""
    tensor = numpy_helper.from_array(values, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _with_weight(tensor: Any) -> Any:
    model = of("y = MatMul(x, w)")
    model.graph.initializer.append(tensor)
    return model


# What is read.


def test_import_reads_path_bytes_and_proto(tmp_path: Path) -> None:
    model = of('["/relu"] y = Relu(x)')
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
    done = printed("-c", script)
    assert done == "False\n"


def test_a_part_of_a_file_is_an_error_or_a_model() -> None:
    weight = np.ones((4, 3), np.float32)
    data = of("y = MatMul(x, w)", w=weight)
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
    nodes = """[first] a = ImageDecoder(x)
        [second] b = ImageDecoder(a)
        c = org.example.Fancy(b)
        y = Relu(c)"""
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_model(of(nodes))
    text = str(caught.value)
    assert "2 operators" in text
    assert "ImageDecoder (2: 'first', 'second')" in text
    assert "org.example.Fancy (1: 'c')" in text
    assert "Relu" not in text


def _nested(depth: int) -> onnx.ModelProto:
    def branch(node: onnx.NodeProto) -> Any:
        return helper.make_graph([node], "branch", [], [helper.make_empty_tensor_value_info("z")])

    node = NODE("Relu", ["x"], ["z"])
    for _ in range(depth + 1):
        graph = branch(node)
        node = NODE("If", ["c"], ["z"], then_branch=graph, else_branch=graph)
    return model_of([node], {"x": ("float32", ["n", 4])}, ["y"])


LONG = ", ".join("0" * (MAX_ATTRIBUTE_ELEMENTS + 1))
MALFORMED: dict[str, tuple[onnx.ModelProto, str]] = {
    "cycle": (
        of("a = Add(x, b) b = Relu(a) y = Relu(b)"),
        r"wait for each other: \w+ node that gives '[ab]', \w+ node that gives '[ab]'$",
    ),
    "missing value": (of("y = Add(x, gone)"), "nothing gives its input 'gone'"),
    "missing input": (of('y = Add(x, "")'), "input 1 is missing"),
    "missing output": (of("z = Relu(x)"), "no node gives the output 'y'"),
    "two givers": (of("y = Relu(x) y = Abs(x)"), "already"),
    "gives an input": (of("x = Relu(x) y = Abs(x)"), "already"),
    "too many outputs": (of("y, z = Relu(x)"), "2 outputs; at most 1"),
    "unknown dtype": (of("y = Cast<to=99>(x)"), "no element type"),
    "contradicting extents": (of("y = MatMul(x, z)", inputs=f"{X}, float[5, 3] z"), "4 and 5"),
    "negative extent": (of("y = Relu(x)", inputs="float[-3] x"), "-3 elements"),
    "axis": (of("y = Softmax<axis=2>(x)"), "axis 2"),
    "attribute of another type": (of('y = Softmax<axis="1">(x)'), "attribute axis"),
    "missing attribute": (of("y = Concat(x, x)"), "attribute axis is missing"),
    "long attribute": (of(f"y = Transpose<perm=[{LONG}]>(x)"), "at most"),
    "many axes": (of("y = Relu(x)", inputs=f"float[{', '.join('1' * 65)}] x"), "at most 64"),
    "nesting": (_nested(MAX_NESTING + 1), "nested deeper"),
    "dtypes": (
        of("y = Add(x, z)", inputs=f"{X}, int64[4] z"),
        "input 0 is of float32 and input 1 of int64",
    ),
    "equation": (of('y = Einsum<equation="ijk->i">(x)'), "labels 'ijk'"),
}


@pytest.mark.parametrize(("model", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed(model: onnx.ModelProto, text: str) -> None:
    with pytest.raises((GraphError, ShapeError), match=text):
        import_model(model)


def test_errors_name_the_node() -> None:
    model = of('["/encoder/Reshape"] y = Reshape(x, s)', inputs=f"{X}, int64[2] s")
    with pytest.raises(UnsupportedOperatorError, match="Reshape node '/encoder/Reshape'"):
        import_model(model)


def test_data_dependent_shapes_are_unsupported() -> None:
    with pytest.raises(UnsupportedOperatorError, match="data-dependent shape"):
        import_model(of("y = Expand(x, s)", inputs=f"{X}, int64[2] s"))


def test_an_index_that_is_known_to_be_outside() -> None:
    with pytest.raises(IndexRangeError):
        import_model(of("y = Gather(w, i)", inputs="", w=np.zeros(3, np.float32), i=3))


def test_inputs_need_types_and_ranks() -> None:
    model = of("y = Relu(x)")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(GraphError, match="has no shape"):
        import_model(model)
    model.graph.input[0].ClearField("type")
    with pytest.raises(GraphError, match="has no type"):
        import_model(model)


def test_names_are_distinct() -> None:
    model = of("y = Relu(x)")
    model.graph.input.append(model.graph.input[0])
    with pytest.raises(GraphError, match="named 'x'"):
        import_model(model)
    model = of("y = Relu(x)", "y, y")
    with pytest.raises(GraphError, match="named 'y'"):
        import_model(model)


def test_a_version_is_named_for_each_domain() -> None:
    model = of("y = Relu(x)")
    del model.opset_import[:]
    with pytest.raises(GraphError, match="names no version"):
        import_model(model)


def test_domains_have_one_version() -> None:
    model = of("y = Relu(x)")
    again = model.opset_import.add()
    again.domain, again.version = "ai.onnx", 18
    import_model(model)
    again.version = 13
    with pytest.raises(GraphError, match=r"two versions of operator set .*: 18 and 13"):
        import_model(model)


# What is understood.


def test_dims_with_and_without_names() -> None:
    inputs = 'float["batch size", ?] a, float["batch size", batch_size] b, float[-1, 3] c'
    nodes = "ya = Relu(a) yb = Relu(b) yc = Relu(c)"
    types = dict(import_model(of(nodes, "ya, yb, yc", inputs)).inputs)
    assert types["a"].shape == (symbol("batch_size"), symbol("a_1"))
    assert types["b"].shape == (symbol("batch_size"), symbol("batch_size_2"))
    assert types["c"].shape == (symbol("c_0"), 3)


def test_shape_arithmetic_leaves_no_nodes() -> None:
    nodes = """
        s = Shape(x)
        n = Gather(s, zero)
        n1 = Unsqueeze(n, front)
        wanted = Concat<axis=0>(n1, rest)
        y = Reshape(x, wanted)
    """
    graph = import_model(of(nodes, zero=0, front=[0], rest=[2, -1])).graph
    assert [node.op for node in graph.nodes] == ["reshape"]
    assert graph.outputs[0][1].shape == (symbol("n"), 2, 2)
    assert not graph.constraints


def test_nodes_in_any_order() -> None:
    graph = import_model(of("y = Relu(a) a = Neg(x)")).graph
    assert [node.op for node in graph.nodes] == ["negative", "maximum"]


def test_initialisers_that_are_inputs_are_constants() -> None:
    model = of("y = Add(x, w)", inputs=f"{X}, float[4] w", w=np.ones(4, np.float32))
    assert [name for name, _ in import_model(model).inputs] == ["x"]


@pytest.mark.parametrize("condition", [True, False])
def test_the_branch_that_is_taken(condition: bool) -> None:
    nodes = """
        a = Abs(x)
        y = If(c) <then_branch = t () => (t) { t = Add(a, x) },
                   else_branch = e () => (e) { e = Sub(a, x) }>
    """
    graph = import_model(of(nodes, c=condition)).graph
    assert [n.op for n in graph.nodes] == ["absolute", "add" if condition else "subtract"]
    with pytest.raises(UnsupportedOperatorError, match="known only at run time"):
        import_model(of(nodes, inputs=f"{X}, bool c"))


def test_functions_are_written_out() -> None:
    twice = """<opset_import: ["": 18], domain: "own"> Twice (a) => (b) { b = Add(a, a) }"""
    function = onnx.parser.parse_function(twice)
    model = of("y = own.Twice(x)")
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    assert [node.op for node in import_model(model).graph.nodes] == ["add"]
    model.functions[0].node[0].CopyFrom(NODE("Twice", ["a"], ["b"], domain="own"))
    with pytest.raises(GraphError, match="call themselves"):
        import_model(model)


def test_extents_that_data_decides() -> None:
    """What is not zero is counted, and its symbol is bound, though only its count is used."""
    counting = "where = NonZero(x) s = Shape(where)"
    nodes = f"{counting} rows = Transpose(where) found = GatherND(x, rows)"
    graph = import_model(of(nodes, "found, s")).graph
    count = symbol("where_count")
    assert graph.outputs[0][1].shape == (count,)
    x = np.array([[0, 2, 0, 3], [0, 0, 5, 0]], np.float32)
    found, shape = run_reference(graph, [x])
    np.testing.assert_array_equal(found, [2, 3, 5])
    np.testing.assert_array_equal(shape, [2, 3])
    only = import_model(of(counting, "s")).graph
    np.testing.assert_array_equal(run_reference(only, [x])[0], [2, 3])


def test_constraints_wait_for_extents_that_data_decides() -> None:
    nodes = "where = NonZero(x) y = Add(where, z)"
    graph = import_model(of(nodes, inputs=f"{X}, int64[1, 3] z")).graph
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
        "f = DequantizeLinear<axis=1>(w, s) y = MatMul(x, f)",
        "c = Cast<to=1>(w) f = Mul(c, s) y = MatMul(x, f)",
        "t = Transpose(w) f = DequantizeLinear<axis=0>(t, s) y = Gemm<transB=1>(x, f)",
    ],
    ids=["DequantizeLinear", "Cast and Mul", "transposed, Gemm"],
)
def test_weights_of_int8_stay_int8(nodes: str) -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(-128, 128, (200, 120)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, 120).astype(np.float32)
    model = parsed(f"(float[m, 200] x) => (y) {{ {nodes} }}", 21, w=weight, s=scale)
    graph = optimised(import_model(model).graph)
    assert [n.op for n in graph.nodes] == ["narrow_matmul", "multiply"]
    x = rng.standard_normal((3, 200)).astype(np.float32)
    assert np.allclose(run_reference(graph, [x])[0], x @ (weight * scale), rtol=1e-4, atol=1e-3)
