"""Cuts an ATen graph into regions that ftuner computes and operators that PyTorch does.

Nodes have levels: an operator of PyTorch is at an even level, one of ours at an odd one, and no
node is at a lower level than what it reads. Our nodes of one level are a region, so that regions
never wait for each other in a cycle.

A view costs PyTorch nothing, and its result shares memory as the module's does. So what PyTorch
reads of a view of ours, or returns of it, is PyTorch's own view of what the region gives.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import optimization_hint
from torch.utils import _pytree as pytree

from ftuner.core.dtype import ELEMENT_DTYPES
from ftuner.core.frozen import dataclass
from ftuner.frontends.torch.creation import DRAWING
from ftuner.frontends.torch.dims import expression_of
from ftuner.frontends.torch.products import GROUPED
from ftuner.frontends.torch.registry import ATEN, name_of

FEWEST_OPERATORS = 4
"""Fewest operators, without views, of a region without products: a call of a model takes about as
long as four small operators of PyTorch."""
PRODUCTS = ("mm", "linear", "matmul", "convolution", "attention", "lstm", "gru", "rnn")
"""Parts of the names of operators of which one alone is a region."""
UNSAFE_VIEWS = frozenset({
    "unsafe_chunk.default", "unsafe_split.Tensor", "unsafe_split_with_sizes.default",
})  # fmt: skip
"""Operators whose results are views, which their schemas do not say."""
Left = dict[fx.Node, str]
"""The nodes that are left to PyTorch, and why."""


@dataclass(frozen=True)
class Region:
    """Nodes of one level."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """The tensors that it reads, in the order of the graph."""
    outputs: tuple[fx.Node, ...]
    """What others read of it."""
    symbols: tuple[sympy.Symbol, ...]
    """Those of its numbers that are no extent of an input; a run is given their values."""


def reason(node: fx.Node, device: torch.device) -> str:
    """Why an operator is left to PyTorch; empty if it may be ours."""
    assert isinstance(node.target, torch._ops.OpOverload)
    if name_of(node.target) not in ATEN:
        return "no importer"
    if name_of(node.target) in DRAWING:
        return "draws numbers of torch's generator"
    if name_of(node.target) in GROUPED and device.type != "cpu":
        return "would copy a matrix for each row"
    results, *operands = ([x.meta.get("val")] for x in (node, *node.all_input_nodes))
    for value in pytree.tree_leaves(results):
        why = _reason_of(value, device)
        if why:
            return why
    for value in pytree.tree_leaves(operands):
        # Tensors without axes may be on the CPU.
        numeric = isinstance(value, torch.Tensor) and not value.dim() and value.device.type == "cpu"
        why = _reason_of(value, value.device if numeric else device)
        if why:
            return why
    return ""


def _reason_of(given: Any, device: torch.device) -> str:
    if isinstance(given, torch.SymFloat):
        whole = all(s.is_integer for s in _symbols(given))
        return "" if whole else f"{given}, which is not computed from integers"
    if isinstance(given, torch.SymBool):
        return "a SymBool as operand"
    if not isinstance(given, torch.Tensor):
        return ""
    if str(given.dtype).removeprefix("torch.") not in ELEMENT_DTYPES:
        return str(given.dtype)
    if given.device != device:
        return f"on {given.device}"
    return "" if given.layout == torch.strided else str(given.layout)


def _symbols(given: Any) -> set[sympy.Symbol]:
    """The symbols of a number or of a tensor's extents."""
    if isinstance(given, (torch.SymInt, torch.SymFloat)):
        return set(expression_of(given).free_symbols)
    if isinstance(given, torch.Tensor):
        return set().union(*(expression_of(n).free_symbols for n in given.shape))
    return set()


