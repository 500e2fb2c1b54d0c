"""Modules and programs of `torch.export` as graphs."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ftuner.errors import ExportError, FTunerError, MissingFileError, UnsupportedOperatorError
from ftuner.frontends.torch.calling import Calling, Input, named_arguments
from ftuner.frontends.torch.containers import flattened
from ftuner.frontends.torch.containers import name_of as path_name
from ftuner.frontends.torch.decompositions import decomposed
from ftuner.frontends.torch.dims import expression_of
from ftuner.frontends.torch.importer import Imported, Output, called, import_fx, unsupported
from ftuner.frontends.torch.registry import ATEN, name_of
from ftuner.frontends.torch.tracing import lengths_kept
from ftuner.graph.ir import Graph

_LOG = logging.getLogger(__name__)

Shape = dict[int, Any]
"""Of a tensor, what `torch.export` is told about its axes."""
LEAST_DISTINCT = 3
"""Extents below are traced in another way than larger ones: 0 and 1 are constants to torch."""
MOST_TOLD = 8
"""Constant extents in one message: each tensor of a cache has some."""
INSTEAD = (
    "what depends on the data is no part of such a program: torch.compile(module, "
    "backend='ftuner') leaves that part to PyTorch"
)


@dataclass(frozen=True)
class Program:
    """A graph, and how it is called."""

    graph: Graph
    calling: Calling
    device: str
    """Where its parameters or inputs are, as torch names it."""


def exported_program(program: ExportedProgram) -> Program:
    """The program as a graph.

    Raises:
        UnsupportedOperatorError: operators without an importer; the message lists all of them.
        ExportError: tensors that ftuner cannot hold.
    """
    call = program.call_spec
    positional, keywords = (part.children() for part in call.in_spec.children())
    names = program.module_call_graph[0].signature.forward_arg_names or []
    names = [*names[: len(positional)], *(f"arg_{i}" for i in range(len(names), len(positional)))]
    names += call.in_spec.child(1).context
    spec = pytree.TreeSpec(dict, names, [*positional, *keywords])
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=...)
        for name in names
    ]
    used = Counter[str]()
    inputs = [_unique(name, used) for name in program.graph_signature.user_inputs]
    return _program(
        program, inspect.Signature(parameters), {}, spec, inputs, _numbered(call.out_spec),
        call.out_spec,
    )  # fmt: skip


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
    return _program(
        program, signature, defaults, form.arguments, list(form.inputs), form.names, form.result,
        form.leaves,
    )  # fmt: skip


class _Form:
    """The structures of a module's arguments and, after tracing, of its result. In the attributes
    of a module, torch would undo what tracing changes."""

    names: list[str]
    """Of the leaves of the result."""
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
                name = _unique(path_name(path, "input"), used)
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
        self.form.names = [_unique(path_name(path, "output"), used) for path, _ in found]
        return tuple(leaf for _, leaf in found)


def _as_call(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _by_name(dynamic_shapes: Any, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is told of each argument."""
    if isinstance(dynamic_shapes, (tuple, list)):
        return dict(zip(arguments, dynamic_shapes, strict=False))
    return dynamic_shapes or {}


def _shapes_in(tree: Any, told: Any) -> Iterator[Shape]:
    """What is told of each tensor in a structure."""
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
        with torch.no_grad(), lengths_kept(), warnings.catch_warnings():
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


