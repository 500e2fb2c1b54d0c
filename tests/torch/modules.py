"""Small modules, and what the tests do with compiled ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ftuner.torch import backend

WIDTH = 16
MEMORY = {
    "transposed": torch.randn(4, 3).t(),
    "strided": torch.randn(6, 8)[::2, 1::2],
    "expanded": torch.randn(3, 1).expand(3, 4),
    "scalar": torch.randn(1).expand(3, 4),
    "no rows": torch.zeros(0, 4),
    "no columns": torch.zeros(3, 0),
    "offset": torch.randn(13)[1:].view(3, 4),
    "negated": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "parameter": nn.Parameter(torch.randn(3, 4)),
}
"""Matrices by how they are stored."""


def in_a_child(holds: Callable[[], bool]) -> bool:
    """Whether something holds in a forked child, which ends by itself."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if holds() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def in_threads(call: Callable[[torch.Tensor], Any], inputs: Sequence[torch.Tensor]) -> None:
    """Hold that a function raises nothing in threads, one for each input."""
    with ThreadPoolExecutor(len(inputs)) as pool:
        list(pool.map(call, inputs))


def hooked() -> tuple[nn.Module, list[Any]]:
    """A module with hooks, and the shapes that one of them saw."""
    module, seen = mlp(), list[Any]()
    module[0].register_forward_hook(lambda _m, _i, output: output * 2)  # type: ignore[index]
    module.register_forward_pre_hook(lambda _m, given: (given[0] + 1,))
    module.register_forward_hook(lambda _m, _i, output: seen.append(output.shape))
    return module, seen


def compiled(module: Callable[..., Any], dynamic: bool | None = True, **options: object) -> Any:
    """A module compiled by ftuner."""
    if isinstance(module, nn.Module):
        module.eval()
    return torch.compile(module, backend=backend, dynamic=dynamic, options=options or None)


def computed(x: torch.Tensor) -> torch.Tensor:
    """Enough operators for a region."""
    return (x.sigmoid() * x.exp() + x.tanh()) * 2 - x


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))


class Block(nn.Module):
    """An encoder layer."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hidden = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.hidden(self.last(x))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, WIDTH, 3, stride=2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(WIDTH, 5),
    )  # fmt: skip


def same(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Hold that values agree, relative to the largest of all: a sum may cancel to a small one."""
    tensors = (leaf for leaf in tree_leaves(wanted) if isinstance(leaf, torch.Tensor))
    floats = [t.abs().nan_to_num(posinf=0) for t in tensors if t.is_floating_point() and t.numel()]
    largest = max([1.0, *(t.max().item() for t in floats)])
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * largest)
