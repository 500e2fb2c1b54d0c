"""The back end of `torch.compile`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._decomp import decomposition_table
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from ftuner.errors import ConfigurationError
from ftuner.frontends.torch.exported import decompositions
from ftuner.torch.fast_paths import FAST_PATHS
from ftuner.torch.graphs import CompiledGraph, tell_padding
from ftuner.torch.regions import options_of
from ftuner.torch.reuse import Traced, earlier

_LOG = logging.getLogger(__name__)
_TRAINING = (
    "a graph computes gradients, and is left to PyTorch as a whole; call the module within "
    "torch.no_grad() or torch.inference_mode() to run it by ftuner"
)
_ARITHMETIC = ["add", "sub", "mul", "div", "truediv", "gt", "lt", "ge", "le", "eq", "ne"]
"""Names of functions and methods; with an i before them they work in place."""
_SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool
_told: set[str] = set()


def backend(
    module: fx.GraphModule, example_inputs: Sequence[Any], *,
    options: Mapping[str, object] | None = None, mode: str | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Compile a graph that torch traced: `torch.compile(model, backend="ftuner")`.

    Args:
        module: the graph.
        example_inputs: what it is first called with, as fake tensors.
        options: `threads`: of a run. `fullgraph_or_error`: raise UnsupportedOperatorError rather
            than leave an operator to PyTorch. `check`: compare the first runs with PyTorch, and
            raise MismatchError, which names the operator, where they differ. `precision`: on a GPU,
            `bfloat16` or `float16`, in which float32 is held. `unpad`: as of `ftuner.load`, for
            graphs that ftuner computes as a whole; a warning says once why padding is computed.
        mode: not supported.

    Raises:
        ConfigurationError: an unknown option, a value of another type, `check` with `unpad`, or a
            mode.
    """
    if mode is not None:
        raise ConfigurationError(f"mode is {mode!r}; ftuner has options alone, and no modes")
    checked = options_of(options)
    constant = _floats_as_constants(module.graph)
    if checked.unpad and _ends_early(module):
        checked = replace(checked, unpad=None)
        tell_padding("the graph is a part of a module, and PyTorch goes on")
    known = earlier(module, checked)
    if known is not None:
        return known
    pure = []

    def inference(graph: fx.GraphModule, _: Sequence[Any]) -> CompiledGraph:
        constants, changed = _constants(graph)
        pure.append(not changed)
        return CompiledGraph(graph, constants, checked)

    compile_graph = aot_autograd(
        fw_compiler=_training, bw_compiler=_left, inference_compiler=inference,
        decompositions=_decompositions(len(decomposition_table)),
    )  # fmt: skip
    added = constant - TensorifyState.force_specializations
    TensorifyState.force_specializations |= added
    try:
        compiled: Callable[..., Any] = compile_graph(module, example_inputs)
    finally:
        TensorifyState.force_specializations -= added
    # torch keeps itself from tracing what a back end returns; once is enough, and takes 5 us.
    compiled = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    # Whether inputs that a graph changes share memory is decided when it is compiled.
    return Traced(module, compiled, checked) if pure == [True] else compiled


@cache
def _decompositions(known: int) -> dict[Any, Callable[..., Any]]:
    """Made once for a number of known ones, as they may be registered at any time: this takes a
    tenth of a second, and a module may have tens of graphs."""
    return FAST_PATHS | decompositions()


def _ends_early(module: fx.GraphModule) -> bool:
    """Whether the code goes on after a graph, and may make anything of what it returns."""
    reason = getattr(module, "compile_subgraph_reason", None)
    return reason is not None and reason.graph_break


def _floats_as_constants(graph: fx.Graph) -> set[str]:
    """Replace the floats by their values that torch has guarded, or that are arguments of
    functions, and return the names of the symbols of floats that the graph does not read.
    AOTAutograd would have the graph traced again without these as inputs, which takes as long as
    the first time."""
    for node in [n for n in graph.nodes if n.target == "item"]:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymFloat) and (
            value.node.expr.is_number or not all(map(_is_arithmetic, node.users))
        ):
            # Guards it, if it is not yet.
            node.replace_all_uses_with(float(value))
            graph.erase_node(node)
    context = TracingContext.try_get()
    env = context.fake_mode.shape_env if context is not None and context.fake_mode else None
    # Older versions of torch have it under another name: there the graph is traced twice.
    known = getattr(env, "backed_var_to_val", {})
    leaves = pytree.tree_leaves([n.meta.get("example_value") for n in graph.nodes])
    read = free_symbols([x for x in leaves if isinstance(x, (torch.Tensor, *_SYMBOLIC))])
    return {str(s) for s in known if symbol_is_type(s, SymT.FLOAT) and s not in read}


def _is_arithmetic(node: fx.Node) -> bool:
    """Whether AOTAutograd can pass a float operand of a node as a tensor."""
    name = str(getattr(node.target, "__name__", node.target)).strip("_")
    return name in _ARITHMETIC or name.removeprefix("i") in _ARITHMETIC


def _constants(graph: fx.GraphModule) -> tuple[set[int], set[int]]:
    """The numbers of the inputs that are parameters and buffers, and of those that the graph
    changes, which are not among the first."""
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    if facts is None:
        return set(), set()
    changed = {i for i, x in enumerate(facts.input_info) if x.mutates_data or x.mutates_metadata}
    inputs = graph.graph.find_nodes(op="placeholder")
    stored = {
        i for i in facts.static_input_indices
        if i not in changed and isinstance(inputs[i].meta["val"], torch.Tensor)
    }  # fmt: skip
    return stored, changed


def _training(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    if _TRAINING not in _told:
        _told.add(_TRAINING)
        _LOG.warning("%s", _TRAINING)
    return _left(graph, _)


def _left(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """The graph as PyTorch runs it."""
    run: Callable[..., Any] = make_boxed_func(graph.forward)
    return run
