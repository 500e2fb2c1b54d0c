"""Epilogues of stored tiles: what they compute on each ISA, and that they touch nothing else."""

from dataclasses import replace

import llvmlite.ir as ir
import numpy as np
import pytest
from tests.codegen.llvm.objects import loaded
from tests.conftest import HOST_ISAS
from tests.reference import lie, uniform

from ftuner.codegen.llvm.kernels.finish import emit
from ftuner.codegen.llvm.native.records import Context
from ftuner.codegen.llvm.native.symbols import finish_symbol
from ftuner.core.cpu.tile import RegisterTile, UKernel
from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.core.expr import ACCUMULATOR, Operand, applied, operands
from ftuner.core.expr_values import evaluate
from ftuner.core.product import product_types
from ftuner.hardware.isa import instruction_set

ROWS, COLUMNS = 40, 70
EPILOGUE = applied(
    "maximum",
    ACCUMULATOR * Operand("scale", "column") + Operand("residual", "matrix"),
    Operand("least", "row"),
)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("isa", HOST_ISAS)
def test_a_part_of_a_matrix(isa: str, dtype: DType, masked: bool) -> None:
    """Rows and columns from a corner on, of which the last vector may be short."""
    row = replace(instruction_set(isa), masked=masked)
    lanes = row.vector_bytes // dtype.itemsize
    kernel = UKernel(RegisterTile(1, 1, 1), product_types(dtype), isa, lanes, epilogue=EPILOGUE)
    module = ir.Module("finish")
    emit(module, kernel, row)
    (finish,) = loaded(module, isa, [finish_symbol(kernel)], 2, 4, inlines=True)
    given = {
        "scale": uniform(1, (COLUMNS,), dtype.name),
        "residual": uniform(2, (ROWS, COLUMNS), dtype.name),
        "least": uniform(3, (ROWS, 1), dtype.name),
    }
    for top, left, rows, columns in ((0, 0, 1, 1), (3, 5, 7, lanes), (2, 1, 14, 3 * lanes + 1)):
        c, memory = lie("padded", uniform(4, (ROWS, COLUMNS), dtype.name), guard=99.0)
        before, outside = c.copy(), memory.size - c.size
        context = np.zeros(int(Context.SIZE), np.int64)
        context[Context.C_ROW_STRIDE] = c.strides[0]
        for i, operand in enumerate(operands(EPILOGUE)):
            array = given[operand.name]
            context[Context.OPERANDS + 2 * i] = array.ctypes.data
            context[Context.OPERANDS + 2 * i + 1] = array.strides[0]
        corner = c.ctypes.data + top * c.strides[0] + left * c.itemsize
        finish(context.ctypes.data, corner, top, left, rows, columns)
        place = np.s_[top : top + rows, left : left + columns]
        expected = before.copy()
        expected[place] = evaluate(EPILOGUE, {"acc": before, **given})[place]
        np.testing.assert_array_equal(c, expected)
        assert np.count_nonzero(memory == 99.0) == outside
