"""Products say the dtypes of A, B, accumulators and C."""

from ftuner.core.dtype import BFLOAT16, DTYPES, FLOAT32, INT8, INT32, UINT8
from ftuner.core.product import Contraction, ProductTypes, product_types


def test_one_dtype() -> None:
    for dtype in DTYPES.values():
        types = product_types(dtype)
        assert (types.a, types.b, types.accumulator, types.c) == (dtype,) * 4
        assert types.multiplied == types
        assert not types.widens
        assert str(types) == str(dtype)


def test_a_narrower_weight_is_widened() -> None:
    for b in (INT8, BFLOAT16):
        types = product_types(FLOAT32, b)
        assert types.widens
        assert types.multiplied == product_types(FLOAT32)
        assert str(types) == f"float32_{b}_float32_float32"


def test_operands_of_one_size_are_multiplied_as_they_are() -> None:
    types = ProductTypes(UINT8, INT8, INT32, FLOAT32)
    assert not types.widens
    assert types.multiplied == types


def test_each_operand_counts_with_its_size() -> None:
    contraction = Contraction(2, 3, 5, ProductTypes(UINT8, INT8, INT32, FLOAT32), batch=7)
    assert contraction.flops == 2 * 7 * 30
    assert contraction.bytes_moved == 7 * (10 + 15 + 4 * 6)
