"""The text of modules is what llvmlite would write, as LLVM understands it."""

import llvmlite.binding as llvm
import llvmlite.ir as ir
import pytest
from tests.codegen.llvm.objects import target_of

from ftuner.codegen.llvm.ir.builder import I1, I8, I32, I64, PTR, VOID, IRBuilder
from ftuner.codegen.llvm.ir.text import module_text
from ftuner.codegen.llvm.objects.bundle import Bundle, family_bundle, runtime_bundle
from ftuner.codegen.llvm.objects.compile import bundle_module
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import FLOAT32
from ftuner.core.expr import ACCUMULATOR, Operand, applied
from ftuner.core.product import product_types
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import KLoopTuning, NativeTuning

ISA = instruction_set("avx2")
TARGET = target_of("avx2")
KERNEL = UKernel(
    RegisterTile(3, 2, 1), product_types(FLOAT32), ISA.name, 8,
    epilogue=applied("silu", applied("add", ACCUMULATOR, Operand("bias", "column"))),
)  # fmt: skip


def assert_same(module: ir.Module) -> None:
    own, expected = (llvm.parse_assembly(text) for text in (module_text(module), str(module)))
    assert str(own) == str(expected)


@pytest.mark.parametrize(
    "bundle",
    [family_bundle((KERNEL,), ISA, KLoopTuning(), 64), runtime_bundle(32, 16, NativeTuning())],
    ids=["family", "runtime"],
)
def test_bundles(bundle: Bundle) -> None:
    assert_same(bundle_module(bundle, TARGET))


def test_each_form_of_an_instruction() -> None:
    module = ir.Module()
    module.triple = TARGET.triple
    floats = ir.VectorType(ir.FloatType(), 4)
    callee = ir.Function(module, ir.FunctionType(I64, [I64, PTR]), "callee")
    callee.attributes.add("nounwind")
    listed = ir.Function(module, ir.FunctionType(VOID, [PTR], var_arg=True), "listed")
    table = ir.GlobalVariable(module, ir.ArrayType(I64, 2), "table")
    table.initializer = ir.Constant(table.value_type, [1, 2])
    function = ir.Function(module, ir.FunctionType(I64, [PTR, I64, ir.FloatType()]), "f")
    function.linkage = "internal"
    address, number, scalar = function.args
    address.add_attribute("noalias")
    builder = IRBuilder(function.append_basic_block("entry"))
    vector = builder.splat(scalar, 4)
    product = builder.fmul(vector, builder.fneg(vector), flags=("fast",))
    less = builder.fcmp_ordered("<", product, vector, flags=("nnan",))
    chosen = builder.select(less, product, vector)
    builder.store(chosen, builder.gep(address, [number], source_etype=I8), align=4)
    loaded = builder.load(builder.gep(address, [number], True, source_etype=I64), typ=floats)
    lane = builder.extract_element(builder.shuffle_vector(loaded, chosen, ir.Constant(
        ir.VectorType(I32, 2), [7, 0])), ir.Constant(I32, 1), "lane")  # fmt: skip
    wide = builder.zext(builder.fptoui(lane, I32), I64)
    builder.opaque(builder.add(wide, number, flags=("nuw", "nsw")))
    builder.call(listed, [address, wide])
    builder.call(callee, [wide, address], tail=True, attrs=("readonly",))
    builder.call(callee, [wide, address], arg_attrs={1: ("nonnull",)})
    condition = builder.icmp_signed("<", wide, ir.Constant(I64, 3))
    with builder.if_else(condition, likely=False) as (then, other):
        with then:
            first, begun = builder.call(callee, [wide, address]), builder.block
        with other:
            second, ended = builder.load(table, typ=I64, align=8), builder.block
    joined = builder.phi(I64)
    joined.add_incoming(first, begun)
    joined.add_incoming(second, ended)
    flag = builder.phi(I1, flags=())
    flag.add_incoming(ir.Constant(I1, 1), begun)
    flag.add_incoming(condition, ended)
    builder.ret(builder.select(flag, joined, ir.Constant(I64, None)))
    assert_same(module)
    assert "!prof" in module_text(module)