def is_number(node: fx.Node) -> bool:
    """Whether a node gives a number that is known without reading a tensor."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int))


def gives_no_tensor(node: fx.Node) -> bool:
    """Whether a node gives a number, or is an assertion: PyTorch has them."""
    return is_number(node) or node.meta.get("val") is None


def is_view(node: fx.Node) -> bool:
    """Whether a node gives a view of its first operand."""
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0])
    return isinstance(node.target, torch._ops.OpOverload) and (
        node.target.is_view or name_of(node.target) in UNSAFE_VIEWS
    )


@dataclass(frozen=True)
class Ours:
    """The nodes that ftuner may compute."""

    operators: set[fx.Node]
    views: set[fx.Node]

    def __contains__(self, node: fx.Node) -> bool:
        return node in self.operators or node in self.views

    def origins(self, node: fx.Node) -> list[fx.Node]:
        """What a node reads, not counting views."""
        found: list[fx.Node] = []
        for x in node.all_input_nodes:
            found += self.origins(x) if x in self.views else [x]
        return found


def kept(graph: fx.Graph, device: torch.device, left: Left) -> Ours:
    """The nodes that are ours. `left` has those that failed, and gets the others."""
    ours = Ours(set(), set())
    for node in graph.nodes:
        if node.op != "call_function" or node in left or gives_no_tensor(node):
            continue
        if node.target is operator.getitem:
            why = "" if node.args[0] in ours else "of an operator of PyTorch"
        elif isinstance(node.target, torch._ops.OpOverload):
            why = reason(node, device)
        else:
            why = "not an ATen operator"
        if not why:
            (ours.views if is_view(node) else ours.operators).add(node)
        elif node.target is not operator.getitem:
            left[node] = why
    return ours


def regions(graph: fx.Graph, ours: Ours, left: Left) -> list[Region]:
    """The regions of our nodes. Those that are too small to pay become PyTorch's: they are taken
    out of `ours`."""
    while True:
        found: dict[int, list[fx.Node]] = {}
        for node, level in levels(graph, ours).items():
            if node in ours.operators:
                found.setdefault(level, []).append(node)
        small = [nodes for nodes in found.values() if not _pays(nodes)]
        if not small:
            return [_region(graph, nodes, ours) for nodes in found.values()]
        for nodes in small:
            ours.operators.difference_update(nodes)
            left |= dict.fromkeys(nodes, "too few operators")


def levels(graph: fx.Graph, ours: Ours) -> dict[fx.Node, int]:
    """The level of each node but views of ours."""
    found: dict[fx.Node, int] = {}
    last_effect = 0
    for node in graph.nodes:
        if node in ours.views:
            continue
        own = node in ours.operators
        level = int(own)
        for x in ours.origins(node):
            if x.op == "placeholder" or (own and is_number(x) and not _depends_on_data(x)):
                continue
            level = max(level, found[x] + ((x in ours.operators) != own))
        if _has_effect(node):
            level = last_effect = max(level, last_effect)
        found[node] = level
    return found


def _depends_on_data(node: fx.Node) -> bool:
    given = node.meta["val"]
    if isinstance(given, torch.SymInt):
        return any(given.node.shape_env.is_unbacked_symint(s) for s in _symbols(given))
    return not isinstance(given, int)


def _has_effect(node: fx.Node) -> bool:
    """Whether the order of such nodes among themselves matters."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    random = torch.Tag.nondeterministic_seeded in node.target.tags
    return random or node.target._schema.is_mutable or node.is_impure()


def _pays(nodes: Sequence[fx.Node]) -> bool:
    names = [name_of(n.target) for n in nodes if n.target is not operator.getitem]
    return len(names) >= FEWEST_OPERATORS or any(p in name for name in names for p in PRODUCTS)


def _region(graph: fx.Graph, operators: Sequence[fx.Node], ours: Ours) -> Region:
    """The region of operators, with the views that they read."""
    inside = set(operators)
    outputs = []
    for node in operators:
        if any(n not in inside for n in _readers(node, ours)):
            outputs.append(node)
        inside.update(_views_before(node, ours))
    nodes = [n for n in graph.nodes if n in inside]
    inputs = dict.fromkeys(x for n in nodes for x in n.all_input_nodes if x not in inside)
    tensors = tuple(x for x in inputs if not is_number(x) and x.op != "get_attr")
    needed = set().union(*(_symbols(x.meta.get("val")) for x in inputs))
    bound = {expression_of(n) for x in tensors for n in x.meta["val"].shape}
    made = set().union(*(_symbols(n.meta["val"]) for n in nodes)) - needed
    symbols = sorted(needed - bound - made, key=str)
    return Region(tuple(nodes), tensors, tuple(outputs), tuple(symbols))


def _readers(node: fx.Node, ours: Ours) -> Iterator[fx.Node]:
    """The nodes that read a node, or a view of it, other than views."""
    for user in node.users:
        if user in ours.views:
            yield from _readers(user, ours)
        else:
            yield user


def _views_before(node: fx.Node, ours: Ours) -> Iterator[fx.Node]:
    """The views that a node reads."""
    for x in node.all_input_nodes:
        if x in ours.views:
            yield x
            yield from _views_before(x, ours)


