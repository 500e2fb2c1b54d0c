"""The part of `ftuner demo` that compiles a module of PyTorch, which is not part of the extra
`demo`: without it, nothing is compiled."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ftuner.errors import ConfigurationError
from ftuner_tools.demo.latencies import Latency, Timed, latencies, timed_call

if TYPE_CHECKING:
    from rich.console import Console

INSTALL = "pip install 'ftuner[torch]'"
WIDTH = 256
SHAPES = ((1, 1), (1, 7), (3, 25), (1, 128))
"""Batches and lengths."""
ROUNDS = 3
"""Times that each shape is computed."""


@dataclass(frozen=True)
class Compiled:
    """A module that was compiled once."""

    steps: str
    """How many steps of each kind a run has."""
    difference: float
    """The largest difference of an element from PyTorch's."""
    latencies: tuple[Latency, ...]


def needs_torch() -> None:
    """Raises ConfigurationError: PyTorch is not installed."""
    if find_spec("torch") is None:
        raise ConfigurationError(f"to compile a module of PyTorch, install it with: {INSTALL}")


def compiled(threads: int | None) -> Compiled:
    """What compiling an encoder layer of PyTorch gives."""
    import ftuner

    torch: Any = import_module("torch")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True).eval()
    free = torch.export.Dim.AUTO
    model = ftuner.compile(
        layer, (torch.randn(2, 9, WIDTH),), dynamic_shapes=({0: free, 1: free},), threads=threads
    )
    timed: Timed = {}
    difference = 0.0
    with torch.inference_mode():
        for shape in SHAPES * ROUNDS:
            x = torch.randn(*shape, WIDTH)
            found = timed_call(timed, (*shape, WIDTH), partial(model, x))
            difference = max(difference, float((found - layer(x)).abs().max()))
    rows = latencies("PyTorch layer", timed)
    kinds = Counter(step.kind for step in model.steps)
    steps = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return Compiled(steps, difference, tuple(rows))


def show_compiled(out: Console, found: Compiled) -> None:
    """Print what a module became."""
    out.print("\na module of PyTorch, compiled once", style="bold")
    out.print(f"  steps: {found.steps}", highlight=False)
    out.print(f"  largest difference from PyTorch: {found.difference:.1g}", highlight=False)
