"""Layers on a GPU, in the interpreter."""

import pytest
import torch
from tests.runtime.gpu.backends import interpreted
from tests.runtime.gpu.test_matmul import DTYPES, random

from ftuner.errors import DTypeError, ExpressionError, OperandError, ShapeError
from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.gpu.dense import Dense


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=4 * eps, atol=16 * eps)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out_features", "in_features"), [(48, 32), (50, 33), (1, 1)])
def test_bias_activation_residual(
    backend: GpuBackend, dtype: torch.dtype, out_features: int, in_features: int
) -> None:
    w = random(out_features, in_features, dtype=dtype)
    bias, x = random(out_features, dtype=dtype, seed=1), random(3, 7, in_features, dtype=dtype)
    r = random(3, 7, out_features, dtype=dtype, seed=2)
    layer = Dense(w, bias, "gelu", True, session=backend)
    product = x.double() @ w.double().mT + bias.double()
    close(layer(x, r), torch.nn.functional.gelu(product) + r.double())
    assert layer(x[:0], r[:0]).shape == (0, 7, out_features)
    plain = Dense(w, session=backend)
    close(plain(x), x.double() @ w.double().mT)
    out = torch.empty(3, 7, out_features, dtype=dtype)
    assert plain(x, out=out) is out
    close(out, x.double() @ w.double().mT)


def test_a_residual_that_is_written_over(h200: GpuBackend) -> None:
    w, x = random(32, 32), random(8, 32, seed=1)
    layer = Dense(w, residual=True, session=h200)
    before = x.clone()
    layer(x, x, out=x)
    close(x, before.double() @ w.double().mT + before.double())


def test_a_weight_that_changes_later(h200: GpuBackend) -> None:
    w, x = random(32, 24), random(8, 24, seed=1)
    layer = Dense(w, session=h200)
    expected = x.double() @ w.double().mT
    w.zero_()
    close(layer(x), expected)


@pytest.mark.parametrize("chip", ["h200", "rtx3090"])
@pytest.mark.parametrize(("out_features", "in_features"), [(24, 36), (25, 40)])
def test_calls_do_not_compile(chip: str, out_features: int, in_features: int) -> None:
    """For one row and several, of other strides and at other addresses than contiguous ones."""

    def arrays(rows: int, columns: int) -> list[torch.Tensor]:
        x = random(rows, columns + 1, dtype=torch.float16)
        shifted = x.view(-1)[1 : 1 + rows * columns].view(rows, columns)
        return [x[:, :-1].clone(), shifted, x[:, 1:], x[:, 1:].T.contiguous().T]

    session = interpreted(chip)
    w = random(out_features, in_features, dtype=torch.float16)
    layer = Dense(w, residual=True, session=session)
    kernels = len(session.kernels)
    for rows in (1, 3):
        results = arrays(rows, out_features)
        for x, r, out in zip(arrays(rows, in_features), results, results[::-1], strict=True):
            expected = x.double() @ w.double().mT + r.double()
            close(layer(x, r, out=out), expected)
    assert len(session.kernels) == kernels


def test_no_inputs_and_no_outputs(h200: GpuBackend) -> None:
    """Sums of nothing are zeros, to which the epilogue is applied."""
    bias, residual = random(8), random(3, 8, seed=1)
    layer = Dense(random(8, 0), bias, "sigmoid", residual=True, session=h200)
    close(layer(random(3, 0), residual), torch.sigmoid(bias.double()) + residual)
    plain = Dense(random(8, 0), session=h200)
    kernels = len(h200.kernels)
    for shape in ((1,), (2, 3), (0,), (2, 0)):
        assert torch.equal(plain(random(*shape, 0)), torch.zeros(*shape, 8))
    assert len(h200.kernels) == kernels
    assert Dense(random(0, 6), session=h200)(random(2, 3, 6)).shape == (2, 3, 0)


def test_bad_arguments(h200: GpuBackend) -> None:
    w = random(8, 6)
    with pytest.raises(ShapeError, match="weight is"):
        Dense(random(8), session=h200)
    with pytest.raises(ShapeError, match="bias is"):
        Dense(w, random(6), session=h200)
    with pytest.raises(DTypeError):
        Dense(w.double(), session=h200)
    with pytest.raises(ExpressionError, match="known are"):
        Dense(w, activation="mish", session=h200)
    layer = Dense(w, session=h200)
    with pytest.raises(ShapeError, match="expected"):
        layer(random(3, 5))
    with pytest.raises(DTypeError, match="convert one"):
        layer(random(3, 6).half())
    with pytest.raises(OperandError, match="no residual"):
        layer(random(3, 6), random(3, 8))
    with pytest.raises(ShapeError, match="out is"):
        layer(random(3, 6), out=torch.empty(3, 6))
