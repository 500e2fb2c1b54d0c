"""torch's tensors in the CPU's memory: tensors in, tensors out, nothing copied."""

from typing import Any

import numpy as np
import pytest
from tests.child import printed

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import BFLOAT16, FLOAT16, FLOAT32, INT64
from ftuner.graph.builder import Builder
from ftuner.runtime.cpu.arrays import as_array, tensor_of

torch = pytest.importorskip("torch")


def random(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, dtype=dtype or torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_matmul(dtype: Any) -> None:
    a, b = random(3, 7, 5, dtype=dtype), random(5, 9, dtype=dtype)
    for _ in range(4):  # The call cache knows the later ones.
        found = ftuner.matmul(a, b)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == dtype
        torch.testing.assert_close(found, a @ b)
    torch.testing.assert_close(ftuner.matmul(a, b.T.contiguous().T), a @ b)
    out = torch.ones(3, 7, 9, dtype=dtype)
    assert ftuner.matmul(a, b, out, accumulate=True) is out
    torch.testing.assert_close(out, a @ b + 1)


def test_any_tensor_makes_a_tensor_and_out_decides() -> None:
    a, b = random(4, 5), random(5, 6)
    mixed = ftuner.matmul(a.numpy(), b)
    assert isinstance(mixed, torch.Tensor)
    assert isinstance(ftuner.matmul(a.numpy(), b.numpy()), np.ndarray)
    array, tensor = np.zeros((4, 6), np.float32), torch.zeros(4, 6)
    assert ftuner.matmul(a, b, array) is array
    assert ftuner.matmul(a.numpy(), b.numpy(), tensor) is tensor
    torch.testing.assert_close(torch.from_numpy(array), a @ b)
    torch.testing.assert_close(tensor, a @ b)


def test_memory_is_shared() -> None:
    x = random(4, 6).T
    view = as_array(x, "x")
    assert view.ctypes.data == x.data_ptr()
    assert view.strides == tuple(4 * s for s in x.stride())
    made = np.ones((2, 3), np.float32)
    assert tensor_of(made).data_ptr() == made.ctypes.data
    frozen = np.ones(3)
    frozen.flags.writeable = False
    assert tensor_of(frozen).data_ptr() != frozen.ctypes.data


def test_layers() -> None:
    weight, bias, x, residual = random(16, 8), random(16), random(2, 5, 8), random(2, 5, 16)
    layer = ftuner.Dense(weight, bias, "relu", residual=True)
    expected = torch.relu(x @ weight.T + bias) + residual
    found = layer(x, residual)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected)
    assert isinstance(layer(x.numpy(), residual.numpy()), np.ndarray)
    out = torch.empty(2, 5, 16)
    assert layer(x, residual, out) is out
    torch.testing.assert_close(out, expected)
    plain = ftuner.Dense(weight.numpy())
    for _ in range(4):
        torch.testing.assert_close(plain(x), x @ weight.T)


def test_grouped_products_and_attention() -> None:
    a, b = [random(3, 4), random(5, 6)], [random(4, 2), random(6, 7)]
    for found, x, y in zip(ftuner.grouped_matmul(a, b), a, b, strict=True):
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, x @ y)
    outs = [torch.empty(3, 2), np.empty((5, 7), np.float32)]
    given = ftuner.grouped_matmul(a, b, outs)
    assert all(x is y for x, y in zip(given, outs, strict=True))
    q, k, v = random(2, 5, 8), random(2, 6, 8), random(2, 6, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    found = ftuner.attention(q, k, v)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected)
    out = torch.empty(2, 5, 8)
    assert ftuner.attention(q.numpy(), k.numpy(), v.numpy(), out=out) is out
    torch.testing.assert_close(out, expected)
    offsets = torch.tensor([0, 5])
    rows = ftuner.attention(q, k[:, :5], v[:, :5], q_offsets=offsets)
    torch.testing.assert_close(
        rows, torch.nn.functional.scaled_dot_product_attention(q, k[:, :5], v[:, :5])
    )


def model(dtype: Any) -> ftuner.Model:
    builder = Builder()
    x = builder.input("x", dtype, (symbol("n"), 4))
    table = builder.input("at", INT64, (symbol("m"),))
    taken = builder.add("gather", x, table, axis=0)
    return ftuner.compile(builder.graph([x, table], [("y", builder.add("add", taken, taken))]))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_models(dtype: Any) -> None:
    if dtype == BFLOAT16:
        pytest.importorskip("ml_dtypes")
    compiled = model(dtype)
    x, at = random(5, 4, dtype=getattr(torch, dtype.name)), torch.tensor([3, 0])
    found = compiled(x=x, at=at)["y"]
    assert isinstance(found, torch.Tensor)
    assert found.dtype == x.dtype
    torch.testing.assert_close(found, x[at] * 2)
    (again,) = compiled.run({"x": as_array(x, "x"), "at": at.numpy()})
    assert isinstance(again, np.ndarray)
    assert compiled.memory({"x": x, "at": at}).outputs_bytes > 0


def test_a_gradient_is_a_named_error_where_torch_records_it() -> None:
    weight, x = torch.nn.Parameter(random(3, 4)), random(2, 4)
    for call in (
        lambda: ftuner.Dense(weight), lambda: ftuner.matmul(x, weight.T),
        lambda: ftuner.grouped_matmul([x], [weight.T]),
    ):  # fmt: skip
        with pytest.raises(ftuner.OperandError, match=r"needs a gradient.*detach\(\)"):
            call()
    with pytest.raises(ftuner.InputError, match="needs a gradient"):
        model(FLOAT32)(x=torch.nn.Parameter(random(3, 4)), at=torch.tensor([0]))
    with torch.no_grad():
        torch.testing.assert_close(ftuner.Dense(weight)(x), x @ weight.T)
    torch.testing.assert_close(ftuner.Dense(weight.detach())(x), (x @ weight.T).detach())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "complex64", "int32"])
def test_other_dtypes_are_named_errors(name: str) -> None:
    x = torch.ones(3, 3).to(getattr(torch, name))
    with pytest.raises(ftuner.DTypeError, match=f"a has dtype .*{name}.*float32, float64"):
        ftuner.matmul(x, x)
    with pytest.raises(ftuner.DTypeError, match=f"weight has dtype .*{name}.*float32, float64"):
        ftuner.Dense(x)
    with pytest.raises(ftuner.InputError, match=name):
        model(FLOAT32)(x=torch.ones(3, 4).to(getattr(torch, name)), at=torch.tensor([0]))


def test_tensors_that_are_elsewhere_are_named_errors() -> None:
    with pytest.raises(ftuner.OperandError, match="a is on meta"):
        ftuner.matmul(torch.ones(3, 3, device="meta"), torch.ones(3, 3))
    with pytest.raises(ftuner.OperandError, match=r"b is torch.sparse_coo; expected a strided"):
        ftuner.matmul(torch.ones(3, 3), torch.eye(3).to_sparse())


def test_torch_is_not_imported_for_arrays() -> None:
    script = (
        "import sys, numpy, ftuner; x = numpy.ones((3, 3), 'float32'); ftuner.matmul(x, x); "
        "ftuner.Dense(x)(x); ftuner.grouped_matmul([x], [x]); print('torch' in sys.modules)"
    )
    done = printed("-c", script)
    assert done.split() == ["False"]
