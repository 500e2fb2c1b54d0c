"""Arrays of half precision: rounding, and what NumPy has no type for."""

import numpy as np
import pytest
from tests.graph.graphs import Maker

from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, INT8, INT64, UINT8, DType
from ftuner.graph.arrays import converted, held_in, largest_finite, of_bfloat16, widened
from ftuner.runtime.reference import run_reference

EVERY = np.arange(1 << 16, dtype=np.uint16)


def test_every_bfloat16_is_itself() -> None:
    numbers = of_bfloat16(EVERY)
    np.testing.assert_array_equal(converted(numbers, BFLOAT16), numbers)
    finite = numbers[np.isfinite(numbers)]
    assert finite.max() == largest_finite(BFLOAT16)
    assert np.float32(largest_finite(FLOAT16)) == 65504


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_rounding_is_to_the_nearest_and_half_way_to_the_even_one(dtype: DType) -> None:
    every = EVERY.view(np.float16) if dtype == FLOAT16 else of_bfloat16(EVERY)
    numbers = np.unique(every[np.isfinite(every)]).astype(np.float64)
    below, above = numbers[:-1], numbers[1:]
    middle = (below + above) / 2
    nearer = below + (above - below) * 0.25
    # All of these are numbers of float32, but for those between the smallest of bfloat16.
    known = middle == middle.astype(np.float32)
    found = converted(middle[known].astype(np.float32), dtype)
    assert np.all((found == below[known]) | (found == above[known]))
    step = np.abs(found.astype(held_in(dtype)).view(np.uint16 if dtype == FLOAT16 else np.uint32))
    assert np.all((step >> (0 if dtype == FLOAT16 else 16)) & 1 == 0)
    known = nearer == nearer.astype(np.float32)
    np.testing.assert_array_equal(converted(nearer[known].astype(np.float32), dtype), below[known])


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_what_is_no_number_stays_so(dtype: DType) -> None:
    given = np.array([np.inf, -np.inf, np.nan, -np.nan, 3.4e38, -3.4e38, 0.0, -0.0], np.float32)
    given.view(np.uint32)[3] = 0x7F800001
    wanted = np.array([np.inf, -np.inf, np.nan, np.nan, np.inf, -np.inf, 0.0, -0.0])
    found = converted(given, dtype)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[-2:]), [False, True])


def test_types() -> None:
    assert converted([1, 2], INT8).dtype == np.int8
    assert converted(np.ones(3), BFLOAT16).dtype == np.float32 == held_in(BFLOAT16)
    assert widened(np.ones(3, np.float16), FLOAT16).dtype == np.float32
    assert widened(np.ones(3, np.int64), INT64).dtype == np.int64
    with pytest.raises(OverflowError):
        converted(256, UINT8)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_folding_computes_in_float32_and_rounds(dtype: DType) -> None:
    maker = Maker()
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((4, 300)).astype(np.float32) for _ in range(2))
    a, b = (maker.constant(v, dtype) for v in (x, y))
    found = maker.add("reduce", maker.add("multiply", a, b), kind="sum", axes=(1,))
    assert maker.nodes == []
    assert found.dtype == dtype
    left, right = (converted(v, dtype).astype(np.float32) for v in (x, y))
    products = converted(left * right, dtype).astype(np.float32)
    wanted = converted(products.sum(1), dtype)
    np.testing.assert_array_equal(found.constant, wanted)
    # A cast rounds, and another widens.
    back = maker.add("cast", maker.add("cast", maker.constant(x), to=dtype), to=FLOAT32)
    np.testing.assert_array_equal(back.constant, left)
    assert back.constant is not None
    assert back.constant.dtype == np.float32


def test_references_take_and_give_halves() -> None:
    maker = Maker()
    x = maker.given("x", 3, dtype=BFLOAT16)
    y = maker.add("cast", maker.add("add", x, x), to=FLOAT16)
    graph = maker.made(maker.add("exp", x), y)
    found = run_reference(graph, [np.array([1.0, 1 / 3, -2.0], np.float32)])
    assert [v.dtype for v in found] == [np.float32, np.float16]
    # A third is rounded as it comes in.
    assert found[1][1] == 2 * converted(1 / 3, BFLOAT16)


@pytest.mark.parametrize("dtype", [FLOAT32, INT8, INT64], ids=str)
@pytest.mark.parametrize("shape", [(300, 257), (256, 1000), (2, 3, 270, 259)])
def test_transposed_matrices_become_row_major(shape: tuple[int, ...], dtype: DType) -> None:
    turned = (*shape[:-2], shape[-1], shape[-2])
    x = np.arange(np.prod(shape)).astype(held_in(dtype)).reshape(turned).swapaxes(-1, -2)
    found = converted(x, dtype)
    assert found.flags.c_contiguous
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, x)
