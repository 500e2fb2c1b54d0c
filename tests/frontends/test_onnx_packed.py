"""Constants of 4 bits, two in a byte, beside onnxruntime's results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontends.onnx_models import both_ways, model_of

from ftuner.errors import GraphError
from ftuner.frontends.onnx.importer import import_model
from ftuner.runtime.reference import run_reference

onnxruntime = pytest.importorskip("onnxruntime")

RANDOM = np.random.default_rng(4)
KINDS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}


def packed(name: str, kind: str, shape: tuple[int, ...], raw: bool = True) -> Any:
    """A tensor of random elements."""
    words = RANDOM.integers(0, 256, -(-int(np.prod(shape)) // 2)).astype(np.uint8)
    tensor = TensorProto(name=name, data_type=KINDS[kind], dims=shape)
    if raw:
        tensor.raw_data = words.tobytes()
    else:
        tensor.int32_data.extend(words.tolist())
    return tensor


def of(nodes: list[Any], constants: list[Any], shape: tuple[int, ...], result: str = "y") -> Any:
    """A model of float32 x and y with nodes between them, and constants."""
    model = model_of(nodes, {"x": ("float32", ["n", *shape[1:]])}, [result], opset=21)
    model.graph.initializer.extend(constants)
    model.ir_version = 10
    return model


def dequantised(
    kind: str, shape: tuple[int, ...], blocks: tuple[int, ...], raw: bool = True, zero: bool = True,
    **attributes: int,
) -> Any:  # fmt: skip
    """x plus a constant of 4 bits."""
    scale = numpy_helper.from_array(RANDOM.random(blocks, np.float32), "scale")
    names = ["w", "scale", *(["zero"] if zero else [])]
    nodes = [helper.make_node("DequantizeLinear", names, ["wide"], **attributes),
             helper.make_node("Add", ["x", "wide"], ["y"])]  # fmt: skip
    zeros = [packed("zero", kind, blocks, raw)] if zero else []
    return of(nodes, [packed("w", kind, shape, raw), scale, *zeros], shape)


def assert_right(model: Any, x: Any) -> None:
    options = onnxruntime.SessionOptions()
    # It would quantise x for a product by what is dequantised.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (wanted,) = session.run(None, {"x": x})
    for (found,) in both_ways(model, {"x": x}):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("shape", "blocks", "attributes"),
    [((4, 6), (), {}), ((3, 5), (3,), {"axis": 0}), ((1, 1), (1,), {"axis": 1}),
     ((32, 7), (2, 7), {"axis": 0, "block_size": 16}),
     ((5, 64), (5, 2), {"axis": -1, "block_size": 32})],
)  # fmt: skip
def test_dequantised(
    kind: str, zero: bool, shape: tuple[int, ...], blocks: tuple[int, ...], attributes: Any
) -> None:
    x = RANDOM.standard_normal(shape).astype(np.float32)
    assert_right(dequantised(kind, shape, blocks, True, zero, **attributes), x)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_in_the_file_in_the_message_or_beside_it(kind: str, tmp_path: Path) -> None:
    x = RANDOM.standard_normal((3, 5)).astype(np.float32)
    model = dequantised(kind, (3, 5), (3,), False, axis=0)
    assert_right(model, x)
    (wanted,) = run_reference(import_model(model).graph, [x])
    for tensor in model.graph.initializer:
        if tensor.data_type == KINDS[kind]:
            words = bytes(tensor.int32_data)
            del tensor.int32_data[:]
            (tmp_path / tensor.name).write_bytes(b"--" + words)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", tensor.name), ("offset", "2")):
                tensor.external_data.add(key=key, value=value)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (found,) = run_reference(import_model(path).graph, [x])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("dims", [(4, 6), (-1, 5), (1 << 40, 1 << 20), (2,) * 70])
def test_bytes_that_do_not_fit(raw: bool, dims: tuple[int, ...]) -> None:
    model = dequantised("int4", (3, 5), (), raw)
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend(dims)
    with pytest.raises(GraphError, match="initialiser 'w'"):
        import_model(model)


def test_what_would_see_that_a_byte_holds_one_is_refused() -> None:
    scale = numpy_helper.from_array(np.float32(0.5), "scale")
    zero = packed("zero", "int4", ())
    quantise = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])
    with pytest.raises(GraphError, match=r"QuantizeLinear .*'zero': elements of 4 bits"):
        import_model(of([quantise], [scale, zero], (3,)))
    with pytest.raises(GraphError, match="output 'zero': elements of 4 bits"):
        import_model(of([quantise], [scale, zero], (3,), "zero"))
    end = helper.make_tensor_value_info("y", TensorProto.INT8, None)
    branch = helper.make_graph([quantise], "branch", [], [end])
    choice = helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch)
    yes = numpy_helper.from_array(np.array(True), "yes")
    with pytest.raises(GraphError, match="elements of 4 bits"):
        import_model(of([choice], [scale, zero, yes], (3,), "z"))


def test_a_product_that_onnxruntime_quantises() -> None:
    room = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    pytest.importorskip("onnx_ir")
    weight = numpy_helper.from_array(RANDOM.standard_normal((64, 9)).astype(np.float32), "w")
    product = of([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight], (5, 64))
    form = onnxruntime.quantization.QuantFormat.QDQ
    quantizer = room.MatMulNBitsQuantizer(product, block_size=32, quant_format=form)
    quantizer.process()
    model = quantizer.model.model
    assert {t.data_type for t in model.graph.initializer} & {*KINDS.values()}
    assert_right(model, RANDOM.standard_normal((5, 64)).astype(np.float32))
