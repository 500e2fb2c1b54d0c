"""Splits graphs with nodes that a host computes into several graphs that run one after the other.

Extents must be known before a program is bound, and a program has no loops and no strings. At a
node whose data decides an extent of its result, that runs graphs, that a library of the host
computes, or that reads or gives strings, the program ends. The next one begins with what is known
by then.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from ftuner.core.dim import symbols_of
from ftuner.core.frozen import dataclass
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.appending import Appended, Copied, grown_outputs
from ftuner.graph.ir import Array, Graph, Node, Value, live_nodes, used_dims
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ragged import NOT_ASKED, Padding
from ftuner.graph.steps import Lowered

MAX_PARTS = 64
"""Most parts of a model. Detection models have two or three."""


class PackedWeight(NamedTuple):
    """A weight as a back end packed it."""

    of: Array
    """The array that it was made of; `hollow`, so that it is known by its identity alone."""
    form: Hashable
    """The packed weight that was made of the array."""
    packed: Array | None
    """None where it is packed again of the array."""


class Compiled(NamedTuple):
    """The steps of a part with their packed weights, for the same machine code to be loaded."""

    lowered: Lowered
    weights: tuple[PackedWeight, ...]
    workers: int
    """Workers that the widths of packed weights and the uKernels were chosen for."""
    widths: tuple[tuple[Any, ...], ...]
    """The chosen widths of packed weights, so that nothing is estimated again."""
    symbols: tuple[str, ...]
    """The kernel of each step; empty if it has none."""
    covers: tuple[tuple[Any, ...], ...]
    """Covers of rows that steps read, which take long to find."""
    plans: tuple[Any, ...]
    """The plans of products with weights that were made ahead; empty if there are none."""


@dataclass(frozen=True)
class Part:
    """A graph without host nodes, and the host node that follows it, None for the last part. The
    outputs are what that node or later parts read; there may be none, and then no nodes either.
    Those of the last part are the graph's, but for strings and maps. It has none if all of them
    have memory of their own by then."""

    graph: Graph
    node: Node | None
    compiled: Compiled | None = None
    """In a saved model, the compiled part; its graph then has no nodes."""

    @property
    def is_empty(self) -> bool:
        """Whether the part gives nothing, so that nothing is run for it."""
        return not self.graph.outputs

    @property
    def fresh(self) -> tuple[Value, ...]:
        """What has memory of its own: outputs of the graph, and results of the node if it runs no
        graphs, which may give what they are given."""
        made = tuple(value for _, value in self.graph.outputs)
        return made if self.node is None or runs_graphs(self.node) else (*made, *self.node.outputs)


@dataclass(frozen=True)
class SplitGraph(Graph):
    """A graph that was split and compiled before: its nodes are those between its parts alone."""

    parts: tuple[Part, ...] = ()
    grown: tuple[Appended | Copied, ...] = ()
    """As `appending.grown_outputs` finds them."""
    padding: Padding | str = NOT_ASKED
    """As `padding.proven_padding` finds it."""


def runs_on_host(node: Node) -> bool:
    """Whether a node is computed by its reference, between two programs."""
    values = (*node.inputs, *node.outputs)
    return OPERATORS[node.op].on_host or any(v.dtype.on_host for v in values)


def runs_graphs(node: Node) -> bool:
    """Whether graphs are attributes of a node."""
    return any(isinstance(x, Graph) for x in node.attributes.values())


def split(graph: Graph) -> tuple[Part, ...]:
    """The parts of a graph, in order. Most graphs have one.

    The inputs of each part are those of the graph, then results of earlier parts and of the nodes
    between them.

    Raises:
        UnsupportedOperatorError: there would be more than `MAX_PARTS`.
    """
    parts: list[Part] = []
    inputs = list(graph.inputs)
    left = _host_first_and_last(graph)
    while True:
        at = next((i for i, node in enumerate(left) if runs_on_host(node)), None)
        if at is None:
            outputs = tuple(entry for entry in graph.outputs if not entry[1].dtype.on_host)
            given = [value for _, value in outputs]
            fresh = {value for part in parts for value in part.fresh}
            if fresh.issuperset(given) and len({*given}) == len(given):
                outputs = ()
            nodes = live_nodes(left, [value for _, value in outputs])
            parts.append(Part(Graph(tuple(inputs), outputs, nodes, graph.constraints), None))
            return tuple(parts)
        if sum(not part.is_empty for part in parts) == MAX_PARTS - 1:
            raise UnsupportedOperatorError(
                f"more than {MAX_PARTS - 1} loops, extents that depend on data, determinants or "
                "strings, one after the other"
            )
        node, after = left[at], left[at + 1 :]
        wanted = _crossing(left[:at], left[at:], [value for _, value in graph.outputs])
        nodes = live_nodes(left[:at], wanted)
        named = tuple((value.name, value) for value in wanted)
        parts.append(Part(Graph(tuple(inputs), named, nodes, graph.constraints), node))
        inputs += [*wanted, *node.outputs]
        left = after


def divided(graph: Graph, unpads: bool = False) -> SplitGraph:
    """A graph in parts, which does not keep the nodes of the whole graph. `unpads`: whether to look
    for a proof that padding can be left out."""
    if isinstance(graph, SplitGraph):
        return graph
    padding: Padding | str = NOT_ASKED
    if unpads:
        # Imported by name: a model that was compiled before has its proof.
        padding = import_module("ftuner.graph.padding").proven_padding(graph)
    parts, grown = split(graph), grown_outputs(graph)
    return SplitGraph(graph.inputs, graph.outputs, (), graph.constraints, parts, grown, padding)


def _host_first_and_last(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph, of which host nodes that read nothing of a program come first, and
    those that no program reads anything of last."""
    if not any(map(runs_on_host, graph.nodes)):
        return graph.nodes
    known = set(graph.inputs)
    bound = {name for node in graph.nodes for name in node.binds}
    first = []
    for node in graph.nodes:
        ready = all(v in known or v.constant is not None for v in node.inputs)
        if ready and runs_on_host(node) and bound.isdisjoint(symbols_of(used_dims(node))):
            first.append(node)
            known.update(node.outputs)
            bound.difference_update(node.binds)
    taken = set(first)
    last: list[Node] = []
    read: set[Value] = set()
    dims: set[str] = set()
    for node in reversed(graph.nodes):
        apart = read.isdisjoint(node.outputs) and dims.isdisjoint(node.binds)
        if runs_on_host(node) and apart and node not in taken:
            last.insert(0, node)
        else:
            read.update(node.inputs)
            dims.update(symbols_of(used_dims(node)))
    taken.update(last)
    return (*first, *(node for node in graph.nodes if node not in taken), *last)


def _crossing(
    before: Sequence[Node], after: Sequence[Node], outputs: Sequence[Value]
) -> list[Value]:
    """Values given by nodes before the split that later nodes read or that are outputs."""
    made = {value for node in before for value in node.outputs}
    read = [value for node in after for value in node.inputs]
    return list(dict.fromkeys(v for v in (*read, *outputs) if v in made))
