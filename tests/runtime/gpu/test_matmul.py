"""Products of tensors, in the interpreter, against float64."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftuner.core.dtype import GPU_DTYPES
from ftuner.errors import DTypeError, OperandError, ShapeError
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.matmul import Matmul

DTYPES = [TORCH_DTYPES[name] for name in GPU_DTYPES]


@pytest.fixture
def matmul(backend: GpuBackend) -> Matmul:
    return Matmul(backend.products)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def assert_product(found: Tensor, a: Tensor, b: Tensor, plus: Tensor | None = None) -> None:
    """Within the rounding of a dot product summed in float32, and of its result; the interpreter
    cuts to bfloat16, where a GPU rounds."""
    a, b = a.double(), b.double()
    expected, size = a @ b, a.abs() @ b.abs()
    if plus is not None:
        expected, size = expected + plus.double(), size + plus.double().abs()
    assert found.shape == expected.shape
    k = a.shape[-1]
    bound = k * 2.0**-23 * size + 2 * torch.finfo(found.dtype).eps * expected.abs() + 1e-30
    assert ((found.double() - expected).abs() <= bound).all()


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (5, 7, 3), (1, 130, 64), (67, 33, 129), (200, 72, 40)]
)
def test_extents(matmul: Matmul, dtype: torch.dtype, m: int, n: int, k: int) -> None:
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype, seed=1)
    assert_product(matmul(a, b), a, b)


@settings(max_examples=25)
@given(
    m=st.integers(1, 90), n=st.integers(1, 90), k=st.integers(1, 90),
    transposed=st.tuples(st.booleans(), st.booleans(), st.booleans()), padding=st.integers(0, 3),
)  # fmt: skip
def test_any_layout(
    h200: GpuBackend, m: int, n: int, k: int, transposed: tuple[bool, bool, bool], padding: int
) -> None:
    def matrix(rows: int, columns: int, transpose: bool, seed: int) -> Tensor:
        if transpose:
            return random(columns, rows + padding, seed=seed)[:, :rows].mT
        return random(rows, columns + padding, seed=seed)[:, :columns]

    a, b = matrix(m, k, transposed[0], 0), matrix(k, n, transposed[1], 1)
    out = matrix(m, n, transposed[2], 2)
    before = out.clone()
    multiply = Matmul(h200.products)
    assert multiply(a, b, out) is out
    assert_product(out, a, b)
    out.copy_(before)
    multiply(a, b, out, accumulate=True)
    assert_product(out, a, b, before)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4, 5), (5, 6)), ((3, 4, 5), (3, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)),
     ((2, 3, 4, 5), (1, 3, 5, 6)), ((5,), (5,)), ((4, 5), (5,)), ((5,), (2, 5, 6)),
     ((2, 3, 1, 5), (5, 6))],
)  # fmt: skip
def test_batches_broadcast(matmul: Matmul, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = random(*a), random(*b, seed=1)
    found, expected = matmul(x, y), torch.matmul(x.double(), y.double())
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_batch_axes_that_do_not_lie_as_one(matmul: Matmul) -> None:
    a = random(3, 2, 4, 8).transpose(0, 1)
    b = random(2, 3, 8, 16, seed=1)
    assert_product(matmul(a, b), a, b)


def test_strides_along_both_axes(matmul: Matmul) -> None:
    a, b, out = random(12, 20)[::2, ::2], random(20, 14, seed=1)[::2, ::2], torch.zeros(12, 14)
    matmul(a, b, out[::2, ::2])
    assert_product(out[::2, ::2], a, b)
    assert not out[1::2].any()


def test_an_address_that_is_not_aligned(matmul: Matmul) -> None:
    a, b = random(65)[1:].view(8, 8), random(8, 8, seed=1)
    assert_product(matmul(a, b), a, b)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_nothing_to_multiply(matmul: Matmul, m: int, n: int, k: int) -> None:
    assert torch.equal(matmul(torch.ones(m, k), torch.ones(k, n)), torch.zeros(m, n))
    before = torch.full((m, n), 3.0)
    assert torch.equal(matmul(torch.ones(m, k), torch.ones(k, n), before, True).clone(), before)


def test_results_over_operands(matmul: Matmul) -> None:
    a, b = random(16, 16), random(16, 16, seed=1)
    x, y = a.clone(), b.clone()
    matmul(x, y, x)
    assert_product(x, a, b)
    x = a.clone()
    matmul(x, y, y)
    assert_product(y, a, b)


def test_k_cut_in_parts(matmul: Matmul, backend: GpuBackend) -> None:
    """Few tiles and a long k: the last part to finish adds all up, each time anew."""
    a, b = random(16, 4096), random(4096, 32, seed=1)
    for _ in range(2):
        assert_product(matmul(a, b), a, b)
    assert any(call.plan.split_k > 1 for call in backend.products._calls.values())


def test_nan_and_infinity(matmul: Matmul) -> None:
    a, b = random(20, 24), random(24, 40, seed=1)
    a[3, 5], b[7, 9] = float("nan"), float("inf")
    found = matmul(a, b)
    assert found[3].isnan().all()
    rest = torch.ones(20, dtype=torch.bool)
    rest[3] = False
    assert not found[rest][:, :9].isnan().any()
    assert found[rest][:, 9].isinf().all()


def test_tf32(matmul: Matmul, backend: GpuBackend) -> None:
    """Where torch was told that float32 need not be exact, it is not."""
    a, b = random(20, 24), random(24, 40, seed=1)
    torch.set_float32_matmul_precision("high")
    try:
        found = matmul(a, b)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(found, a @ b, rtol=1e-2, atol=1e-2)
    last = list(backend.products._calls.values())[-1]
    assert last.plan.kernel.multiply == "tf32"


A, B = random(4, 5), random(5, 6)
BAD: tuple[tuple[type[Exception], str, tuple[Any, ...]], ...] = (
    (ShapeError, "a has 5 columns, b 4 rows", (A, A)),
    (ShapeError, "do not broadcast", (random(2, 4, 5), random(3, 5, 4))),
    (ShapeError, "a scalar is no matrix", (A, torch.tensor(1.0))),
    (ShapeError, r"out is \(4, 4\)", (A, B, torch.empty(4, 4))),
    (ShapeError, "needs an out", (A, B, None, True)),
    (DTypeError, "int64", (A.long(), A.long())),
    (DTypeError, "convert one of them", (A, B.half())),
    (DTypeError, "out has dtype", (A, B, torch.empty(4, 6, dtype=torch.float16))),
    (OperandError, "all of them are", (A, A.numpy())),
    (OperandError, "move one", (A, torch.empty(5, 6, device="meta"))),
    (OperandError, "detach it", (A, random(5, 6).requires_grad_())),
    (OperandError, "one address", (A, B, torch.empty(1, 6).expand(4, 6))),
    (OperandError, "strided", (A.to_sparse(), B)),
)


@pytest.mark.parametrize(("error", "words", "given"), BAD)
def test_bad_operands(
    matmul: Matmul, error: type[Exception], words: str, given: tuple[Any, ...]
) -> None:
    with pytest.raises(error, match=words):
        matmul(*given)
