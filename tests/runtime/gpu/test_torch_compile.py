"""`torch.compile(module, backend="ftuner")` of modules on a GPU, whose kernels are interpreted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.modules import WIDTH, Block, compiled, mlp, same
from torch import nn

from ftuner.runtime.gpu.backend import GpuBackend
from ftuner.runtime.request import Request
from ftuner.torch import explain, graphs
from ftuner.torch.regions import on_gpu


@pytest.fixture(autouse=True)
def _on_gpu(monkeypatch: pytest.MonkeyPatch, h200: GpuBackend) -> None:
    """Tensors in the CPU's memory stand for those on the GPU."""
    torch._dynamo.reset()
    monkeypatch.setattr(Request, "backend", lambda self: h200)
    monkeypatch.setattr(graphs, "runner", on_gpu)


def pictures() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(2))


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (mlp, [(3, WIDTH), (1, WIDTH)]),
        pytest.param(Block, [(2, 3, WIDTH), (1, 3, WIDTH)], marks=pytest.mark.full),
        pytest.param(pictures, [(2, 3, 6, 6)], marks=pytest.mark.full),
    ],
)
def test_modules(make: Callable[[], nn.Module], shapes: list[Any]) -> None:
    module = make()
    run = compiled(module)
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape)
            same(run(x), module(x), 1e-3)
        assert len(explain(run, x).models) == 1
