"""Operands that are copied to an aligned pitch, where the estimate says so."""

from __future__ import annotations

import pytest
import torch
from tests.runtime.gpu.test_matmul import random

from ftuner.runtime.gpu.arrays import alignment
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.operands import arranged, order_of, packed


@pytest.mark.parametrize("whole_k", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("k_axis", [-1, -2])
def test_copies_have_an_aligned_pitch(k_axis: int, turned: bool, whole_k: bool) -> None:
    shape = (2, 7, 5) if k_axis == -1 else (2, 5, 7)
    x = random(*shape)
    if turned:
        x = x.mT.contiguous().mT
    found = packed(x, k_axis, whole_k)
    assert alignment([found]) == 16
    assert order_of(found, k_axis) == order_of(x, k_axis)
    k = found.shape[k_axis]
    assert k == (8 if whole_k else 5)
    assert torch.equal(found.narrow(k_axis, 0, 5), x)
    assert not found.narrow(k_axis, 5, k - 5).any()


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_copies(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch, turned: tuple[bool, bool]
) -> None:
    """Of chips with descriptors, whose rows may be of any length, and without."""
    products = backend.products
    monkeypatch.setattr(products, "_worth_copying", lambda operands: (True, True))
    a, b = random(2, 19, 21), random(21, 18, seed=1)
    a, b = (x.mT.contiguous().mT if t else x for x, t in zip((a, b), turned, strict=True))
    c = torch.zeros(2, 19, 18)
    assert products.launch(a, b, c) is None
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    products._copied.clear()
    monkeypatch.undo()
    assert products.launch(a, b, c) is not None
    products._copied.clear()


def test_only_large_products_are_worth_copies(backend: GpuBackend) -> None:
    found = []
    for m, n, k in ((5, 7, 9), (64, 64, 65), (777, 3001, 1001), (4095, 4095, 4095)):
        a, b = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        c = torch.empty(m, n, dtype=torch.bfloat16)
        operands = arranged(a, b, c, {}, None, None)
        found.append(backend.products._worth_copying(operands))
    assert found == [(False, False)] * 2 + [(True, True)] * 2
