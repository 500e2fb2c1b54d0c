"""Rates beside another library: each call follows one of that library, and all give one result."""

import numpy as np
import pytest
from benchmarks.beside import ALONE, _calls, rates
from tests.apart import Note, apart

from ftuner_tools.timing import MULTIPLY_ADDS, SUBJECT


def test_each_call_follows_one_of_the_first_way() -> None:
    order: list[str] = []
    calls = {name: [lambda name=name: order.append(name)] for name in ("spins", "own")}
    found = rates(calls, 10, 2)
    assert order == ["spins", "spins", "spins", "own"] * 2
    assert found.keys() == calls.keys()
    assert min(found.values()) > 0.0


def _compute_the_same(note: Note) -> None:
    calls = _calls(5, 24, 16, 2)
    wanted, one, all_ = (calls[name][1]() for name in ("onnxruntime", ALONE, SUBJECT))
    np.testing.assert_allclose(np.asarray(one), np.asarray(wanted), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.asarray(all_), np.asarray(wanted), rtol=1e-4, atol=1e-4)
    note("multiply-adds")
    calls[MULTIPLY_ADDS][0]()


def test_ways_compute_the_same_product() -> None:
    """In a process of its own, because a process has one global thread pool of ONNX Runtime."""
    pytest.importorskip("onnxruntime")
    apart(_compute_the_same)
