"""Complex tensors within a program, as pairs of real ones."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch_programs import Function, agrees, imported  # noqa: E402

import ftuner  # noqa: E402
from ftuner.errors import UnsupportedOperatorError  # noqa: E402

fft = torch.fft


def rotated(x: Any) -> Any:
    """Rotary positions as products of complex numbers, with a complex constant."""
    turns = torch.polar(torch.ones(9, 4), torch.linspace(0, 3, 36).reshape(9, 4))
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[: x.shape[1]][None]).flatten(2)


def mixed(x: Any) -> Any:
    y = fft.fft(x) / 4
    z = (y.conj() * 1j - y / (2 + y.abs())).exp() + x
    return z.real, z.imag, z.angle(), z.sum(1).abs(), torch.cat([z, y], -1)[:, :, 5:].imag


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "two axes": lambda x: fft.fftn(x, dim=(1, 2)).real,
    "real": lambda x: fft.irfft(fft.rfft(x, dim=1) * 2, n=x.shape[1], dim=1),
    "padded": lambda x: fft.irfft(fft.rfft2(x, s=(12, 8)), n=6),
    "norms": lambda x: torch.view_as_real(fft.ifft2(fft.fft2(x, norm="ortho"), norm="forward")),
    "hermitian": lambda x: fft.hfft(fft.ihfft(x, dim=1), n=x.shape[1], dim=1),
    "rotated": rotated,
    "mixed": mixed,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_extent(name: str) -> None:
    torch.manual_seed(0)
    module = Function(FUNCTIONS[name])
    found = imported(module, [torch.randn(2, 7, 8)], [(0, 1)])
    for length in (7, 1, 2, 6):
        agrees(found, module, [torch.randn(3, length, 8)])


def test_a_transform_is_compiled() -> None:
    module, x = Function(FUNCTIONS["two axes"]), torch.randn(2, 33, 8)
    model = ftuner.compile(imported(module, [torch.randn(2, 7, 8)], [(0, 1)]).graph)
    (name,) = (v.name for v in model.inputs)
    torch.testing.assert_close(model(**{name: x})["output_0"], module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: torch.view_as_real(torch.complex(x, x).cumsum(0)), "cumsum of complex tensors"),
        (lambda x: x * 1j, "a complex output"),
    ],
)
def test_what_is_refused_is_named(function: Any, what: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=what):
        imported(Function(function), [torch.randn(3, 4)], [(0,)])
