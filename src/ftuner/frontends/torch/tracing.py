"""How torch traces programs so that importers find them whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._prims_common import infer_size, is_contiguous_or_false, make_contiguous_strides_for
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true

Tensors = tuple[torch.Tensor, ...]
_check: Any = torch._check
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


def _outputs(
    x: torch.Tensor, hx: torch.Tensor | Sequence[torch.Tensor], params: object, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Tensors:  # fmt: skip
    """Tensors of the shapes of what a recurrent layer gives."""
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    hidden = states[0].shape[2] * (2 if bidirectional else 1)
    return x.new_empty((*x.shape[:2], hidden)), *(torch.empty_like(s) for s in states)


@contextmanager
def extents_kept() -> Iterator[None]:
    """Have `torch.export` keep extents of any number where it loses them, meanwhile.

    - It finds the shapes of what a composite operator gives by running its parts on fake tensors.
      Those of recurrent layers are as many as there are steps, which makes their number a constant.
    - It takes an integer that is read of a tensor for unknown, also where the tensor was made of an
      extent, as by `torch.div(x.size(1), 4, rounding_mode="trunc")`.
    - It compares extents where the shape of a view is enough: see `_view`.
    """
    aten = torch.ops.aten
    recurrent = aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input
    layers: dict[Any, Callable[..., Tensors]] = dict.fromkeys(recurrent, _outputs)
    before = {op: dict(op.py_kernels) for op in layers}
    decomposed = {op: decomposition_table[op] for op in layers if op in decomposition_table}
    dispatch = FakeTensorMode.dispatch
    shapes_of = fake_impls.op_implementations_dict
    views = {op: shapes_of[op] for op in (aten.view.default, aten._unsafe_view.default)}
    try:
        decomposition_table.update(layers)
        for op, shapes in layers.items():
            _replace(op, dict.fromkeys([*before[op], _COMPOSITE], shapes))
        FakeTensorMode.dispatch = _dispatched(dispatch)  # type: ignore[method-assign]
        shapes_of.update({op: _view(whole) for op, whole in views.items()})
        yield
    finally:
        FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign]
        shapes_of.update(views)
        for op, kernels in before.items():
            del decomposition_table[op]
            _replace(op, kernels)
        decomposition_table.update(decomposed)


def _replace(op: Any, kernels: Mapping[DispatchKey, Callable[..., Any]]) -> None:
    """Have an operator use other kernels of Python."""
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def _view(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The shape and strides of a view. torch finds out which axes each of its extents is made of,
    by symbolic division: for the windows of padded images, as Swin has them, this takes seconds for
    each view. Where there are no gaps, the strides follow from the shape alone."""

    def view(mode: FakeTensorMode, op: Any, x: FakeTensor, shape: Sequence[Any], **kw: Any) -> Any:
        if not is_contiguous_or_false(x):
            return otherwise(mode, op, x, shape, **kw)
        wanted = infer_size(tuple(shape), x.numel())
        _check(x.numel() == math.prod(wanted))
        return x.as_strided(wanted, make_contiguous_strides_for(wanted))

    return view


def _quotient(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    exact = rounding_mode == "floor" or (
        rounding_mode == "trunc" and statically_known_true(x >= 0) and statically_known_true(y > 0)
    )
    return x // y if exact else None


_NUMBERS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.scalar_tensor.default: lambda x: x,
    torch.ops.aten._to_copy.default: lambda x: x,
    torch.ops.aten.add.Tensor: lambda x, y, alpha=1: x + y * alpha,
    torch.ops.aten.sub.Tensor: lambda x, y, alpha=1: x - y * alpha,
    torch.ops.aten.rsub.Scalar: lambda x, y, alpha=1: y - x * alpha,
    torch.ops.aten.mul.Tensor: lambda x, y: x * y,
    torch.ops.aten.div.Tensor_mode: _quotient,
    torch.ops.aten.floor_divide.default: lambda x, y: _quotient(x, y, rounding_mode="floor"),
    torch.ops.aten.minimum.default: torch.sym_min,
    torch.ops.aten.maximum.default: torch.sym_max,
}
"""What operators on tensors without axes make of the integers in them."""
_STORAGE = ("dtype", "device", "layout", "pin_memory", "non_blocking", "memory_format")


def _dispatched(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """`FakeTensorMode.dispatch`, which notes of results without axes the integer that is in
    them."""

    def noting(
        mode: FakeTensorMode, op: Any, types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        found = dispatch(mode, op, types, args, kwargs)
        number = _NUMBERS.get(op)
        if (
            number is not None
            and isinstance(found, FakeTensor)
            and not found.dim()
            and found.dtype == torch.int64
        ):
            numbers = [x.item_memo if isinstance(x, FakeTensor) else x for x in args]
            named = {k: x for k, x in (kwargs or {}).items() if k not in _STORAGE}
            if all(isinstance(x, (int, torch.SymInt)) for x in numbers):
                found.item_memo = number(*numbers, **named)
        return found

    return noting
