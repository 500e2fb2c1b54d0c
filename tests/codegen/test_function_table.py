"""Both code generators and the front end are held to the table of scalar functions."""

import onnx
import pytest
from llvmlite import ir

from ftuner.codegen.llvm.ir.builder import IRBuilder, scalar_type
from ftuner.codegen.llvm.ir.functions import apply
from ftuner.codegen.triton.functions import Functions
from ftuner.core.dtype import BOOL, TENSOR_DTYPES
from ftuner.core.expr import composed_steps
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.frontends.onnx.importer import SUPPORTED

CASES = [
    (name, dtype)
    for name, row in SCALAR_FUNCTIONS.items()
    for dtype in ("float32", "float64", "int8", "int64", "uint8", "uint64", "bool")
    if TENSOR_DTYPES[dtype].kind in row.kinds
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_llvm_emits_every_row(name: str, dtype: str) -> None:
    row, element = SCALAR_FUNCTIONS[name], TENSOR_DTYPES[dtype]
    vector = ir.VectorType(scalar_type(element), 4)
    result = ir.VectorType(scalar_type(BOOL if row.result == "bool" else element), 4)
    for fused in (True, False):
        module = ir.Module()
        function = ir.Function(module, ir.FunctionType(result, [vector] * row.arity), "f")
        builder = IRBuilder(function.append_basic_block())
        builder.ret(apply(builder, name, function.args, element, fused))
        assert "define" in str(module)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_triton_writes_every_row(name: str, dtype: str) -> None:
    functions = Functions()
    arity = SCALAR_FUNCTIONS[name].arity
    text = functions.apply(name, ["x", "y"][:arity], TENSOR_DTYPES[dtype])
    assert "x" in text
    compile(functions.prelude() + f"\n\nz = {text}\n", name, "exec")


@pytest.mark.parametrize("name", [n for n, row in SCALAR_FUNCTIONS.items() if row.composition])
def test_compositions_use_only_rows_that_have_emitters(name: str) -> None:
    used = [getattr(step.node, "function", None) for step in composed_steps(name)]
    assert any(used)
    assert name not in used


@pytest.mark.parametrize("name", [n for n, row in SCALAR_FUNCTIONS.items() if row.onnx])
def test_the_front_end_reads_the_operator_of_a_row(name: str) -> None:
    row = SCALAR_FUNCTIONS[name]
    assert row.onnx is not None
    assert ("", row.onnx) in SUPPORTED
    schema = onnx.defs.get_schema(row.onnx)
    assert (len(schema.inputs), len(schema.outputs)) == (row.arity, 1)
    assert not schema.attributes
