"""Finds an earlier graph of which a new one is a case: torch traces another graph where an extent
is 1, which the program for any extents computes as well.

Two traced graphs are compared node by node: the same functions of the same operands, and shapes of
all results that follow from those of the earlier graph by giving each of its symbols one value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch import fx

from ftuner.frontends.torch.dims import Symbolic, expression_of

_parts_of = attrgetter("start", "stop", "step")
_FACTS = ("dtype", "device", "layout", "requires_grad")
"""What tensors must have in common besides extents."""
_Key = tuple[object, ...]
_known: dict[_Key, weakref.WeakSet[Traced]] = {}


class Traced:
    """A graph that torch traced, compiled. It takes what the graph takes."""

    def __init__(self, module: fx.GraphModule, run: Callable[..., Any], options: object) -> None:
        self.graph, self.run = module.graph, run
        _known.setdefault(_key(self.graph, options), weakref.WeakSet()).add(self)

    def __call__(self, *given: Any) -> Any:
        return self.run(*given)


def earlier(module: fx.GraphModule, options: object) -> Callable[..., Any] | None:
    """Return a function that runs a graph by an earlier program; None if no program fits."""
    for traced in list(_known.get(_key(module.graph, options), ())):
        found = _Matching(traced.graph, module.graph).found()
        if found is not None:
            return _adapted(traced, *found)
    return None


def _adapted(
    traced: Traced, inputs: Sequence[int | None], numbers: Mapping[int, int], outputs: Sequence[int]
) -> Callable[..., Any]:  # fmt: skip
    """`inputs`: for each input of the earlier graph the one of the new graph, or None where
    `numbers` has its value. `outputs`: the earlier graph's that the new graph has."""

    def run(*given: Any) -> list[Any]:
        results = traced.run(*(numbers[i] if n is None else given[n] for i, n in enumerate(inputs)))
        return [results[i] for i in outputs]

    return run


def _key(graph: fx.Graph, options: object) -> _Key:
    """What equal graphs have in common, and all that decides how a graph is compiled."""
    state = (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
        *((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")),
    )  # fmt: skip
    return (options, state, *(str(n.target) for n in graph.nodes if not _is_number(n)))


def _value(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _is_number(node: fx.Node) -> bool:
    """Whether a node gives numbers, which are compared where tensors depend on them."""
    value = _value(node)
    if isinstance(value, (tuple, list)):
        return all(isinstance(x, (int, torch.SymInt)) for x in value)
    return isinstance(value, (int, torch.SymInt))


class _Matching:
    def __init__(self, known: fx.Graph, new: fx.Graph) -> None:
        self.known, self.new = known, new
        self.nodes: dict[fx.Node, fx.Node] = {}
        """The known node of each new one."""
        self.symbols: dict[sympy.Symbol, sympy.Expr] = {}
        """The value of each known symbol."""

    def found(self) -> tuple[list[int | None], dict[int, int], list[int]] | None:
        """The graph as `_adapted` takes it; None if the graphs differ."""
        known, new = ([n for n in g.nodes if not _is_number(n)] for g in (self.known, self.new))
        if len(known) != len(new):
            return None
        for mine, other in zip(known, new, strict=True):
            if mine.op in ("call_module", "get_attr") or not self._same_node(mine, other):
                return None
            self.nodes[other] = mine
        return self._interface()

    def _same_node(self, mine: fx.Node, other: fx.Node) -> bool:
        if mine.op == "output":
            return True
        return (
            (mine.op, mine.target) == (other.op, other.target)
            and self._same_value(_value(mine), _value(other))
            and self._same(mine.args, other.args)
            and self._same(mine.kwargs, other.kwargs)
        )

    def _same(self, mine: Any, other: Any) -> bool:
        """Whether arguments of nodes are the same."""
        if isinstance(mine, fx.Node) and not _is_number(mine):
            return isinstance(other, fx.Node) and self.nodes.get(other) is mine
        if isinstance(mine, fx.Node) or isinstance(other, fx.Node):
            mine, other = (_value(x) if isinstance(x, fx.Node) else x for x in (mine, other))
            return self._same_value(mine, other)
        if isinstance(mine, (tuple, list)):
            return (
                isinstance(other, (tuple, list))
                and len(mine) == len(other)
                and all(map(self._same, mine, other))
            )
        if isinstance(mine, dict):
            return mine.keys() == other.keys() and all(self._same(mine[k], other[k]) for k in mine)
        if isinstance(mine, slice):
            return isinstance(other, slice) and self._same(*map(_parts_of, (mine, other)))
        return type(mine) is type(other) and bool(mine == other)

    def _same_value(self, mine: Any, other: Any) -> bool:
        """Whether values, without the elements of tensors, are the same."""
        if isinstance(mine, torch.Tensor):
            return (
                type(mine) is type(other)
                and all(getattr(mine, x) == getattr(other, x) for x in _FACTS)
                and mine.dim() == other.dim()
                and all(map(self._same_extent, mine.shape, other.shape))
                and all(map(self._same_stride, mine.stride(), other.stride(), other.shape))
            )
        if isinstance(mine, (tuple, list)):
            return len(mine) == len(other) and all(map(self._same_value, mine, other))
        if isinstance(mine, torch.SymInt):
            return isinstance(other, (int, torch.SymInt)) and self._same_extent(mine, other)
        if isinstance(mine, torch.SymFloat):
            known = expression_of(mine)
            if known.is_number:
                return isinstance(other, (float, torch.SymFloat)) and bool(other == float(known))
            # To compare symbols of two traces by themselves is an error.
            return isinstance(other, torch.SymFloat) and self._same_extent(mine, other)
        return type(mine) is type(other) and bool(mine == other)

    def _same_extent(self, mine: int | Symbolic, other: int | Symbolic) -> bool:
        expected, given = expression_of(mine), expression_of(other)
        if isinstance(expected, sympy.Symbol):
            return bool(self.symbols.setdefault(expected, given) == given)
        if not expected.free_symbols <= self.symbols.keys():
            return False
        return bool(sympy.sympify(expected.xreplace(self.symbols)) == given)

    def _same_stride(self, mine: Any, other: Any, extent: int | torch.SymInt) -> bool:
        return expression_of(extent) == 1 or self._same_extent(mine, other)

    def _interface(self) -> tuple[list[int | None], dict[int, int], list[int]] | None:
        """How the known graph is called for the new one."""
        places = {n: i for i, n in enumerate(self.new.find_nodes(op="placeholder"))}
        tensors = {self.nodes[n]: i for n, i in places.items() if n in self.nodes}
        numbers = {expression_of(_value(n)): i for n, i in places.items() if n not in self.nodes}
        inputs: list[int | None] = []
        values: dict[int, int] = {}
        for i, node in enumerate(self.known.find_nodes(op="placeholder")):
            if node in tensors:
                inputs.append(tensors[node])
                continue
            value = self.symbols.get(expression_of(_value(node)))
            if value is None:
                # No tensor depends on it.
                value = sympy.Integer(0)
            if value.is_Integer:
                values[i] = int(value)
                inputs.append(None)
            elif value in numbers:
                inputs.append(numbers[value])
            else:
                return None
        mine, other = (list(g.output_node().args[0]) for g in (self.known, self.new))  # type: ignore[arg-type]
        try:
            return inputs, values, [mine.index(self.nodes[n]) for n in other]
        except (KeyError, ValueError):
            return None
