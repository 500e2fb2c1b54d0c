"""Random numbers in native code: the same bits on each instruction set, and near the exact ones."""

from functools import partial

import llvmlite.ir as ir
import numpy as np
import pytest
from tests.codegen.llvm.nest_running import A, Array, Case, Functions
from tests.conftest import HOST_ISAS, recorded_cpus

from ftuner.codegen.llvm.ir import random_numbers
from ftuner.codegen.llvm.ir.builder import I64, IRBuilder, scalar_type
from ftuner.core.dtype import FLOAT32, FLOAT64, UINT64, DType
from ftuner.core.random_numbers import normal, philox
from ftuner.cost.functions import operation_cycles
from ftuner.hardware.tuning import CpuTuning

COUNT = 1 << 18
MAX_ULP = 4.0


def drawn(op: str, dtype: DType, isa: str, stream: int) -> Array:
    attributes = {"dtype": dtype, "shape": (A,)}
    if op == "random_uniform":
        attributes["digits"] = dtype.significand_bits
    functions = Functions(isa, [Case(op, (("uint64", ()),), attributes).kernel()])
    out = np.empty(COUNT, dtype.name)
    key = np.array(stream, np.uint64)
    assert functions.run(0, [key], [out.ctypes.data], {"A": COUNT}) == 0
    return out


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("op", ["random_uniform", "random_normal"])
def test_the_same_bits_on_each_isa(op: str, dtype: DType) -> None:
    first, *others = (drawn(op, dtype, isa, 2**63 + 9) for isa in HOST_ISAS)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
def test_normal_numbers_are_within_four_ulp(dtype: DType) -> None:
    found = drawn("random_normal", dtype, HOST_ISAS[-1], 77)
    words = partial(philox, key=np.uint64(77))
    at = np.arange(COUNT, dtype=np.uint64)
    if dtype == FLOAT32:
        wanted = normal(words(at), words(at), dtype)
    else:
        wanted = normal(words(2 * at), words(2 * at + 1), dtype)
    assert np.all(np.abs(found - wanted) <= MAX_ULP * np.spacing(np.abs(wanted)))


FREE = ("bitcast", "ret", "call")


@pytest.mark.parametrize("name", ["philox", "normal"])
def test_prices_count_the_code(name: str) -> None:
    """The instructions of a vector of 64-bit words, within a quarter."""
    module = ir.Module()
    words = ir.VectorType(I64, 4)
    result = words if name == "philox" else ir.VectorType(scalar_type(FLOAT32), 4)
    caller = ir.Function(module, ir.FunctionType(result, [words] * 2), "caller")
    builder = IRBuilder(caller.append_basic_block())
    if name == "philox":
        builder.ret(random_numbers.philox(builder, *caller.args))
    else:
        builder.ret(random_numbers.normal(builder, *caller.args, FLOAT32))
    bodies = [f for f in module.functions if f.name.startswith("ftuner_")]
    found = [i.opname for f in bodies for b in f.blocks for i in b.instructions]
    # Masks of products are dropped, two in each round.
    dropped = 20 if name == "philox" else 0
    count = sum(op not in FREE for op in found) - dropped
    isa = next(m for m in recorded_cpus() if m.name == "epyc-milan-2").isa("avx2")
    cycles = operation_cycles(name, UINT64, 4, isa, CpuTuning())
    assert 2 * cycles == pytest.approx(count, rel=0.25)
