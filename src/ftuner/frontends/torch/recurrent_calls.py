"""Recurrent layers in traced programs. torch traces its own step by step, even where it keeps the
operator, so that their length becomes a constant; these operators have a shape rule instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ftuner.frontends.torch import importer  # noqa: F401  (which fills the table of importers)
from ftuner.frontends.torch.registry import ATEN

_SETTINGS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
_LAYERS = {
    "lstm": f"(Tensor input, Tensor[] hx, {_SETTINGS}) -> (Tensor, Tensor, Tensor)",
    **dict.fromkeys(
        ("gru", "rnn_tanh", "rnn_relu"),
        f"(Tensor input, Tensor hx, {_SETTINGS}) -> (Tensor, Tensor)",
    ),
}
"""The schemas, which are those of torch."""
_KEPT: dict[object, Callable[..., Any]] = {}
"""Our operators by torch's functions."""


def _shaped(
    input: torch.Tensor, hx: torch.Tensor | Sequence[torch.Tensor], params: Sequence[torch.Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Tensors with the shapes of the results."""
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    hidden = states[0].shape[-1] * (2 if bidirectional else 1)
    return input.new_empty((*input.shape[:-1], hidden)), *(x.new_empty(x.shape) for x in states)


def _define() -> None:
    for name, schema in _LAYERS.items():
        function = getattr(torch, name)
        torch.library.define(f"ftuner::{name}", schema)
        torch.library.impl(f"ftuner::{name}", "CompositeExplicitAutograd")(function)
        torch.library.register_fake(f"ftuner::{name}")(_shaped)
        _KEPT[function] = getattr(torch.ops.ftuner, name)
        ATEN[f"ftuner::{name}.default"] = ATEN[f"{name}.input"]


_define()


class KeptRecurrences(TorchFunctionMode):
    """Has recurrent layers be our operators meanwhile; those of packed sequences are torch's."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        kept = _KEPT.get(func)
        if kept is not None and not isinstance(args[2], torch.Tensor):
            return kept(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
