"""Calls of operators and schedules that users define, run again without Python."""

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest
from tests.at_once import at_once
from tests.reference import Array, assert_product, uniform
from tests.tasks.gallery.packed_matmul import packed_matmul

import ftuner
from ftuner import define
from ftuner.errors import IndexRangeError


def operands(m: int = 5, k: int = 7, n: int = 9) -> tuple[Array, Array]:
    return uniform(1, (m, k), "float32"), uniform(2, (k, n), "float32")


@pytest.fixture
def total() -> ftuner.Operator:
    """An operator whose program has an intermediate result."""

    @ftuner.operator("(m, k), (k, n) -> (m, n)")
    def total(a: Any, b: Any) -> Any:
        def product(i: Any, j: Any) -> Any:
            return define.sum(a[i, t] * b[t, j] for t in define.axis)

        largest = lambda i: define.max(product(i, j) for j in define.axis(b.shape[1]))  # noqa: E731
        return lambda i, j: product(i, j) - largest(i)

    return total


def learnt(operator: ftuner.Operator, a: Array, b: Array) -> Callable[..., Any]:
    """The native function of calls of an operator, which knows one with such operands."""
    for _ in range(3):
        operator(a, b)
    call: Callable[..., Any] = operator._made.known.call
    assert isinstance(call(a, b), np.ndarray)
    return call


def expected(a: Array, b: Array) -> Array:
    product = a @ b
    found: Array = product - product.max(axis=1, keepdims=True)
    return found


def test_programs_are_known_by_their_layouts(total: ftuner.Operator) -> None:
    a, b = operands()
    call = learnt(total, a, b)
    for seed in range(3):
        a, b = uniform(seed, a.shape, "float32"), uniform(seed + 9, b.shape, "float32")
        np.testing.assert_allclose(call(a, b), expected(a, b), rtol=1e-4, atol=1e-5)
    longer, twice = uniform(1, (6, 7), "float32"), uniform(1, (5, 14), "float32")
    for other in (longer, twice[:, ::2], a.astype(np.float64), a.T.copy().T, a.tolist(), None):
        assert call(other, b) is None
        assert call(other, b) is (False if isinstance(other, np.ndarray) else None)
    assert call(a) is None
    assert call(*[a] * 20) is None
    np.testing.assert_allclose(total(longer, b), expected(longer, b), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total(twice[:, ::2], b), expected(twice[:, ::2], b), rtol=1e-4)


def test_what_is_known_keeps_what_it_runs(total: ftuner.Operator) -> None:
    """The operator may be scheduled otherwise while it is called, and lose what it had compiled."""
    a, b = operands()
    learnt(total, a, b)
    known, program = total._made.known, ref(total.compiled(a, b).parts[0])
    total._made = type(total._made)()
    gc.collect()
    assert program() is not None
    np.testing.assert_allclose(known.call(a, b), expected(a, b), rtol=1e-4, atol=1e-5)


def test_programs_of_several_threads(total: ftuner.Operator) -> None:
    """One of them runs the known program, the others by Python; with workers, and without."""
    a, b = operands(65, 130, 70)
    call, want = learnt(total, a, b), expected(a, b)

    def many() -> None:
        for _ in range(50):
            np.testing.assert_allclose(total(a, b), want, rtol=1e-4, atol=1e-4)

    at_once(*[many] * 3)
    assert isinstance(call(a, b), np.ndarray)


def test_an_operator_knows_nothing_of_another_schedule_or_number_of_threads() -> None:
    @ftuner.operator("(n) -> (n)")
    def twice(x: Any) -> Any:
        return lambda i: 2 * x[i]

    x = uniform(0, (40,), "float32")
    for _ in range(3):
        np.testing.assert_array_equal(twice(x), 2 * x)
    assert isinstance(twice._made.known.call(x), np.ndarray)
    before = ftuner.get_num_threads()
    try:
        ftuner.set_num_threads(before + 1)
        assert twice._made.known.call(x) is False
        np.testing.assert_array_equal(twice(x), 2 * x)
        assert isinstance(twice._made.known.call(x), np.ndarray)
    finally:
        ftuner.set_num_threads(before)


def test_indices_in_the_data_are_checked_in_each_call() -> None:
    @ftuner.operator("(n), int(m) -> (m)")
    def taken(x: Any, at: Any) -> Any:
        return lambda i: x[at[i]]

    x, at = uniform(0, (4,), "float32"), np.array([1, 3, 0])
    for _ in range(4):
        np.testing.assert_array_equal(taken(x, at), x[at])
    with pytest.raises(IndexRangeError):
        taken(x, at + 4)


@pytest.mark.parametrize("threads", [1, 2])
def test_schedules_with_panels_are_known(threads: int) -> None:
    before = ftuner.get_num_threads()
    ftuner.set_num_threads(threads)
    try:
        a, b = operands(260, 130, 140)
        for _ in range(3):
            packed_matmul(a, b)
        known = packed_matmul.code().known.call
        a, b = 2 * a, b + 1
        found = known(a, b)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, packed_matmul.code().run([a, b])[0])
        assert known(a[:, ::2], b) in (None, False)

        def many() -> None:
            for _ in range(20):
                assert_product(packed_matmul(a, b), a, b)

        at_once(*[many] * 3)
    finally:
        ftuner.set_num_threads(before)
