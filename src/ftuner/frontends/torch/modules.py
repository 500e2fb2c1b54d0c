"""Modules as programs of `torch.export`: what they are traced with, in which structures."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ftuner.errors import ExportError, ShapeError
from ftuner.frontends.torch.calling import Input, flattened, named_arguments
from ftuner.frontends.torch.calling import name_of as path_name
from ftuner.frontends.torch.dims import environment_of
from ftuner.frontends.torch.exported import AUTOCAST, Program, as_written, program_of, unique
from ftuner.frontends.torch.growing import Shape, extents_of, traced

_LOG = logging.getLogger(__name__)

MOST_TOLD = 8
"""Constant extents in one message: each tensor of a cache has some."""


def module_program(module: nn.Module, example_inputs: Any, dynamic_shapes: Any = None) -> Program:
    """The module as a graph: its program by `torch.export`, in inference mode.

    Args:
        module: in evaluation mode, or it is set to that meanwhile. The program has a weak reference
            to it, to trace it again for extents that the program does not hold for.
        example_inputs: a tuple of positional arguments, a mapping of arguments by name, or one
            tensor. Tensors are inputs, whatever they are nested in; other leaves are constants.
        dynamic_shapes: as of `torch.export.export`; by default every extent is dynamic that can be.

    Raises:
        ExportError: torch makes no program of it.
        UnsupportedOperatorError: operators without an importer; the message lists all of them.
    """
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, torch.jit.ScriptModule):
        hint = "compile the module that it was made of, or write it by torch.onnx.export"
        what = "a module of TorchScript has no program of torch.export"
        raise ExportError(f"{what}; {hint} and load that")
    signature = inspect.signature(module.forward)
    args, keywords = _as_call(example_inputs)
    try:
        arguments = named_arguments(signature, args, keywords)
        told = _by_name(dynamic_shapes, signature.bind(*args, **keywords).arguments)
    except TypeError as error:
        raise ExportError(f"example inputs of {type(module).__name__}: {error}") from None
    form = _Form(signature, arguments)
    tensors = list(form.inputs.values())
    if dynamic_shapes is None:
        every = torch.export.Dim.AUTO
        shapes = [dict.fromkeys(range(x.dim()), every) for x in tensors]
    else:
        shapes = list(_shapes_in(arguments, told))
    form.inputs = {name: x.new_empty(0) for name, x in form.inputs.items()}
    exported = _exported(module, form, tensors, shapes)
    _tell_constants(exported, list(form.inputs), shapes)
    found = form.program(exported)
    return replace(found, again=_Again(module, form, tensors, shapes, found.calling.states))


class _Again:
    """Traces a module again, for inputs of other extents. It does not keep the module alive, nor
    the inputs that it was traced with first."""

    def __init__(
        self, module: nn.Module, form: _Form, tensors: Sequence[torch.Tensor],
        shapes: Sequence[Shape], states: Mapping[str, torch.Tensor],
    ) -> None:  # fmt: skip
        """`states`: what calls of the program update, which may change."""
        self._module, self._form = weakref.ref(module), form
        self._shapes, self._states = shapes, frozenset(states)
        self._first = [tuple(x.shape) for x in tensors]
        self._weights = self._weights_of(module)

    def __call__(self, extents: Mapping[str, Sequence[int]]) -> Program:
        """The program for inputs of these extents.

        Raises:
            ExportError: torch makes no program of the module, which may be gone or have changed.
            ShapeError: the caller has asked for extents that are not dynamic.
            UnsupportedOperatorError: as of `module_program`.
        """
        module = self._module()
        if module is None:
            raise ExportError("the module is gone: keep it, and it is compiled for these, too")
        if self._weights_of(module) != self._weights:
            raise ExportError("the module has changed since it was compiled: compile it again")
        tensors = []
        for (name, kind), first, shape in zip(
            self._form.inputs.items(), self._first, self._shapes, strict=True
        ):
            given = extents.get(name, first)
            if len(given) != len(first) or any(
                n != first[axis] and axis not in shape for axis, n in enumerate(given)
            ):
                raise ShapeError(f"{name} is {list(given)}, and was compiled as {list(first)}")
            tensors.append(kind.new_empty(given))
        with torch.inference_mode(False):
            exported = _exported(module, self._form, tensors, self._shapes)
        found = self._form.program(exported)
        if found.calling.states.keys() != self._states:
            raise ExportError("the module updates other buffers for such inputs")
        return found

    def _weights_of(self, module: nn.Module) -> list[object]:
        tensors = [*module.named_parameters(), *module.named_buffers()]
        return [
            (name, x.data_ptr(), None if x.is_inference() else x._version, _sum_of(x))
            for name, x in tensors
            if name not in self._states
        ]


def _sum_of(x: torch.Tensor) -> str:
    """The sum of all elements: writes through `data` leave the version as it is."""
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return repr(None if x.is_meta else x.detach().sum(dtype=dtype).item())


class _Form:
    """The structures of a module's arguments and, after tracing, of its result. In the attributes
    of a module, torch would undo what tracing changes."""

    names: list[str]
    """Names of the leaves of the result."""
    result: pytree.TreeSpec

    def __init__(self, signature: inspect.Signature, arguments: dict[str, Any]) -> None:
        self.signature = signature
        found, self.arguments = flattened(arguments)
        # Structures that were unknown to pytrees are known by now.
        self.defaults = {
            name: x for name, x in arguments.items()
            if not any(isinstance(one, (torch.Tensor, np.ndarray)) for one in pytree.tree_leaves(x))
        }  # fmt: skip
        used = Counter[str]()
        self.leaves: list[Any] = []
        self.inputs: dict[str, torch.Tensor] = {}
        """After tracing without elements: their dtypes and devices."""
        for path, leaf in found:
            if isinstance(leaf, np.ndarray):
                leaf = torch.from_numpy(leaf)
            if isinstance(leaf, torch.Tensor):
                name = unique(path_name(path, "input"), used)
                self.inputs[name] = leaf.detach()
                leaf = Input(name)
            self.leaves.append(leaf)
        self.autocast = {
            kind: torch.get_autocast_dtype(kind)
            for kind in AUTOCAST if torch.is_autocast_enabled(kind)
        }  # fmt: skip
        """The dtypes of `torch.autocast` around the call that compiles, by the kind of device."""

    def program(self, exported: ExportedProgram) -> Program:
        """The graph of what was traced last."""
        return program_of(
            exported, self.signature, self.defaults, self.arguments, list(self.inputs), self.names,
            self.result, self.leaves,
        )  # fmt: skip


class _Flat(nn.Module):
    """A module from the tensors among its arguments to the leaves of its result."""

    def __init__(self, module: nn.Module, form: _Form) -> None:
        super().__init__()
        self.module, self.form = module, form

    def forward(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, Input) else x for x in self.form.leaves]
        bound = self.form.signature.bind_partial()
        bound.arguments = pytree.tree_unflatten(leaves, self.form.arguments)
        with ExitStack() as casting:
            for kind, dtype in self.form.autocast.items():
                casting.enter_context(torch.autocast(kind, dtype))
            result = self.module(*bound.args, **bound.kwargs)
        found, self.form.result = flattened(result)
        used = Counter[str]()
        self.form.names = [unique(path_name(path, "output"), used) for path, _ in found]
        return tuple(leaf for _, leaf in found)


def _as_call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _by_name(dynamic_shapes: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the dynamic shapes of each argument, by its name."""
    if isinstance(dynamic_shapes, (tuple, list)):
        return dict(zip(arguments, dynamic_shapes, strict=False))
    return dynamic_shapes or {}


