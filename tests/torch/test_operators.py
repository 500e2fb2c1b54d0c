"""Operators that users define, as custom operators of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ftuner
from ftuner.define import axis, max, min, sum, tanh
from ftuner.errors import ConfigurationError


@ftuner.operator("(..., m, k), (k, n) -> (..., m, n), (..., m), int64(n + 1)")
def spread(a: Any, b: Any, *, scale: float = 1.0, signs: tuple[int, ...] = (1, 2)) -> Any:
    return (
        lambda i, j: tanh(sum(a[i, t] * b[t, j] for t in axis) * scale),
        lambda i: max(a[i, t] for t in axis) - min(a[i, t] for t in axis),
        lambda i: i * signs[1],
    )


OPERATOR = spread.torch("ftuner_tests::spread")


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(16, 24, generator=torch.manual_seed(0)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product, width, numbers = torch.ops.ftuner_tests.spread(x * 2, self.weight, scale=0.5)
        return torch.relu(product), width + 1, numbers


def expected(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = torch.relu(torch.tanh(x * 2 @ weight * 0.5))
    return product, (x * 2).amax(-1) - (x * 2).amin(-1) + 1, torch.arange(25) * 2


@pytest.mark.parametrize("way", ["eager", "ftuner.compile", "torch.compile", "export"])
def test_an_operator_runs_in_each_way(way: str) -> None:
    module, x = Module().eval(), torch.rand(3, 5, 16)
    with torch.inference_mode():
        run: Any = module
        if way == "ftuner.compile":
            run = ftuner.compile(module, (x,))
            assert [s.title for s in run.steps if "matmul" in s.title and "maximum" in s.title]
        elif way == "torch.compile":
            run = torch.compile(module, backend="ftuner", dynamic=True)
        elif way == "export":
            run = torch.export.export(module, (x,)).module()
        shapes = [(3, 5, 16)] if way == "export" else [(3, 5, 16), (2, 7, 16)]
        for shape in shapes:
            given = torch.rand(shape)
            torch.testing.assert_close(tuple(run(given)), expected(given, module.weight))


def test_torch_checks_the_operator() -> None:
    operands = (torch.rand(3, 4), torch.rand(4, 5))
    torch.library.opcheck(OPERATOR, operands, test_utils=("test_schema", "test_faketensor"))


def test_names_are_checked() -> None:
    for name in ("spread", "a::b::c", "ftuner_tests::spread"):
        with pytest.raises(ConfigurationError, match=name):
            spread.torch(name)
