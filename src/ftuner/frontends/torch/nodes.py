"""The nodes of FX graphs: which have importers, and the graphs that they run."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from ftuner.frontends.torch.complex_numbers import COMPLEX
from ftuner.frontends.torch.registry import ATEN, name_of

CHECKS = frozenset({
    "_assert_async.msg", "_assert_async.default", "_assert_scalar.default",
    "_assert_tensor_metadata.default", "sym_constrain_range.default",
    "sym_constrain_range_for_size.default",
})  # fmt: skip
"""Operators that compute nothing."""
NUMBERS = frozenset({"_local_scalar_dense.default", "item.default"})
"""Operators that give an element of a tensor as a number."""
INLINED = frozenset({"wrap_with_set_grad_enabled", "invoke_subgraph"})
"""Operators that run another graph, on the arguments after that."""
CHOICE = "cond"
"""The operator that runs one of two graphs."""


def unsupported(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that have no importer, also those of graphs that nodes run."""
    found = []
    for node in graph.nodes:
        inner = inner_modules(node)
        if inner:
            found += [n for m in inner for n in unsupported(m.graph)]
        elif node.op.startswith("call_") and not _has_importer(node):
            found.append(node)
    return found


def _has_importer(node: fx.Node) -> bool:
    if node.target is operator.getitem or is_number(node.meta.get("val")):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = name_of(node.target)
    return any(name in names for names in (ATEN, COMPLEX, CHECKS, NUMBERS))


def called(node: fx.Node) -> str:
    """What error messages call the operator of a node."""
    if isinstance(node.target, torch._ops.OpOverload):
        return name_of(node.target)
    return str(getattr(node.target, "__name__", node.target))


def is_symbolic(given: Any) -> bool:
    return isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool))


def is_number(given: Any) -> bool:
    return is_symbolic(given) or isinstance(given, (bool, int, float))


def is_computed_number(node: fx.Node) -> bool:
    """Whether a node gives a number that follows from extents. It is translated when it is used:
    torch has some for its assertions alone, which no input has."""
    return is_number(node.meta.get("val")) and called(node) not in NUMBERS


def inner_modules(node: fx.Node) -> list[fx.GraphModule]:
    """The modules of which a node runs one."""
    if node.op != "call_function" or called(node) not in {*INLINED, CHOICE}:
        return []
    return [m for x in node.args if (m := module_of(x)) is not None]


def module_of(given: Any) -> fx.GraphModule | None:
    if not isinstance(given, fx.Node) or given.op != "get_attr":
        return None
    found = operator.attrgetter(str(given.target))(given.graph.owning_module)
    return found if isinstance(found, fx.GraphModule) else None
