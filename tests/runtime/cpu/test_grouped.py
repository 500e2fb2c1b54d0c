"""Grouped products of arrays, against float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ftuner
from ftuner.errors import DTypeError, OperandError, ShapeError
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.grouped import GroupedMatmul
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.ops.operands import matched

Grouped = Callable[..., list[Any]]
"""`grouped_matmul` of a back end."""
SIZES = [(1, 1, 1), (5, 7, 3), (0, 4, 5), (67, 33, 129), (3, 4, 0), (2, 0, 3), (16, 72, 40)]


@pytest.fixture
def grouped(backend: CpuBackend) -> Grouped:
    multiply = GroupedMatmul(Matmul(backend))
    return lambda a, b, out=None: multiply(matched(a, b, out))


def operands(
    sizes: Sequence[tuple[int, int, int]], dtype: Any = np.float32
) -> tuple[list[Array], list[Array]]:
    rng = np.random.default_rng(0)
    a = [rng.standard_normal((m, k)).astype(dtype) for m, _, k in sizes]
    return a, [rng.standard_normal((k, n)).astype(dtype) for _, n, k in sizes]


def assert_products(found: Sequence[Array], a: Sequence[Array], b: Sequence[Array]) -> None:
    assert len(found) == len(a)
    for y, x, w in zip(found, a, b, strict=True):
        wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
        assert y.shape == (x.shape[0], w.shape[1])
        assert y.dtype == x.dtype
        bound = (x.shape[1] + 1) * np.finfo(y.dtype).eps * (np.abs(wide_x) @ np.abs(wide_w))
        assert (np.abs(y - wide_x @ wide_w) <= bound).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_groups_of_any_extents(grouped: Grouped, dtype: Any) -> None:
    a, b = operands(SIZES, dtype)
    assert_products(grouped(a, b), a, b)
    out = [np.full((m, n), 7.0, dtype) for m, n, _ in SIZES]
    found = grouped(a, b, out)
    assert all(x is y for x, y in zip(found, out, strict=True))
    assert_products(out, a, b)


@settings(max_examples=20)
@given(
    sizes=st.lists(st.tuples(*[st.integers(0, 40)] * 3), max_size=5),
    flips=st.tuples(*[st.sampled_from([1, -1, 2])] * 4), turned=st.booleans(),
)  # fmt: skip
def test_strides_of_any_sign(
    sizes: list[tuple[int, int, int]], flips: tuple[int, int, int, int], turned: bool
) -> None:
    a, b = operands([(2 * m, n, k) for m, n, k in sizes])
    a = [x[:: flips[0], :: flips[1]] for x in a]
    b = [x[:, :: flips[2]] for x in b]
    b = [np.ascontiguousarray(y[: x.shape[1]]) for x, y in zip(a, b, strict=True)]
    out = [np.zeros((x.shape[0], 2 * y.shape[1]), np.float32) for x, y in zip(a, b, strict=True)]
    views = [z[:, ::2][:, ::-1] if turned else z[:, 1::2] for z in out]
    assert_products(ftuner.grouped_matmul(a, b, views), a, b)
    for z in out:
        assert not (z[:, 1::2] if turned else z[:, ::2]).any()


def test_no_groups() -> None:
    assert ftuner.grouped_matmul([], []) == []
    assert ftuner.grouped_matmul((), (), ()) == []


def test_an_array_of_three_axes_is_a_sequence(grouped: Grouped) -> None:
    a, b = operands([(3, 20, 12), (30, 20, 12)])
    assert_products(grouped(a, np.stack(b)), a, b)


def test_results_over_operands_of_other_groups(grouped: Grouped) -> None:
    """Operands are read before anything is written."""
    a, b = operands([(16, 16, 16)] * 3)
    x, y = [t.copy() for t in a], [t.copy() for t in b]
    assert_products(grouped(x, y, [x[1], y[2], x[0]]), a, b)
    # Memory that is walked backwards.
    x = [t.copy() for t in a]
    assert_products(grouped(x, b, [x[1][::-1], x[2][:, ::-1], x[0][::-1, ::-1]]), a, b)


def test_results_beside_and_over_each_other(grouped: Grouped) -> None:
    a, b = operands([(12, 5, 8), (12, 9, 8), (12, 14, 8)])
    whole = np.full((12, 16), 7.0, np.float32)
    found = grouped(a, b, [whole[:, :5], whole[:, 5:14], whole[:, :14]])
    # The last one to be written stays.
    assert_products(found[2:], a[2:], b[2:])
    assert_products(grouped(a[:2], b[:2], [whole[:, :5], whole[:, 5:14]]), a[:2], b[:2])
    assert (whole[:, 14:] == 7.0).all()


def test_tensors_on_the_cpu(grouped: Grouped) -> None:
    torch = pytest.importorskip("torch")
    a, b = operands([(5, 6, 7), (8, 9, 10)])
    out = [torch.zeros(5, 6), torch.zeros(8, 9)]
    grouped([torch.from_numpy(x) for x in a], b, out)
    assert_products([x.numpy() for x in out], a, b)


def test_bad_operands(grouped: Grouped) -> None:
    a, b = operands([(4, 6, 5), (3, 6, 5)])
    out = [np.zeros((4, 6), np.float32), np.zeros((3, 6), np.float32)]
    with pytest.raises(ShapeError, match="a has 2 matrices, b 1"):
        grouped(a, b[:1])
    with pytest.raises(ShapeError, match=r"group 1: .* a has 5 columns, b 4 rows"):
        grouped(a, [b[0], b[1][:4]], out)
    with pytest.raises(ShapeError, match=r"a\[0\] is \(5,\)"):
        grouped([a[0][0], a[1]], b)
    with pytest.raises(ShapeError, match=r"out\[1\] is \(4, 6\)"):
        grouped(a, b, [out[0], out[0]])
    with pytest.raises(DTypeError, match=r"b\[1\] has dtype float64"):
        grouped(a, [b[0], b[1].astype(np.float64)])
    with pytest.raises(DTypeError, match=r"a\[1\] has dtype int64"):
        grouped([a[0], a[1].astype(np.int64)], b)
    with pytest.raises(DTypeError, match=r"out\[0\] has dtype float64"):
        grouped(a, b, [out[0].astype(np.float64), out[1]])
    with pytest.raises(OperandError, match=r"a\[1\] is a str"):
        grouped([a[0], "x"], b)
    with pytest.raises(OperandError, match="b is a int; expected a sequence"):
        grouped(a, 3)
    out[1].flags.writeable = False
    with pytest.raises(OperandError, match=r"out\[1\] is read-only"):
        grouped(a, b, out)
    # Nothing was computed of what had an error behind it.
    assert not out[0].any()
