"""Programs of `torch.export` as graphs, decomposed by torch where an operator has no importer."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from ftuner.core.frozen import dataclass
from ftuner.errors import ExportError, MissingFileError, UnsupportedOperatorError
from ftuner.frontends.torch import importer  # noqa: F401  (which fills the table of importers)
from ftuner.frontends.torch.calling import Calling, Input
from ftuner.frontends.torch.complex_numbers import COMPLEX
from ftuner.frontends.torch.dims import branches_of
from ftuner.frontends.torch.importer import Imported, Output, import_fx
from ftuner.frontends.torch.nodes import called, unsupported
from ftuner.frontends.torch.registry import ATEN, name_of
from ftuner.frontends.torch.tracing import extents_kept, whole_numbers
from ftuner.graph.ir import Graph

_LOG = logging.getLogger(__name__)
AUTOCAST = ("cpu", "cuda")
"""The kinds of devices of `torch.autocast`."""


@dataclass(frozen=True)
class Program:
    """A graph, and how it is called."""

    graph: Graph
    calling: Calling
    device: str
    """Where its parameters or inputs are, as torch names it."""
    again: Callable[[Mapping[str, Sequence[int]]], Program] | None = None
    """Traces the module for other extents of inputs; None if an exported program was given."""


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
    inputs = [unique(name, used) for name in program.graph_signature.user_inputs]
    return program_of(
        program, inspect.Signature(parameters), {}, spec, inputs, _numbered(call.out_spec),
        call.out_spec,
    )  # fmt: skip


def program_of(
    program: ExportedProgram, signature: inspect.Signature, defaults: dict[str, Any],
    arguments: pytree.TreeSpec, inputs: Sequence[str], results: Sequence[str],
    result: pytree.TreeSpec, leaves: Sequence[Any] | None = None,
) -> Program:  # fmt: skip
    """`inputs`, `results`: names of the user's inputs and outputs. `leaves`: of the arguments; by
    default as the program has them."""
    branches = branches_of(program)
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
    imported = import_fx(program.graph_module, constants, names, branches)
    written, outputs = [], []
    by_target = {s.target: names.get(s.arg.name) for s in signed.input_specs if s.target}
    left = iter(results)
    used = Counter[str]()
    for spec in signed.output_specs:
        if spec.kind == OutputKind.USER_OUTPUT:
            outputs.append(unique(next(left), used))
            continue
        if spec.target not in mutated:
            raise UnsupportedOperatorError(
                f"{spec.kind.name} of {str(spec.target).removeprefix('module.')}: a module that "
                "changes its parameters, perhaps in its first call alone; call it once before"
            )
        name = by_target.get(spec.target) or names[str(spec.target)]
        written.append(name)
        outputs.append(unique(name, used))
    graph = _named(imported, outputs)
    calling = Calling(
        signature, defaults, arguments, tuple(given if leaves is None else leaves), states,
        tuple(written), imported.outputs[len(written) :], result,
        Graph(graph.inputs, (), (), graph.constraints),
    )  # fmt: skip
    tensors = [*program.state_dict.values(), *program.constants.values()]
    devices = [x.device for x in tensors if isinstance(x, torch.Tensor)]
    placed = (n.meta.get("val") for n in program.graph.find_nodes(op="placeholder"))
    devices += [x.device for x in placed if isinstance(x, torch.Tensor)]
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
        with torch.no_grad(), _without_strides(modules), warnings.catch_warnings():
            # torch copies structures in a way that it has deprecated.
            warnings.simplefilter("ignore", FutureWarning)
            return decomposed(program)
    except Exception as error:  # torch raises anything.
        what = f"{type(error).__name__}: {error}"
        raise ExportError(f"torch does not decompose the program: {what[:1000]}") from error


@contextmanager
def _without_strides(modules: Iterable[fx.GraphModule]) -> Iterator[None]:
    """Have the views of graphs be reshapes meanwhile. A kept operator may have strides of which
    torch can make no view; here none has any."""
    nodes = (n for module in modules for n in module.graph.nodes)
    views = [n for n in nodes if n.target is torch.ops.aten.view.default]
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


def unique(name: str, used: Counter[str]) -> str:
    used[name] += 1
    return name if used[name] == 1 else unique(f"{name}_{used[name]}", used)


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


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A function for each operator that has no importer and that torch decomposes. Parts of what
    draws random numbers would draw others than it does."""
    whole = {**decomposition_table, **default_decompositions()}
    known = {*ATEN, *COMPLEX}
    return {
        op: function
        for op, function in whole.items()
        if isinstance(op, torch._ops.OpOverload)
        and name_of(op) not in known
        and torch.Tag.nondeterministic_seeded not in op.tags
    }


def decomposed(exported: ExportedProgram) -> ExportedProgram:
    """A program whose operators have importers, as far as torch can decompose the others. It is
    functional: nothing is updated in place."""
    written = exported.graph_signature.buffers_to_mutate.values()
    stored = {**exported.state_dict, **exported.constants}
    numbers = whole_numbers({k: x for k, x in stored.items() if k not in written})
    with extents_kept([*numbers.values()]), as_written():
        found: ExportedProgram = exported.run_decompositions(decompositions())
    return found


@contextmanager
def as_written() -> Iterator[None]:
    """Operators are cast by a program's own nodes, and not as around this call."""
    with ExitStack() as casting:
        for kind in AUTOCAST:
            casting.enter_context(torch.autocast(kind, enabled=False))
        yield
