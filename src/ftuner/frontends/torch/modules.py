"""Modules as programs of `torch.export`: what they are traced with, in which structures."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ftuner.errors import ExportError, FTunerError
from ftuner.frontends.torch.calling import Input, flattened, named_arguments
from ftuner.frontends.torch.calling import name_of as path_name
from ftuner.frontends.torch.dims import expression_of
from ftuner.frontends.torch.exported import Program, program_of, unique
from ftuner.frontends.torch.tracing import extents_kept

_LOG = logging.getLogger(__name__)

Shape = dict[int, Any]
"""The dynamic shape of a tensor, as `torch.export` takes it: a dim by the number of an axis."""
LEAST_DISTINCT = 3
"""Least extent in place of 0 or 1, which torch takes for constants."""
MOST_TOLD = 8
"""Constant extents in one message: each tensor of a cache has some."""
INSTEAD = (
    "it has no branches on data: torch.compile(module, backend='ftuner') leaves these to PyTorch"
)


def module_program(module: nn.Module, example_inputs: Any, dynamic_shapes: Any = None) -> Program:
    """The module as a graph: its program by `torch.export`, in inference mode.

    Args:
        module: in evaluation mode, or it is set to that meanwhile.
        example_inputs: a tuple of positional arguments, a mapping of arguments by name, or one
            tensor. Tensors are inputs, whatever they are nested in; other leaves are constants.
        dynamic_shapes: as of `torch.export.export`; by default every extent is dynamic that can be.

    Raises:
        ExportError: torch makes no program of it.
        UnsupportedOperatorError: operators without an importer; the message lists all of them.
    """
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError(
            "a module of TorchScript has no program of torch.export; compile the module that it "
            "was made of, or write it by torch.onnx.export and load that"
        )
    signature = inspect.signature(module.forward)
    args, keywords = _as_call(example_inputs)
    try:
        arguments = named_arguments(signature, args, keywords)
        told = _by_name(dynamic_shapes, signature.bind(*args, **keywords).arguments)
    except TypeError as error:
        raise ExportError(f"example inputs of {type(module).__name__}: {error}") from None
    form = _Form(signature, arguments)
    if dynamic_shapes is None:
        every = torch.export.Dim.AUTO
        shapes = [dict.fromkeys(range(x.dim()), every) for x in form.inputs.values()]
    else:
        shapes = list(_shapes_in(arguments, told))
    with _as_exported(module):
        program = _exported(_Flat(module, form), shapes)
    _tell_constants(program, list(form.inputs), shapes)
    defaults = {
        name: x for name, x in arguments.items()
        if not any(isinstance(leaf, (torch.Tensor, np.ndarray)) for leaf in pytree.tree_leaves(x))
    }  # fmt: skip
    return program_of(
        program, signature, defaults, form.arguments, list(form.inputs), form.names, form.result,
        form.leaves,
    )  # fmt: skip


class _Form:
    """The structures of a module's arguments and, after tracing, of its result. In the attributes
    of a module, torch would undo what tracing changes."""

    names: list[str]
    """Names of the leaves of the result."""
    result: pytree.TreeSpec

    def __init__(self, signature: inspect.Signature, arguments: dict[str, Any]) -> None:
        self.signature = signature
        found, self.arguments = flattened(arguments)
        used = Counter[str]()
        self.leaves: list[Any] = []
        self.inputs: dict[str, torch.Tensor] = {}
        for path, leaf in found:
            if isinstance(leaf, np.ndarray):
                leaf = torch.from_numpy(leaf)
            if isinstance(leaf, torch.Tensor):
                name = unique(path_name(path, "input"), used)
                self.inputs[name] = leaf.detach()
                leaf = Input(name)
            self.leaves.append(leaf)


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
        found, self.form.result = flattened(self.module(*bound.args, **bound.kwargs))
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


def _exported(flat: _Flat, shapes: Sequence[Shape]) -> ExportedProgram:
    """The program for example inputs whose dynamic extents of 0 or 1, which torch would take for
    constants, are larger; where the module does not run on such, for those that were given."""
    given = list(flat.form.inputs.values())
    small = dict.fromkeys(
        key for x, shape in zip(given, shapes, strict=True) for axis, dim in shape.items()
        if x.shape[axis] < 2 and (key := _key(axis, dim)) is not None
    )  # fmt: skip
    attempts: list[list[object]] = [list(small)]
    if len(small) > 1:
        attempts += [[key] for key in small]
    best: ExportedProgram | None = None
    grown: list[object] = []
    for number, keys in enumerate(attempts if small else ()):
        try:
            best = _traced(flat, _grown(given, shapes, [*grown, *keys]), shapes)
        except ExportError as error:
            _LOG.info("extents of 1 stay as they are: %s", error)
            continue
        if number == 0:
            break
        grown += keys
    return best or _traced(flat, given, shapes)


def _key(axis: int, dim: object) -> object | None:
    """What dims that grow together have in common; None for those that do not grow."""
    if isinstance(dim, torch.export.Dim):
        derived = hasattr(dim, "root")
        return None if derived or dim.max < 2 * LEAST_DISTINCT else dim.__name__
    return axis if dim in (torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC) else None


def _grown(
    tensors: Sequence[torch.Tensor], shapes: Sequence[Shape], keys: Sequence[object]
) -> list[torch.Tensor]:
    """Tensors with larger extents of 0 and 1 along certain dims, which differ from all others."""
    taken = {n for x in tensors for n in x.shape}
    odd = (n for n in count(LEAST_DISTINCT, 2) if n not in taken)
    extents = dict(zip(keys, odd, strict=False))
    found = []
    for x, shape in zip(tensors, shapes, strict=True):
        for axis, dim in shape.items():
            key = _key(axis, dim)
            if x.shape[axis] < 2 and key in extents:
                wanted = [*x.shape[:axis], extents[key], *x.shape[axis + 1 :]]
                x = x.expand(wanted).contiguous() if x.shape[axis] else x.new_zeros(wanted)
        found.append(x)
    return found


def _traced(
    flat: _Flat, tensors: Sequence[torch.Tensor], shapes: Sequence[Shape]
) -> ExportedProgram:
    """What `torch.export` makes.

    Raises:
        ExportError: it fails, or the module does.
    """
    try:
        with torch.no_grad(), extents_kept(), warnings.catch_warnings():
            # A recurrent layer has its weights in an attribute, too.
            warnings.filterwarnings("ignore", "The tensor attribute", UserWarning)
            return torch.export.export(
                flat, tuple(tensors), dynamic_shapes=(tuple(shapes),), strict=False
            )
    except FTunerError:
        raise
    except Exception as error:  # The module, and torch, raise anything.
        kind = type(flat.module).__name__
        what = f"{type(error).__name__}: {error}"
        raise ExportError(
            f"torch.export makes no program of {kind}: {what[:1000]}; {INSTEAD}"
        ) from error


def _tell_constants(
    program: ExportedProgram, names: Sequence[str], shapes: Sequence[Shape]
) -> None:
    """Log which dynamic extents are constants of the program, and where that is from."""
    told = []
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for name, user, shape in zip(names, program.graph_signature.user_inputs, shapes, strict=True):
        x = placeholders[user].meta["val"]
        for axis in shape:
            if expression_of(x.shape[axis]).is_number:
                where = _reason(x, f"L['tensors'][{names.index(name)}].size()[{axis}]")
                told.append(f"{name} axis {axis} is {x.shape[axis]}{where}")
    if told:
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        _LOG.warning("torch.export has constants of: %s%s", "; ".join(told[:MOST_TOLD]), more)


def _reason(x: Any, source: str) -> str:
    """Where torch has found that an extent is a constant, as far as it says."""
    environment = getattr(getattr(x, "fake_mode", None), "shape_env", None)
    symbol = getattr(environment, "source_to_var", {}).get(source)
    place = getattr(environment, "replacements_slocs", {}).get(symbol)
    return "" if place is None else f" {place}"
