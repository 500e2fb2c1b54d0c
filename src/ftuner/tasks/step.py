"""The step of a schedule of a user: a node of a graph that takes in what stands around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ftuner.core.dim import Dim
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Body, Nest, Store
from ftuner.graph.buffers import View
from ftuner.graph.fused_nest import (
    MAX_INLINED_STEPS,
    FusedNest,
    Joiner,
    identity,
    reads_where_made,
    written,
)
from ftuner.graph.ir import Node
from ftuner.graph.operator import Attributes, Operator, Require
from ftuner.graph.operators import definition, register_operator
from ftuner.graph.placement import Form, Pending, Placement
from ftuner.graph.steps import DimText, ViewStep, shape_text
from ftuner.tasks.fusion import OWN, Fusion, computed_in_loads, expressible
from ftuner.tasks.program import Load, Program, expressions, statements

OPERATOR = "scheduled"
"""The operator whose nodes have programs, of a schedule of a user or of recurrences: the attribute
`schedule`. The attribute `extents` has the values of their extents."""


@dataclass(frozen=True)
class ScheduledStep(ViewStep):
    """The programs of a schedule, of which one runs."""

    kind: ClassVar[str] = OPERATOR
    results: ClassVar[tuple[str, ...]] = ("outputs",)
    title: str
    programs: tuple[Program, ...]
    """For each combination of tiles."""
    tiles: tuple[tuple[tuple[str, int], ...], ...]
    """Those combinations."""
    extents: tuple[Dim, ...]
    """The values of the programs' extents."""
    workers: Dim
    """The value of `workers`."""
    operands: tuple[View, ...]
    """What the programs read."""
    outputs: tuple[View, ...]

    @property
    def dtype(self) -> DType:
        return self.programs[0].dtype

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(d for d in (*self.extents, self.workers) if not isinstance(d, int))

    def described(self, text: DimText) -> str:
        return " and ".join(shape_text(view.shape, text) for view in self.outputs)


@dataclass(frozen=True)
class PendingScheduled(Pending):
    """The result of a schedule with one output, which has no memory yet."""

    title: str
    node: Node
    inputs: tuple[FusedNest, ...]
    epilogue: FusedNest

    def store(self, target: View, placement: Placement) -> None:
        dtype = self.node.output.dtype
        if target.layout.dtype == dtype:
            self.add((target,), self.epilogue, placement)
        else:
            placement.store_by_copy(self, dtype, target)

    def add(
        self, outputs: tuple[View, ...], epilogue: FusedNest | None, placement: Placement
    ) -> None:
        """Add the step."""
        schedule, attributes = self.node.attributes["schedule"], self.node.attributes
        values = _extents(schedule, attributes)
        fusion = Fusion(values, tuple(schedule.programs.values()))
        programs = fusion.fused(self.inputs, outputs, epilogue)
        tiles, workers = tuple(schedule.programs), schedule.workers_of(values)
        read, extents = tuple(fusion.views), tuple(fusion.extents.values())
        placement.add(ScheduledStep(self.title, programs, tiles, extents, workers, read, outputs))

    def grown(self, node: Node, position: int, placement: Placement) -> PendingScheduled | None:
        """A pointwise node is taken into the store, where nothing reads what is stored."""
        result = self.node.output
        own = definition(node) if node.output.type == result.type else None
        if own is None or own.stages or own.kept != result.shape:
            return None
        if not reads_where_made(own, position):
            return None
        grown = self._followed(node, position, own, placement)
        whole = len(grown.nest.steps) <= MAX_INLINED_STEPS and expressible(grown, result.dtype)
        return replace(self, title=f"{self.title} + {node.op}", epilogue=grown) if whole else None

    def _followed(self, node: Node, position: int, own: Nest, placement: Placement) -> FusedNest:
        joiner, before = Joiner(), self.epilogue.nest
        writer = joiner.writer
        at = [writer.index(axis) for axis in range(len(own.kept))]
        element = writer.step("load", node.output.dtype, *at, payload=OWN)
        numbers = {**joiner.numbers(self.epilogue), ("load", OWN): lambda w, index: element}
        value = writer.copy(before.steps, numbers, at)[before.stores[0].value]
        loads: dict[tuple[str, object], Body] = {
            ("load", i): joiner.load(placement.view(operand), operand.dtype)
            for i, operand in enumerate(node.inputs)
            if i != position
        }
        loads["load", position] = lambda w, index: value
        result = writer.copy(own.steps, loads, at)[own.stores[0].value]
        axes = tuple(range(len(own.kept)))
        return joiner.joined(Nest(own.kept, (), (), (), (), (Store(result, axes),)), "")


def lower(node: Node, placement: Placement) -> Sequence[Form]:
    schedule = node.attributes["schedule"]
    programs: tuple[Program, ...] = tuple(schedule.programs.values())
    first, inputs = programs[0], list[FusedNest]()
    for array, value in zip(first.inputs, node.inputs, strict=True):
        own = placement.pending(value)
        nest = None if own is None else own.fused
        if nest is None or not _taken_in(nest, programs, array.name, placement.read_once(value)):
            view = placement.view(value, first.dtype)
            if view.shape and view.layout.strides[-1] != 1:
                view = placement.contiguous(value, first.dtype)
            nest = replace(identity(view), title="")
        inputs.append(nest)
    title = " + ".join([*(n.title for n in inputs if n.title), schedule.__name__])
    dtype, shape = first.dtype, node.outputs[0].shape
    joiner = Joiner()
    joiner.writer, own_nest = written(shape, lambda w, at: w.step("load", dtype, *at, payload=OWN))
    epilogue = joiner.joined(own_nest, "")
    read = {
        part.array for s in statements(first.body) for part in expressions(s)
        if isinstance(part, Load)
    }  # fmt: skip
    pending = PendingScheduled(title, node, tuple(inputs), epilogue)
    if len(node.outputs) == 1 and read.isdisjoint(a.name for a in first.outputs):
        return [pending]
    places = tuple(placement.apart(value.type) for value in node.outputs)
    pending.add(places, None, placement)
    return places


def _taken_in(nest: FusedNest, programs: Sequence[Program], array: str, read_once: bool) -> bool:
    """Whether an operand is computed in the loads of a schedule."""
    fits = len(nest.nest.steps) <= MAX_INLINED_STEPS and expressible(nest, programs[0].dtype)
    return fits and all(computed_in_loads(p, array, nest, read_once) for p in programs)


def _extents(schedule: Any, attributes: Attributes) -> dict[str, Dim]:
    """The values of the programs' extents."""
    program: Program = next(iter(schedule.programs.values()))
    return dict(zip(program.extents, attributes["extents"], strict=True))


def _infer(types: Sequence[Any], attributes: Attributes, require: Require) -> tuple[Any, ...]:
    schedule = attributes["schedule"]
    found: tuple[Any, ...] = schedule.results_of(types, _extents(schedule, attributes), require)
    return found


def _reference(*arrays: Any, schedule: Any, extents: Sequence[int]) -> Any:
    return schedule.reference(arrays, extents)


register_operator(Operator(OPERATOR, _infer, _reference, lower=lower))
