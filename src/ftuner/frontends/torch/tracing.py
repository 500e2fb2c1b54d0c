"""How torch traces programs so that importers find them whole."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._prims_common import infer_size, is_contiguous_or_false, make_contiguous_strides_for
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils.weak import WeakIdKeyDictionary

from ftuner.frontends.torch.registry import ATEN, name_of

Tensors = tuple[torch.Tensor, ...]
_ATEN = torch.ops.aten
_check: Any = torch._check
_COMPOSITE = DispatchKey.CompositeImplicitAutograd


_NEW = frozenset({
    "batch_norm.default", "bilinear.default", "conv1d.default", "conv2d.default", "conv3d.default",
    "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
    "group_norm.default", "instance_norm.default", "layer_norm.default", "linear.default",
    "matmul.default", "rms_norm.default",
})  # fmt: skip
"""Composite operators that always give new tensors."""
_SHARING = frozenset({
    "_unsafe_view.default", "lift.default", "unsafe_split.Tensor",
    "unsafe_split_with_sizes.default",
})  # fmt: skip
"""Operators whose results share memory with what they read, of which their schemas say nothing."""
_DROPOUTS = frozenset({
    "alpha_dropout.default", "dropout.default", "feature_alpha_dropout.default",
    "feature_dropout.default",
})  # fmt: skip
"""Operators that give what they read itself, unless they are trained."""


def without_updates(graph: fx.Graph) -> None:
    """Replace operators in place by those that give new tensors, where nothing else reads what they
    update afterwards. torch would trace the program again for them."""
    before: set[fx.Node] = set()
    for node in graph.nodes:
        op = node.target
        if not isinstance(op, torch._ops.OpOverload):
            before.add(node)
            continue
        if name_of(op) in _DROPOUTS and node.args[2] is False:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            continue
        before.add(node)
        if op._schema.is_mutable:
            packet = getattr(_ATEN, op._schema.name.removeprefix("aten::").removesuffix("_"), None)
            plain = getattr(packet, op._overloadname, None)
            x = node.args[0] if node.args else None
            if (
                plain is not None and name_of(plain) in ATEN and isinstance(x, fx.Node)
                and _is_own(x, node, before) and _gives_alike(op, plain, node)
            ):  # fmt: skip
                node.target = plain


def _is_own(x: fx.Node, reader: fx.Node, before: Collection[fx.Node]) -> bool:
    """Whether no other tensor shares memory with what a node gives: what reads it, beside the
    reader, comes before the update and gives new tensors."""
    if not all(user is reader or (user in before and _is_new(user)) for user in x.users):
        return False
    op = x.target
    if _is_new(x) or not isinstance(op, torch._ops.OpOverload):
        return _is_new(x)
    aliases = [r.alias_info is not None for r in op._schema.returns] == [True]
    read = [y for y in x.all_input_nodes if isinstance(y.meta.get("val"), torch.Tensor)]
    return aliases and len(read) == 1 and _is_own(read[0], x, before)


def _is_new(x: fx.Node) -> bool:
    """Whether what a node gives shares memory with nothing that was there before."""
    op = x.target
    if op is operator.getitem:
        whole = x.all_input_nodes[0]
        twice = sum(user.args[1:] == x.args[1:] for user in whole.users) > 1
        return not twice and _is_new(whole)
    if not isinstance(op, torch._ops.OpOverload):
        return False
    if any(r.alias_info is not None for r in op._schema.returns):
        return False
    if name_of(op) in _SHARING:
        return False
    return name_of(op) in _NEW or not op.has_kernel_for_dispatch_key(_COMPOSITE)


def _gives_alike(op: torch._ops.OpOverload, plain: torch._ops.OpOverload, node: fx.Node) -> bool:
    """Whether an operator takes the arguments of one in place and gives a tensor of its dtype and
    shape, as comparisons, sums of integers and operands of other dtypes do not."""
    if [str(a.type) for a in op._schema.arguments] != [
        str(a.type) for a in plain._schema.arguments
    ]:
        return False
    updated = node.meta["val"]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with updated.fake_mode:
        made: torch.Tensor = plain(*args, **kwargs)
    return (made.dtype, made.dim()) == (updated.dtype, updated.dim())


def _outputs(
    x: torch.Tensor, hx: torch.Tensor | Sequence[torch.Tensor], params: object, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Tensors:  # fmt: skip
    """Tensors of the shapes of what a recurrent layer gives."""
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    hidden = states[0].shape[2] * (2 if bidirectional else 1)
    return x.new_empty((*x.shape[:2], hidden)), *(torch.empty_like(s) for s in states)


def whole_numbers(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns those of a module's tensors that hold one integer, as strides and paddings."""
    return {
        name: x for name, x in tensors.items()
        if isinstance(x, torch.Tensor) and not x.dim() and x.dtype == torch.int64 and not x.is_meta
    }  # fmt: skip