def _program(
    program: ExportedProgram, signature: inspect.Signature, defaults: dict[str, Any],
    arguments: pytree.TreeSpec, inputs: Sequence[str], results: Sequence[str],
    result: pytree.TreeSpec, leaves: Sequence[Any] | None = None,
) -> Program:  # fmt: skip
    """`inputs`, `results`: names of the user's inputs and outputs. `leaves`: of the arguments; by
    default as the program has them."""
    program = _functional(program)
    signed = program.graph_signature
    names = dict(zip(signed.user_inputs, inputs, strict=True))
    constants: dict[str, torch.Tensor] = {}
    states: dict[str, torch.Tensor] = {}
    given: list[Any] = []
    mutated = {
        s.target for s in signed.output_specs
        if s.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    }  # fmt: skip
    for spec in signed.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            constant = isinstance(spec.arg, ConstantArgument)
            given.append(spec.arg.value if constant else Input(names[spec.arg.name]))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            tensor = program.state_dict.get(target, program.constants.get(target))
            if target in mutated:
                names[spec.arg.name] = target.removeprefix("module.")
                states[names[spec.arg.name]] = tensor
            else:
                constants[spec.arg.name] = tensor.detach().cpu()
        else:
            raise UnsupportedOperatorError(f"input {spec.arg.name} is a {spec.kind.name}")
    imported = import_fx(program.graph_module, constants, names)
    written, outputs = [], []
    by_target = {s.target: names.get(s.arg.name) for s in signed.input_specs if s.target}
    left = iter(results)
    used = Counter[str]()
    for spec in signed.output_specs:
        if spec.kind == OutputKind.USER_OUTPUT:
            outputs.append(_unique(next(left), used))
            continue
        if spec.target not in mutated:
            raise UnsupportedOperatorError(
                f"{spec.kind.name} of {str(spec.target).removeprefix('module.')}: a module that "
                "changes its parameters, perhaps in its first call alone; call it once before"
            )
        name = by_target.get(spec.target) or names[str(spec.target)]
        written.append(name)
        outputs.append(_unique(name, used))
    graph = _named(imported, outputs)
    calling = Calling(
        signature, defaults, arguments, tuple(given if leaves is None else leaves), states,
        tuple(written), imported.outputs[len(written) :], result,
        Graph(graph.inputs, (), (), graph.constraints),
    )  # fmt: skip
    tensors = [*program.state_dict.values(), *program.constants.values()]
    devices = [x.device for x in tensors if isinstance(x, torch.Tensor)]
    devices += [
        n.meta["val"].device for n in program.graph.nodes
        if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.Tensor)
    ]  # fmt: skip
    return Program(graph, calling, next((str(d) for d in devices if d.type != "cpu"), "cpu"))


def _functional(program: ExportedProgram) -> ExportedProgram:
    """The program without updates in place and without graphs within it, in operators that have a
    row, as far as torch's own decompositions lead to these.

    Raises:
        ExportError: torch cannot decompose it.
    """
    modules = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    targets = {n.target for m in modules for n in m.graph.nodes}
    mutable = {
        name_of(op) for op in targets
        if isinstance(op, torch._ops.OpOverload) and op._schema.is_mutable
    }  # fmt: skip
    why = {name for name in mutable if name not in ATEN}
    why |= {called(n) for n in unsupported(program.graph)}
    if not why:
        return program
    _LOG.info("decomposed by torch: %s", ", ".join(sorted(why)))
    try:
        with torch.no_grad(), _without_strides(program.graph), warnings.catch_warnings():
            # torch copies structures in a way that it has deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            return decomposed(program)
    except Exception as error:  # torch raises anything.
        what = f"{type(error).__name__}: {error}"
        raise ExportError(f"torch does not decompose the program: {what[:1000]}") from error


@contextmanager
def _without_strides(graph: fx.Graph) -> Iterator[None]:
    """Have the views of a graph be reshapes meanwhile. A kept operator may have strides of which
    torch can make no view; here none has any."""
    views = [n for n in graph.nodes if n.target is torch.ops.aten.view.default]
    for node in views:
        node.target = torch.ops.aten.reshape.default
    try:
        yield
    finally:
        for node in views:
            node.target = torch.ops.aten.view.default


def _named(imported: Imported, names: Sequence[str]) -> Graph:
    """The graph with outputs of these names."""
    kept = [
        name for name, leaf in zip(names, imported.outputs, strict=True) if isinstance(leaf, Output)
    ]
    values = [value for _, value in imported.graph.outputs]
    return replace(imported.graph, outputs=tuple(zip(kept, values, strict=True)))


def _numbered(spec: pytree.TreeSpec) -> list[str]:
    """Names for the results of a structure."""
    if spec.is_leaf():
        return ["output"]
    if spec.type is dict and all(child.is_leaf() for child in spec.children()):
        return [str(key) for key in spec.context]
    return [f"output_{i}" for i in range(spec.num_leaves)]


def _unique(name: str, used: Counter[str]) -> str:
    used[name] += 1
    return name if used[name] == 1 else _unique(f"{name}_{used[name]}", used)


def read_program(path: str) -> Program:
    """The program in a file of `torch.export.save`.

    Raises:
        MissingFileError: there is no such file.
        ExportError: torch cannot read it.
        UnsupportedOperatorError: as of `exported_program`.
    """
    if not os.path.exists(path):
        raise MissingFileError(f"no file {path}")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise ExportError(f"torch.export.load({path!r}): {error}") from error
    return exported_program(program)
