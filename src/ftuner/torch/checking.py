"""Compares the first runs of a region with PyTorch, operator by operator where they differ."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ftuner.errors import MismatchError
from ftuner.frontends.torch.dims import expression_of
from ftuner.torch.regions import Run, runner

CHECKED_RUNS = 3
RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""The most that an element may differ: the same sums in another order."""


def checked(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], run: Run,
    model_of: Callable[[fx.GraphModule], Any], device: torch.device,
) -> Run:  # fmt: skip
    """`run` of a region's module, which raises MismatchError where one of its first results differs
    from PyTorch's. `model_of` compiles a module of the same inputs."""
    left = [CHECKED_RUNS]
    lock = threading.Lock()

    def ftuner_region(*given: Any) -> list[torch.Tensor]:
        found = run(*given)
        with lock:
            left[0] -= 1
            due = left[0] >= 0
        if due:
            wanted = _evaluated(module, constants, given)
            outputs: Any = module.graph.output_node().args[0]
            if _differing(outputs, found, wanted) is not None:
                nodes = [n for n in wanted if n.op == "call_function"]
                results = runner(model_of(_with_results(module, nodes)), device)(*given)
                raise MismatchError(_message(module, _differing(nodes, results, wanted)))
        return found

    return ftuner_region


def _message(module: fx.GraphModule, first: tuple[fx.Node, float] | None) -> str:
    if first is None:
        what = "results differ from PyTorch's, though those of each operator do not where all are"
        operators = {str(n.target) for n in module.graph.nodes if n.op == "call_function"}
        return f"{what} outputs: a rewriting of {', '.join(sorted(operators))}"
    node, most = first
    what = f"{node.name} ({node.target}) is the first operator whose result differs from PyTorch's"
    return f"{what}, by {most:.3g}; run without ftuner, and please report it"


def _evaluated(
    module: fx.GraphModule, constants: Mapping[str, torch.Tensor], given: Sequence[Any]
) -> dict[fx.Node, Any]:
    """What PyTorch computes for each node that gives a tensor."""
    runs = iter(given)
    values: dict[Any, int] = {}
    numbers = []
    found: dict[str, Any] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        meta = node.meta["val"]
        if not isinstance(meta, torch.Tensor):
            numbers.append(node)
            continue
        x = constants[node.name] if node.name in constants else next(runs)
        if isinstance(x, int):
            x = torch.empty((x, 0))
        found[node.name] = x
        values |= dict(zip(map(expression_of, meta.shape), x.shape, strict=True))
    for node in numbers:
        meta = node.meta["val"]
        known = isinstance(meta, torch.SymInt)
        found[node.name] = int(expression_of(meta).xreplace(values)) if known else meta
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    with torch.no_grad():
        interpreter.run(*(found[n.name] for n in module.graph.find_nodes(op="placeholder")))
    return {n: x for n, x in interpreter.env.items() if isinstance(x, torch.Tensor)}


def _with_results(module: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """The module, which gives the results of some nodes."""
    graph, known = fx.Graph(), dict[fx.Node, Any]()
    graph.graph_copy(module.graph, known)
    graph.output(tuple(known[n] for n in nodes))
    return fx.GraphModule(module, graph)


def _differing(
    nodes: Sequence[fx.Node], found: Sequence[torch.Tensor], wanted: Mapping[fx.Node, torch.Tensor]
) -> tuple[fx.Node, float] | None:
    """The first node whose result is another, and by how much."""
    for node, x in zip(nodes, found, strict=True):
        y = wanted[node]
        if x.shape != y.shape or x.dtype != y.dtype:
            return node, float("inf")
        if not torch.allclose(x.double(), y.double(), RELATIVE, ABSOLUTE, equal_nan=True):
            return node, float((x.double() - y.double()).abs().max())
    return None
