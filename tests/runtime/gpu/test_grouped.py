"""Grouped products of tensors, in the interpreter, against float64."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.gpu.test_matmul import DTYPES, assert_product

import ftuner
from ftuner.errors import DTypeError, OperandError, ShapeError, UnsupportedKernelError
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.grouped import GroupedMatmul
from ftuner.runtime.ops.operands import matched

SIZES = [(1, 1, 1), (5, 7, 3), (67, 33, 129), (0, 4, 5), (16, 72, 40), (3, 4, 0), (17, 130, 64),
         (2, 0, 3), (97, 31, 8)]  # fmt: skip


def multiply(
    backend: GpuBackend, a: object, b: object, out: object | None = None
) -> list[torch.Tensor]:
    return backend.grouped_matmul(matched(a, b, out))


def matrix(
    rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float32,
    transposed: bool = False, padding: int = 0,
) -> Tensor:  # fmt: skip
    """Random numbers, contiguous along the rows if transposed, further apart than they need be by
    the padding."""
    generator = torch.Generator().manual_seed(seed)
    if transposed:
        return matrix(columns, rows, seed, dtype, padding=padding).mT
    whole = torch.randn((rows, columns + padding), generator=generator).to(dtype)
    return whole[:, :columns]


def operands(
    sizes: Sequence[tuple[int, int, int]], dtype: torch.dtype = torch.float32,
    transposed: tuple[bool, bool] = (False, False), padding: int = 0,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    a = [matrix(m, k, 2 * i, dtype, transposed[0], padding) for i, (m, _, k) in enumerate(sizes)]
    b = [
        matrix(k, n, 2 * i + 1, dtype, transposed[1], padding) for i, (_, n, k) in enumerate(sizes)
    ]
    return a, b


def assert_products(found: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    for y, x, w in zip(found, a, b, strict=True):
        assert_product(y, x, w)
        assert y.dtype == x.dtype


@pytest.mark.each_value
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_order(
    backend: GpuBackend, dtype: torch.dtype, transposed: tuple[bool, bool]
) -> None:
    a, b = operands(SIZES, dtype, transposed)
    assert_products(multiply(backend, a, b), a, b)


@settings(max_examples=25)
@given(
    groups=st.lists(
        st.tuples(st.integers(0, 70), st.integers(0, 70), st.integers(0, 70), st.booleans(),
                  st.booleans(), st.booleans(), st.integers(0, 3)),
        max_size=6,
    ),
    given_out=st.booleans(),
)  # fmt: skip
def test_any_groups(
    h200: GpuBackend, groups: list[tuple[int, int, int, bool, bool, bool, int]], given_out: bool
) -> None:
    a = [matrix(m, k, 1, transposed=x, padding=p) for m, _, k, x, _, _, p in groups]
    b = [matrix(k, n, 2, transposed=x, padding=p) for _, n, k, _, x, _, p in groups]
    out = [matrix(m, n, 3, transposed=x, padding=p) for m, n, _, _, _, x, p in groups]
    found = multiply(h200, a, b, out if given_out else None)
    if given_out:
        assert all(x is y for x, y in zip(found, out, strict=True))
    assert_products(found, a, b)


def test_groups_that_lie_alike_are_one_launch(
    backend: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = []
    launch = backend.grouped_matmul._launch
    monkeypatch.setattr(
        backend.grouped_matmul, "_launch",
        lambda like, groups: (launches.append((like.alike, len(groups))), launch(like, groups)),
    )  # fmt: skip
    a, b = operands([(5, 8, 16), (9, 24, 8), (40, 8, 40)])
    turned = [x.mT.contiguous().mT for x in a]
    unaligned = [matrix(7, 8, 5, padding=1)]
    assert_products(multiply(backend, a, b), a, b)
    assert launches == [(("k", "spatial", 16), 3)]
    launches.clear()
    x, y = [*a, *unaligned, *turned], [*b, matrix(8, 4, 6), *b]
    assert_products(multiply(backend, x, y), x, y)
    # Of what is contiguous along m, only 40 rows keep columns aligned.
    assert launches == [
        (("k", "spatial", 16), 3),
        (("k", "spatial", 4), 1),
        (("spatial", "spatial", 4), 2),
        (("spatial", "spatial", 16), 1),
    ]


def test_many_groups(backend: GpuBackend) -> None:
    """More than are looked at at once, and most of them empty."""
    a, b = operands([(i % 7, 8, 1 + i % 5) for i in range(90)])
    assert_products(multiply(backend, a, b), a, b)


class OnGpu(torch.Tensor):
    """Of a tensor on a GPU, what tells that it is."""

    is_cuda = True


def test_one_tensor_on_a_gpu_is_enough(monkeypatch: pytest.MonkeyPatch, h200: GpuBackend) -> None:
    a, b = operands([(5, 6, 7), (8, 3, 2)])
    asked = []
    monkeypatch.setattr(
        "ftuner.runtime.gpu.backend.backend_on", lambda device: asked.append(device) or h200
    )
    assert_products(ftuner.grouped_matmul(a, [b[0], b[1].as_subclass(OnGpu)]), a, b)
    assert asked == [torch.device("cpu")]


def test_no_groups(backend: GpuBackend) -> None:
    assert multiply(backend, [], []) == []
    assert multiply(backend, [], [], []) == []


def test_an_array_of_three_axes_is_a_sequence(backend: GpuBackend) -> None:
    a, b = operands([(3, 20, 12), (30, 20, 12)])
    weights = torch.stack(b)
    assert_products(multiply(backend, a, weights), a, b)


def test_addresses_that_are_not_aligned(backend: GpuBackend) -> None:
    a = [matrix(1, 65, 0)[0, 1:].view(8, 8), matrix(1, 200, 1)[0, 3:195].view(24, 8)]
    b = [matrix(8, 8, 2), matrix(8, 40, 3)]
    out = [torch.zeros(1 + 64)[1:].view(8, 8), torch.zeros(24, 40)]
    assert_products(multiply(backend, a, b, out), a, b)


def test_neither_axis_is_contiguous(backend: GpuBackend) -> None:
    a = [matrix(12, 20, 0)[::2, ::2], matrix(5, 10, 1)]
    b = [matrix(20, 14, 2)[::2, ::2], matrix(10, 8, 3)[:, ::2]]
    whole = torch.zeros(12, 14)
    found = multiply(backend, a, b, [whole[::2, ::2], torch.empty(5, 4)])
    assert_products(found, a, b)
    assert not whole[1::2].any()
    assert not whole[:, 1::2].any()


def test_results_over_operands_of_other_groups(backend: GpuBackend) -> None:
    """Operands are read before anything is written."""
    a, b = operands([(16, 16, 16)] * 3)
    x, y = [t.clone() for t in a], [t.clone() for t in b]
    assert_products(multiply(backend, x, y, [x[1], y[2], x[0]]), a, b)


def test_results_beside_and_over_each_other(backend: GpuBackend) -> None:
    a, b = operands([(12, 5, 8), (12, 9, 8), (12, 14, 8)])
    whole = torch.full((12, 16), 7.0)
    found = multiply(backend, a[:2], b[:2], [whole[:, :5], whole[:, 5:14]])
    assert_products(found, a[:2], b[:2])
    assert (whole[:, 14:] == 7.0).all()
    # The last one to be written stays.
    found = multiply(backend, a, b, [whole[:, :5], whole[:, 5:14], whole[:, :14]])
    assert_products(found[2:], a[2:], b[2:])


def test_nothing_else_is_written(backend: GpuBackend) -> None:
    a, b = operands([(33, 17, 20), (7, 40, 20)])
    wholes = [torch.full((40, 48), 7.0), torch.full((48, 40), 7.0)]
    out = [wholes[0][2:35, 8:25], wholes[1][3:43, 4:11].mT]
    multiply(backend, a, b, out)
    assert_products(out, a, b)
    for whole, part in zip(wholes, out, strict=True):
        assert (whole == 7.0).sum() == whole.numel() - part.numel()


def test_tf32(backend: GpuBackend) -> None:
    a, b = operands([(20, 24, 16), (9, 40, 16)])
    torch.set_float32_matmul_precision("high")
    try:
        found = multiply(backend, a, b)
    finally:
        torch.set_float32_matmul_precision("highest")
    for y, x, w in zip(found, a, b, strict=True):
        torch.testing.assert_close(y, x @ w, rtol=1e-2, atol=1e-2)
    assert any(like.multiply == "tf32" for like in backend.grouped_matmul._prepared)


def test_a_captured_graph_is_refused(monkeypatch: pytest.MonkeyPatch, h200: GpuBackend) -> None:
    """The table of a launch is made on the host, where nothing is when a graph is replayed."""
    products = GroupedMatmul(h200.kernels, h200.block_library)
    monkeypatch.setattr("ftuner.runtime.gpu.grouped.is_capturing", lambda device: True)
    with pytest.raises(UnsupportedKernelError, match="captured"):
        products.run([(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2, 2))])


A, B = operands([(4, 6, 5), (3, 6, 5)])
OUT = [torch.empty(4, 6), torch.empty(3, 6)]
AT_ONE = torch.empty(1, 6).expand(3, 6)
BAD: tuple[tuple[type[Exception], str, tuple[Any, ...]], ...] = (
    (ShapeError, "a has 2 matrices, b 1", (A, B[:1])),
    (ShapeError, "out has 1 matrices, a and b 2", (A, B, OUT[:1])),
    (ShapeError, r"group 1: .* a has 5 columns, b 4 rows", (A, [B[0], B[1][:4]])),
    (ShapeError, r"b\[1\] is \(5,\); expected a matrix", (A, [B[0], B[1][:, 0]])),
    (ShapeError, r"out\[1\] is \(4, 6\); the product .* is \(3, 6\)", (A, B, [OUT[0], OUT[0]])),
    (DTypeError, r"a\[0\] has dtype torch.int64", ([x.long() for x in A], [x.long() for x in B])),
    (DTypeError, r"a\[1\] has dtype .* convert one", ([A[0], A[1].half()], B)),
    (DTypeError, r"b\[0\] has dtype .* convert one", (A, [x.half() for x in B])),
    (DTypeError, r"out\[0\] has dtype", (A, B, [OUT[0].half(), OUT[1]])),
    (OperandError, r"b\[1\] is a ndarray", (A, [B[0], B[1].numpy()])),
    (OperandError, r"a\[1\] is on meta", ([A[0], torch.empty(3, 5, device="meta")], B)),
    (OperandError, r"a\[0\] needs a gradient", ([A[0].clone().requires_grad_(), A[1]], B)),
    (OperandError, r"out\[1\] has several elements at one address", (A, B, [OUT[0], AT_ONE])),
    (OperandError, "a is a int; expected a sequence", (3, B)),
    (OperandError, "b is a Tensor; expected a sequence", (A, torch.tensor(1.0))),
)


@pytest.mark.parametrize(("error", "words", "given"), BAD)
def test_bad_operands(
    backend: GpuBackend, error: type[Exception], words: str, given: tuple[Any, ...]
) -> None:
    with pytest.raises(error, match=words):
        multiply(backend, *given)
