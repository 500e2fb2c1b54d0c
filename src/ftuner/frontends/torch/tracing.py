"""How torch traces programs so that importers find them whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table

Tensors = tuple[torch.Tensor, ...]
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def _outputs(
    x: torch.Tensor, states: Sequence[torch.Tensor], bidirectional: bool, hidden: int
) -> Tensors:
    """Tensors of the shapes of what a recurrent layer gives. `hidden`: of the sequence."""
    whole = x.new_empty((*x.shape[:2], hidden * (2 if bidirectional else 1)))
    return whole, *(torch.empty_like(s) for s in states)


def _lstm(
    x: torch.Tensor, hx: Sequence[torch.Tensor], params: object, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Tensors:  # fmt: skip
    return _outputs(x, hx, bidirectional, hx[0].shape[2])


def _of_one_state(
    x: torch.Tensor, hx: torch.Tensor, params: object, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Tensors:  # fmt: skip
    return _outputs(x, [hx], bidirectional, hx.shape[2])


@contextmanager
def lengths_kept() -> Iterator[None]:
    """Have `torch.export` take the number of steps of recurrent layers for any number meanwhile.

    It finds the shapes of what a composite operator gives by running its parts on fake tensors.
    Those of recurrent layers are as many as there are steps, which makes their number a constant.
    """
    aten = torch.ops.aten
    layers: dict[Any, Callable[..., Tensors]] = {
        aten.lstm.input: _lstm,
        aten.gru.input: _of_one_state,
        aten.rnn_tanh.input: _of_one_state,
        aten.rnn_relu.input: _of_one_state,
    }
    before = {op: dict(op.py_kernels) for op in layers}
    decomposed = {op: decomposition_table[op] for op in layers if op in decomposition_table}
    try:
        decomposition_table.update(layers)
        for op, shapes in layers.items():
            _replace(op, dict.fromkeys([*before[op], _COMPOSITE], shapes))
        yield
    finally:
        for op, kernels in before.items():
            del decomposition_table[op]
            _replace(op, kernels)
        decomposition_table.update(decomposed)


def _replace(op: Any, kernels: Mapping[DispatchKey, Callable[..., Any]]) -> None:
    """Have an operator use other kernels of Python."""
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
