"""Models: what is loaded from a file, compiled for this machine, run at any extents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ftuner.errors import InputError, OperandError
from ftuner.graph.ir import Graph, Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.splitting import Part, split
from ftuner.graph.steps import Step
from ftuner.runtime.backend import Progress
from ftuner.runtime.cpu.arrays import Array, as_array
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.memory import NO_MEMORY, not_allocated
from ftuner.runtime.memory_use import Memory, together
from ftuner.runtime.session import Session


@dataclass(frozen=True)
class TensorSpec:
    """A name, element type and shape of a model's input or output; extents are numbers, or the
    names of symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Loaded(ABC):
    """What models have in common, wherever they run."""

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self._graph = replace(graph, nodes=())
        self._nodes = [part.node for part in parts]

    @abstractmethod
    def run(self, feeds: Mapping[str, object]) -> list[Any]:
        """The outputs in order, for an array for each input by name."""

    @property
    def inputs(self) -> list[TensorSpec]:
        return [_spec(v.name, v.dtype.name, v.shape) for v in self._graph.inputs]

    @property
    def outputs(self) -> list[TensorSpec]:
        return [_spec(name, v.dtype.name, v.shape) for name, v in self._graph.outputs]

    def __call__(self, **inputs: object) -> dict[str, Any]:
        """Run the model on arrays given by name; returns the outputs by name."""
        results = self.run(inputs)
        return {name: x for (name, _), x in zip(self._graph.outputs, results, strict=True)}


class Model(Loaded):
    """A graph compiled for this machine. Safe to use from several threads."""

    def __init__(
        self,
        graph: Graph,
        session: Session,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Compile a graph. `threads`: of a run; by default the session's.

        Raises:
            UnsupportedOperatorError: an operator without a schedule.
        """
        parts = split(graph)
        super().__init__(graph, parts)
        self.parts = [CompiledGraph(part.graph, session, threads, progress) for part in parts]
        """Compiled graphs that run one after the other: several where an extent depends on data."""
        self._names = [v.name for v in graph.inputs]
        self._dtypes = [np.dtype(v.dtype.name) for v in graph.inputs]

    @property
    def threads(self) -> int:
        """Threads that a run uses, the caller's own included."""
        return self.parts[0].threads

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of a run, in order."""
        return tuple(step for part in self.parts for step in part.lowered.steps)

    def run(self, feeds: Mapping[str, object]) -> list[Array]:
        """Run the model; returns the outputs in order.

        Args:
            feeds: an array for each input, by name.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes.
            ShapeError: extents that contradict the model.
            AllocationError: the system has not the memory for them.
            IndexRangeError: an index in the data that is out of range.
        """
        return self._through(feeds, CompiledGraph.run)[-1]

    def step_seconds(self, feeds: Mapping[str, object]) -> list[float]:
        """The time of each of `steps`, measured; see `CompiledGraph.step_seconds`."""
        times: list[float] = []

        def run(part: CompiledGraph, arrays: list[Array]) -> list[Array]:
            times.extend(part.step_seconds(arrays))
            return part.run(arrays)

        self._through(feeds, run)
        return times

    def memory(self, feeds: Mapping[str, object]) -> Memory:
        """The bytes that a run on such arrays takes; see `run`. Where an extent depends on data,
        all parts of the model but the last are run to know it.

        Raises:
            InputError: missing or unknown names, or another dtype or number of axes.
            ShapeError: extents that contradict the model.
            IndexRangeError: an index in the data that is out of range.
        """
        found: list[Memory] = []

        def run(part: CompiledGraph, arrays: list[Array]) -> list[Array]:
            found.append(part.memory(arrays))
            return part.run(arrays) if part is not self.parts[-1] else []

        self._through(feeds, run)
        return together(found)

    def _through(
        self,
        feeds: Mapping[str, object],
        run: Callable[[CompiledGraph, list[Array]], list[Array]],
    ) -> list[list[Array]]:
        """The outputs of each part."""
        arrays = self._arrays(feeds)
        if len(self.parts) == 1:
            return [run(self.parts[0], arrays)]
        known: dict[Value, Array] = dict(zip(self._graph.inputs, arrays, strict=True))
        outputs: list[list[Array]] = []
        for part, node in zip(self.parts, self._nodes, strict=True):
            results = run(part, [known[v] for v in part.graph.inputs])
            outputs.append(results)
            if node is not None:
                known.update(zip((v for _, v in part.graph.outputs), results, strict=True))
                # Between two programs, NumPy finds what decides the extents of the second.
                found = OPERATORS[node.op].reference(results[0], **node.attributes)
                known[node.output] = np.ascontiguousarray(found)
        return outputs

    def _arrays(self, feeds: Mapping[str, object]) -> list[Array]:
        check_names(feeds, self._names)
        arrays = []
        for name, dtype, value in zip(self._names, self._dtypes, self._graph.inputs, strict=True):
            try:
                x = as_array(feeds[name], name)
            except OperandError as error:
                raise InputError(str(error)) from None
            if x.dtype != dtype:
                raise InputError(f"input {name} has dtype {x.dtype}; the model takes {dtype}")
            if x.ndim != value.rank:
                raise InputError(f"input {name} is {x.shape}; the model takes {value.type}")
            try:
                arrays.append(np.require(x, requirements=["C", "A"]))
            except NO_MEMORY as error:
                raise not_allocated(x.shape, dtype, error) from error
        return arrays


def check_names(feeds: Mapping[str, object], names: Sequence[str]) -> None:
    """Raises InputError unless there is an input for each name, and no other."""
    if len(feeds) != len(names) or any(n not in feeds for n in names):
        missing = [n for n in names if n not in feeds]
        unknown = [n for n in feeds if n not in names]
        raise InputError(
            f"inputs are {', '.join(names)}; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(map(str, unknown)) or 'none'}"
        )


def _spec(name: str, dtype: str, shape: Sequence[Any]) -> TensorSpec:
    return TensorSpec(name, dtype, tuple(d if isinstance(d, int) else str(d) for d in shape))