def _shapes_in(tree: Any, told: Any) -> Iterator[Shape]:
    """Yield the dynamic axes of each tensor in a structure."""
    if isinstance(tree, (torch.Tensor, np.ndarray)):
        axes = told.items() if isinstance(told, Mapping) else enumerate(told or ())
        yield {axis: dim for axis, dim in axes if dim is not None}
    elif isinstance(tree, Mapping):
        for key, inner in tree.items():
            yield from _shapes_in(inner, told.get(key) if isinstance(told, Mapping) else None)
    elif (node := pytree.SUPPORTED_NODES.get(type(tree))) is not None:
        children, _ = node.flatten_fn(tree)
        every = list(told.values() if isinstance(told, Mapping) else told or ())
        for number, inner in enumerate(children):
            yield from _shapes_in(inner, every[number] if number < len(every) else None)


@contextmanager
def _as_exported(module: nn.Module) -> Iterator[None]:
    """Have a module, and those in it, in evaluation mode meanwhile, and the experts of networks of
    `transformers` as products of batches. By default, these are grouped by their data."""
    parts: list[Any] = list(module.modules())
    training = [part for part in parts if part.training]
    if training:
        _LOG.warning("the module is in training mode; it is compiled as after module.eval()")
    choosing = [
        part for part in parts
        if hasattr(part, "set_experts_implementation") and part._can_set_experts_implementation()
    ]  # fmt: skip
    chosen = [part.config._experts_implementation for part in choosing]
    module.eval()
    for part in choosing:
        part.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        for part, experts in zip(choosing, chosen, strict=True):
            part.set_experts_implementation(experts)
        for part in training:
            part.training = True


def _exported(
    module: nn.Module, form: _Form, tensors: Sequence[torch.Tensor], shapes: Sequence[Shape]
) -> ExportedProgram:
    with _as_exported(module), as_written():
        return traced(_Flat(module, form), type(module).__name__, tensors, shapes)


def _tell_constants(
    program: ExportedProgram, names: Sequence[str], shapes: Sequence[Shape]
) -> None:
    """Log which dynamic extents are constants of the program, and where that is from."""
    environment, told = environment_of(program), []
    for (i, axis), extent in extents_of(program).items():
        if axis in shapes[i] and extent.is_number:
            where = _reason(environment, f"L['tensors'][{i}].size()[{axis}]")
            told.append(f"{names[i]} axis {axis} is {extent}{where}")
    if told:
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        _LOG.warning("torch.export has constants of: %s%s", "; ".join(told[:MOST_TOLD]), more)


def _reason(environment: Any, source: str) -> str:
    """Where torch has found that an extent is a constant, as far as it says."""
    symbol = getattr(environment, "source_to_var", {}).get(source)
    place = getattr(environment, "replacements_slocs", {}).get(symbol)
    return "" if place is None else f" {place}"
