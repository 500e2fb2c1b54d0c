"""Operands that are copied to an aligned pitch, where the estimate says so."""

import pytest
import torch
from tests.runtime.gpu.test_matmul import random

from ftuner.runtime.gpu.arrays import alignment
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.operands import Product, alignment_of, arranged, order_of
from ftuner.runtime.gpu.packing import packed


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
    monkeypatch.setattr(products._packing, "worth_copying", lambda *_: (True, True))
    a, b = random(2, 19, 21), random(21, 18, seed=1)
    a, b = (x.mT.contiguous().mT if t else x for x, t in zip((a, b), turned, strict=True))
    c = torch.zeros(2, 19, 18)
    assert products.launch(Product(a, b, c)) is None
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    products._packing._copied.clear()
    monkeypatch.undo()
    assert products.launch(Product(a, b, c)) is not None
    products._packing._copied.clear()


def test_only_large_products_are_worth_copies(backend: GpuBackend) -> None:
    found = []
    for m, n, k in ((5, 7, 9), (64, 64, 65), (777, 3001, 1001), (4095, 4095, 4095)):
        a, b = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        c = torch.empty(m, n, dtype=torch.bfloat16)
        operands = arranged(Product(a, b, c))
        copied = backend.products._packed(operands)
        found.append((copied.a is not a, copied.b is not b))
    assert found == [(False, False)] * 2 + [(True, True)] * 2


def test_each_operand_is_copied_by_its_own_address(h200: GpuBackend) -> None:
    def at(rows: int, columns: int, offset: int) -> torch.Tensor:
        return torch.empty(rows * columns + 8).half()[offset:][: rows * columns].view(rows, columns)

    c = torch.empty(512, 512).half()
    for offsets in ((1, 0), (0, 1), (1, 1)):
        a, b = at(512, 2048, offsets[0]), at(2048, 512, offsets[1])
        found = h200.products._packed(arranged(Product(a, b, c)))
        assert (found.a is not a, found.b is not b) == tuple(map(bool, offsets))
        assert (alignment_of(found.a, -1), alignment_of(found.b, -2), found.both) == (16, 16, 16)


def test_columns_times_rows_are_copied_by_the_stride_that_kernels_read(h200: GpuBackend) -> None:
    """With one element of k, rows of B are 2 bytes apart as kernels read it."""
    m = 16384
    a, b = (torch.empty(shape, device="meta").half() for shape in ((m, 33), (1, m)))
    c = torch.empty(m, m, device="meta").half()
    found = h200.products._packed(arranged(Product(a[:, :1], b, c)))
    assert (alignment_of(found.a, -1), alignment_of(found.b, -2), found.both) == (16, 16, 16)