@contextmanager
def extents_kept(constants: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Have `torch.export` keep extents of any number where it loses them, meanwhile. `constants`:
    tensors of one integer, which it takes for unknown, too.

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
    dispatch, faked = FakeTensorMode.dispatch, FakeTensorMode.from_tensor
    noting = _Noting(constants)
    shapes_of = fake_impls.op_implementations_dict
    views = {op: shapes_of[op] for op in (aten.view.default, aten._unsafe_view.default)}
    try:
        decomposition_table.update(layers)
        for op, shapes in layers.items():
            _replace(op, dict.fromkeys([*before[op], _COMPOSITE], shapes))
        FakeTensorMode.dispatch = noting.dispatched(dispatch)  # type: ignore[method-assign]
        FakeTensorMode.from_tensor = noting.faked(faked)  # type: ignore[method-assign]
        shapes_of.update({op: _view(whole) for op, whole in views.items()})
        yield
    finally:
        FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign]
        FakeTensorMode.from_tensor = faked  # type: ignore[method-assign]
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
    **dict.fromkeys((_ATEN.scalar_tensor.default, _ATEN._to_copy.default), lambda x: x),
    _ATEN.add.Tensor: lambda x, y, alpha=1: x + y * alpha,
    _ATEN.sub.Tensor: lambda x, y, alpha=1: x - y * alpha,
    _ATEN.rsub.Scalar: lambda x, y, alpha=1: y - x * alpha,
    _ATEN.mul.Tensor: lambda x, y: x * y,
    _ATEN.div.Tensor: lambda x, y: x / y if statically_known_true(y > 0) else None,
    _ATEN.div.Tensor_mode: _quotient,
    _ATEN.floor_divide.default: lambda x, y: _quotient(x, y, rounding_mode="floor"),
    _ATEN.ceil.default: math.ceil,
    _ATEN.minimum.default: torch.sym_min,
    _ATEN.maximum.default: torch.sym_max,
}
"""What operators on tensors without axes make of the numbers in them."""
_NUMBERS |= {
    getattr(getattr(_ATEN, name), overload): getattr(operator, name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for overload in ("Scalar", "Tensor")
}
_TRUTH = _ATEN.ne.Scalar
"""The operator by which torch asks whether a tensor is true."""
_NUMBERS[_TRUTH] = lambda x, y: x if isinstance(x, torch.SymBool) and y == 0 else x != y
_STORAGE = ("dtype", "device", "layout", "pin_memory", "non_blocking", "memory_format")
_NUMERIC = (int, torch.SymInt, torch.SymFloat)
_KINDS: Mapping[torch.dtype, tuple[type, ...]] = {
    torch.int64: (int, torch.SymInt), torch.bool: (bool, torch.SymBool),
    **dict.fromkeys((torch.float32, torch.float64), _NUMERIC),
}  # fmt: skip
"""The kinds of numbers that are noted of tensors, by their dtype. Constants of other floats are
rounded."""


class _Noting:
    """Notes the numbers that fake tensors without axes hold, as far as they are known."""

    def __init__(self, constants: Sequence[torch.Tensor]) -> None:
        self.constants = {id(x): int(x) for x in constants}
        self.numbers: Any = WeakIdKeyDictionary()
        """The number of a tensor, and the tensor's version then."""

    def faked(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """`FakeTensorMode.from_tensor`, which notes constants."""

        def from_tensor(mode: FakeTensorMode, tensor: torch.Tensor, **named: Any) -> Any:
            found = otherwise(mode, tensor, **named)
            if id(tensor) in self.constants:
                self._note(found, self.constants[id(tensor)])
            return found

        return from_tensor

    def dispatched(self, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """`FakeTensorMode.dispatch`, which notes of results without axes the number that is in
        them."""

        def dispatch(
            mode: FakeTensorMode, op: Any, types: Sequence[type], args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:  # fmt: skip
            if op is _ATEN._local_scalar_dense.default and isinstance(args[0], FakeTensor):
                self._remind(args[0])
            found = otherwise(mode, op, types, args, kwargs)
            number = _NUMBERS.get(op)
            if number is not None and isinstance(found, FakeTensor) and not found.dim():
                numbers = [self._known(x) for x in args]
                named = {k: x for k, x in (kwargs or {}).items() if k not in _STORAGE}
                if all(isinstance(x, _NUMERIC) for x in numbers) or (
                    op is _TRUTH and isinstance(numbers[0], torch.SymBool) and numbers[1] == 0
                ):
                    self._note(found, number(*numbers, **named))
            return found

        return dispatch

    def _note(self, x: FakeTensor, number: Any) -> None:
        if isinstance(number, _KINDS.get(x.dtype, ())):
            self.numbers[x] = number, _version(x)

    def _known(self, x: Any) -> Any:
        if not isinstance(x, FakeTensor):
            return x
        number, version = self.numbers.get(x, (x.item_memo, None))
        return number if version in (None, _version(x)) else None

    def _remind(self, x: FakeTensor) -> None:
        """Have torch read the number of a tensor."""
        known = self._known(x)
        if isinstance(known, torch.SymBool):
            known = decided(known)
        if isinstance(known, (int, torch.SymInt)) and not x.dtype.is_floating_point:
            x.item_memo = known


def _version(x: torch.Tensor) -> int | None:
    return None if x.is_inference() else x._version


def decided(condition: torch.SymBool) -> bool:
    """The side of a branch that a module takes on a tensor made of extents."""
    return bool(condition)
