"""Chains: the executables of one graph, run one after the other, with host nodes between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, SupportsIndex

from ftuner.core.dtype import DType
from ftuner.errors import ConfigurationError
from ftuner.graph.appending import Appended
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.control import MAX_TRIPS, Host, Iterations, once
from ftuner.graph.splitting import Part, split
from ftuner.runtime.backend import Backend, Boundary, Executable
from ftuner.runtime.shapes.binding import Binding
from ftuner.runtime.shared_weights import SharedWeights
from ftuner.runtime.shown_progress import Progress

MAX_TRIPS_VARIABLE = "FTUNER_MAX_TRIPS"
"""The environment variable of the most iterations of a loop."""
Apply = Callable[[Executable, list[Any]], list[Any]]
"""Runs an executable on operands."""
Evaluate = Callable[[list[Any]], Sequence[Any]]
"""Computes the results of a host node."""


class Chain:
    """A graph in parts. Each part, and each graph within a host node, is compiled once. Safe to use
    from several threads."""

    def __init__(
        self, parts: Sequence[Part], backend: Backend, boundary: Boundary,
        threads: SupportsIndex | None, held: DType | None, progress: Progress | None,
        appended: Sequence[Appended] = (), shared: SharedWeights | None = None,
        used_up: bool = False,
    ) -> None:  # fmt: skip
        """Compile parts; `threads`, `held`, `shared` and `used_up` are those of `Backend.compile`,
        and so is `appended`, of the one part of a graph.

        Raises:
            UnsupportedOperatorError, ConfigurationError, HardwareError: as `Backend.compile`.
        """

        def chain(graph: Graph) -> Chain:
            return Chain(split(graph), backend, boundary, threads, held, progress, (), shared)

        self._inputs = parts[0].graph.inputs
        self._constants: dict[Value, Any] = {}
        self._links: list[_Link] = []
        for part in parts:
            outputs = tuple(value for _, value in part.graph.outputs)
            executable = None
            if outputs or part.node is None:
                executable = backend.compile(
                    part.graph, threads, held, progress, appended, shared, used_up
                )
            between = None
            if part.node is not None:
                between = _Between(
                    part.node.inputs, part.node.outputs, _evaluation(part.node, boundary, chain)
                )
                for value in part.node.inputs:
                    if value.constant is not None:
                        self._constants[value] = boundary.moved(value.constant, value.dtype)
            # An executable checks the extents that it is given.
            checks = Binding(part.graph) if executable is None else None
            self._links.append(_Link(part.graph.inputs, executable, checks, outputs, between))
        self.executables = [k.executable for k in self._links if k.executable is not None]
        """Those of the graph itself, in order, without those of graphs within host nodes."""

    def run(self, operands: Sequence[Any]) -> list[Any]:
        """The outputs, for an operand for each input, as `Boundary.admitted` returns them.

        Raises:
            ShapeError, AllocationError, IndexRangeError: as `Executable.run`.
            IterationLimitError: a loop does not end.
        """
        if len(self._links) == 1:
            return self.executables[0].run(operands)
        return self.through(operands, lambda executable, given: executable.run(given))

    def repeat(
        self, operands: Sequence[Any], carried: int, conditional: bool, most: int
    ) -> Iterations:
        """Iterations of a loop of which this is the graph; see `control.Repeat`.

        Raises:
            ShapeError, AllocationError, IndexRangeError, IterationLimitError: as `run`.
        """
        found = None
        if len(self._links) == 1:
            found = self.executables[0].repeat(operands, carried, conditional, most)
        return once(self.run, operands, carried, conditional, most) if found is None else found

    def through(self, operands: Sequence[Any], apply: Apply) -> list[Any]:
        """The outputs, where `apply` runs `executables`; graphs within host nodes are run as
        ever."""
        known = dict(zip(self._inputs, operands, strict=True))
        known.update(self._constants)
        results: list[Any] = []
        for link in self._links:
            given = [known[v] for v in link.inputs]
            if link.executable is not None:
                results = apply(link.executable, given)
            if link.checks is not None:
                link.checks([x.shape for x in given])
            if link.between is not None:
                known.update(zip(link.outputs, results, strict=True))
                read, made, evaluate = link.between
                known.update(zip(made, evaluate([known[v] for v in read]), strict=True))
                results = []
        return results


class _Between(NamedTuple):
    """A host node: what it reads and gives, and how."""

    read: tuple[Value, ...]
    given: tuple[Value, ...]
    evaluate: Evaluate


class _Link(NamedTuple):
    """A compiled part and the node after it. A part without outputs has no executable, and only
    checks extents."""

    inputs: tuple[Value, ...]
    executable: Executable | None
    checks: Binding | None
    outputs: tuple[Value, ...]
    between: _Between | None


def _evaluation(node: Node, boundary: Boundary, chain: Callable[[Graph], Chain]) -> Evaluate:
    """How a host node is computed: if it has graphs, on the arrays of the device."""
    graphs = {n: chain(x) for n, x in node.attributes.items() if isinstance(x, Graph)}
    if not graphs:
        return partial(boundary.evaluated, node)
    repeat = graphs["body"].repeat if "body" in graphs else None
    host = Host(boundary.joined, max_trips(), repeat)
    runs = {n: x.run for n, x in graphs.items()}
    run = partial(OPERATORS[node.op].reference, **{**node.attributes, **runs}, host=host)
    several = len(node.outputs) > 1

    def evaluate(operands: list[Any]) -> Sequence[Any]:
        results = run(*operands)
        return results if several else (results,)

    return evaluate


def max_trips() -> int:
    """The most iterations of a loop: `FTUNER_MAX_TRIPS`, or `MAX_TRIPS`.

    Raises:
        ConfigurationError: the variable is no positive number.
    """
    text = os.environ.get(MAX_TRIPS_VARIABLE, "").strip()
    if not text:
        return MAX_TRIPS
    if not text.isdecimal() or not int(text):
        raise ConfigurationError(f"{MAX_TRIPS_VARIABLE} is {text!r}; expected a positive number")
    return int(text)