def module_of(region: Region, root: fx.GraphModule) -> fx.GraphModule:
    """The region alone: placeholders for its inputs, one of shape (n, 0) for each of its symbols,
    or (0, -n) where n is negative, and one for each number."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}

    def placeholder(name: str, value: Any) -> fx.Node:
        made = graph.placeholder(name)
        made.meta["val"] = value
        return made

    for node in region.inputs:
        known[node] = placeholder(node.name, node.meta["val"])
    numbers = dict.fromkeys(x for n in region.nodes for x in n.all_input_nodes if is_number(x))
    sources = numbers_of(root.graph)
    for symbol in region.symbols:
        node, axis = sources[symbol]
        extent = node.meta["val"] if axis is None else node.meta["val"].shape[axis]
        # What torch asks of the shape is nothing to guard: it would make a constant of 0.
        with extent.node.shape_env.suppress_guards():
            shape = [torch.sym_max(n, 0) for n in (extent, -extent)]  # type: ignore[no-untyped-call]
            placeholder(f"extent_{symbol}", torch.empty(shape, dtype=torch.bool, device="meta"))
    for node in numbers:
        known[node] = placeholder(node.name, node.meta["val"])
    for node in region.nodes:
        for x in node.all_input_nodes:
            if x.op == "get_attr" and x not in known:
                known[x] = graph.node_copy(x)
        known[node] = graph.node_copy(node, known.__getitem__)
    permute = torch.ops.aten.permute.default
    results = []
    for node in region.outputs:
        order = memory_order(node.meta["val"])
        results.append(graph.call_function(permute, (known[node], order)) if order else known[node])
    graph.output(tuple(results))
    return fx.GraphModule(root, graph)


def memory_order(x: torch.Tensor) -> list[int]:
    """The axes as they are in memory, the outermost first; empty where that is their own order, or
    where there are gaps. A region gives its results so: what reads them may depend on it."""
    shape, strides = (
        [optimization_hint(n, fallback=2) for n in of] for of in (x.shape, x.stride())
    )
    order = sorted(range(x.dim()), key=lambda axis: -strides[axis])
    size = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != size:
            return []
        size *= shape[axis]
    return order if order != sorted(order) else []


def assembled(
    module: fx.GraphModule, found: Sequence[tuple[Region, Callable[..., Any]]],
    ours: Ours, constants: Collection[fx.Node],
) -> fx.GraphModule:  # fmt: skip
    """The graph with a call in place of each region: of its inputs but `constants`, and of the
    values of its symbols."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    by_level = levels(module.graph, ours)
    calls = {by_level[r.nodes[-1]]: (r, call) for r, call in found}

    def value(node: fx.Node) -> fx.Node:
        if node not in known:
            assert node in ours.views, node
            known[node] = _copied(graph, node, value)
        return known[node]

    numbers = numbers_of(module.graph)
    for node in module.graph.find_nodes(op="placeholder"):
        known[node] = graph.node_copy(node)
    for level in range(max(by_level.values(), default=0) + 1):
        if level in calls:
            region, call = calls[level]
            given = [value(x) for x in region.inputs if x not in constants]
            given += [_extent(graph, numbers[s], value) for s in region.symbols]
            results = graph.call_function(call, tuple(given))
            for i, node in enumerate(region.outputs):
                made = graph.call_function(operator.getitem, (results, i))
                order = memory_order(node.meta["val"])
                if order:
                    inverse = sorted(range(len(order)), key=order.__getitem__)
                    made = graph.call_function(torch.ops.aten.permute.default, (made, inverse))
                known[node] = made
            continue
        for node in module.graph.nodes:
            if by_level.get(node) == level and node not in known:
                if node.op == "output":
                    last = node
                else:
                    known[node] = _copied(graph, node, value)
    graph.output(fx.map_arg(last.args[0], value))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)


def _copied(graph: fx.Graph, node: fx.Node, value: Callable[[fx.Node], fx.Node]) -> fx.Node:
    made = graph.node_copy(node, value)
    if node.target is torch.ops.aten.view.default:
        # What a region gives has no gaps, and may have other strides than torch traced.
        made.target = torch.ops.aten.reshape.default
    return made


def numbers_of(graph: fx.Graph) -> dict[sympy.Symbol, tuple[fx.Node, int | None]]:
    """What gives each symbol: a node, or a tensor and its axis of this extent."""
    found: dict[sympy.Symbol, tuple[fx.Node, int | None]] = {}
    for node in graph.nodes:
        given = node.meta.get("val")
        if isinstance(given, torch.SymInt):
            found.setdefault(expression_of(given), (node, None))
        elif isinstance(given, torch.Tensor) and node.op == "placeholder":
            for axis, extent in enumerate(given.shape):
                found.setdefault(expression_of(extent), (node, axis))
    return found


def _extent(
    graph: fx.Graph, source: tuple[fx.Node, int | None], value: Callable[[fx.Node], fx.Node]
) -> fx.Node:
    node, axis = source
    if axis is None:
        return value(node)
    return graph.call_function(torch.ops.aten.sym_size.int, (value(node), axis))
