"""Folding has a bound on what it makes in all, in proportion to the constants of the model."""

import numpy as np
import pytest

from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32, INT8, INT32, INT64, DType
from ftuner.errors import IndexRangeError, ShapeError
from ftuner.graph.builder import Builder
from ftuner.graph.folding import (
    FREE_BYTES,
    FREE_WORK,
    MAX_FOLDED_BYTES,
    MOST_GROWTH,
    PROPORTION,
    fold_constants,
)  # fmt: skip
from ftuner.graph.ir import MAX_RANK, Graph, Node, TensorType, Value
from ftuner.graph.rewrite.surroundings import constant

MEGABYTE = 1 << 20


def _filled(builder: Builder, number: float, size: int) -> Value:
    return builder.add("broadcast", builder.constant(number, FLOAT32), shape=(size,))


def test_what_is_folded_has_a_bound_in_all() -> None:
    builder = Builder()
    values = [_filled(builder, number, MEGABYTE // 4) for number in range(40)]
    folded = [v.constant is not None for v in values]
    assert folded == [True] * (FREE_BYTES // MEGABYTE) + [False] * (40 - FREE_BYTES // MEGABYTE)
    assert all(v.type == TensorType(FLOAT32, (MEGABYTE // 4,)) for v in values)


def test_the_bound_grows_with_what_a_model_holds() -> None:
    builder = Builder()
    builder.stored(np.zeros(MEGABYTE, np.int8), INT8)
    values = [_filled(builder, number, MEGABYTE // 4) for number in range(100)]
    assert sum(v.constant is not None for v in values) == FREE_BYTES // MEGABYTE + PROPORTION


def test_large_weights_are_folded_however_large() -> None:
    builder = Builder()
    positions = MAX_FOLDED_BYTES // 2 + 1
    weight = builder.stored(np.ones((1, 2, positions), np.int8), INT8)
    turned = builder.add("transpose", weight, perm=(2, 1, 0))
    assert turned.constant is not None
    assert turned.shape == (positions, 2, 1)
    several = (2 * MOST_GROWTH, *turned.shape)
    assert builder.add("broadcast", turned, shape=several).constant is None


def test_a_large_matrix_is_no_copy_of_another() -> None:
    builder = Builder()
    weight = builder.stored(np.ones((2, MAX_FOLDED_BYTES // 2 + 1), np.int8), INT8)
    assert builder.add("transpose", weight, perm=(1, 0)).constant is None


def test_what_is_read_again_and_again_has_a_bound() -> None:
    """However small the results are."""
    builder = Builder()
    x = _filled(builder, 1.0, MEGABYTE)
    count = 0
    while builder.add("reduce", x, kind="sum", axes=(0,)).constant is not None:
        count += 1
    assert count < FREE_WORK // MEGABYTE


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1500), ("int64", 700)])
def test_products_count_by_their_steps(dtype: str, size: int) -> None:
    builder = Builder()
    x = builder.constant(np.ones((size, size), dtype))
    products = [x]
    while products[-1].constant is not None:
        products.append(builder.add("matmul", products[-1], x))
    assert 1 < len(products) < 8


def test_indices_out_of_range_are_named() -> None:
    builder = Builder()
    x, at = builder.constant(np.ones(3, np.float32)), builder.constant(np.array([7]))
    with pytest.raises(IndexRangeError):
        builder.add("gather", x, at, axis=0)


def test_a_pass_names_indices_out_of_range() -> None:
    """Of a table that the builder left to the passes, because a product might have read it."""
    table = constant("table", INT8, np.ones((4, 4)))
    at = constant("at", INT64, np.array([7]))
    wide, rows = (
        Value("wide", TensorType(FLOAT32, (4, 4))),
        Value("rows", TensorType(FLOAT32, (1, 4))),
    )
    nodes = (
        Node("cast", (table,), (wide,), {"to": FLOAT32}),
        Node("gather", (wide, at), (rows,), {"axis": 0}),
    )
    graph = Graph((), (("y", rows),), nodes)
    with pytest.raises(IndexRangeError):
        fold_constants(graph)


def test_tensors_that_no_process_can_address_are_refused() -> None:
    builder = Builder()
    one = builder.constant(1.0, FLOAT32)
    builder.add("broadcast", one, shape=(1 << 40,))
    builder.add("broadcast", one, shape=(symbol("N"), 1 << 62))
    with pytest.raises(ShapeError, match="address space"):
        builder.add("broadcast", one, shape=(1 << 31, 1 << 31))


def test_tensors_of_many_axes_are_refused() -> None:
    builder = Builder()
    x = builder.input("x", FLOAT32, (symbol("N"),))
    builder.add("reshape", x, shape=(symbol("N"), *[1] * (MAX_RANK - 1)))
    with pytest.raises(ShapeError, match="65 axes"):
        builder.add("reshape", x, shape=(symbol("N"), *[1] * MAX_RANK))


@pytest.mark.parametrize("dtype", [INT64, INT32], ids=str)
def test_followed_integers_have_the_bits_of_their_type(dtype: DType) -> None:
    builder = Builder()
    most = builder.constant(np.array([np.iinfo(dtype.name).max]), dtype)
    n = builder.add("cast", builder.dims([symbol("N")]), to=dtype)
    both = builder.add("concat", n, most, axis=0)
    assert builder.add("add", both, both).dims == (symbol("N") * 2, -2)
    assert builder.add("multiply", both, both).dims == (symbol("N") * symbol("N"), 1)
    narrow = builder.add("cast", builder.dims([symbol("N"), 1 << 32]), to=INT32)
    assert narrow.dims == (symbol("N"), 0)


def test_powers_of_integers_with_negative_exponents() -> None:
    builder = Builder()
    x, y = (builder.constant(np.array([n])) for n in (2, -1))
    found = builder.add("power", x, y).constant
    assert found is not None
    assert found.tolist() == [0]
