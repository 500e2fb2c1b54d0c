"""Fusion of nests: the definitions of several operators become one nest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ftuner.core.access import kernel_of
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.dim import Shape
from ftuner.core.dtype import DType
from ftuner.core.expr import is_expensive
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Body, Index, Nest, Payload, Step, Store, Writer
from ftuner.graph.buffers import View
from ftuner.schedules.nest.step import NestStep

MAX_INLINED_STEPS = 160
"""Longest nest that is inlined; longer ones are written to memory, because compile time grows with
each step."""


@dataclass(frozen=True)
class FusedNest:
    """A value as a nest, and the views that the nest reads."""

    nest: Nest
    views: tuple[View, ...]
    title: str

    @property
    def injective(self) -> bool:
        return not self.nest.stages

    @property
    def expensive(self) -> bool:
        return any(is_expensive(s.op) for s in self.nest.steps)

    @property
    def looks_up_rows(self) -> bool:
        """Whether each element is made of several elements of one operand, in rows that data
        chooses, at its own index along the last axis. Vectors along another axis would gather
        them."""
        if not self.nest.axes:
            return False
        last, found, rows = index_steps(self.nest)[-1], set[int](), list[Payload]()
        for number, step in enumerate(self.nest.steps):
            if step.op == "load" and step.arguments[-1:] == (last,):
                rows += [step.payload] * (not found.isdisjoint(step.arguments))
            if step.op == "load" or not found.isdisjoint(step.arguments):
                found.add(number)
        return len(rows) > len(set(rows))

    def step(self, *targets: View) -> NestStep:
        """The step that computes the results to targets."""
        layouts = [target.layout for target in targets]
        nest = stored_as(self.nest, [layout.dtype for layout in layouts])
        kernel = kernel_of(nest, layouts)
        operands = tuple(self.views[n].buffer for n in operand_numbers(kernel))
        return NestStep(self.title, kernel, operands, tuple(t.buffer for t in targets))


def number_of(view: View, views: list[View]) -> int:
    """Return the place of a view among others, to which it is added if it is new."""
    for number, known in enumerate(views):
        if known.buffer is view.buffer and known.layout == view.layout:
            return number
    views.append(view)
    return len(views) - 1


class Joiner:
    """Writes one nest from several, and collects the views that they read."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.views: list[View] = []
        self.titles: list[str] = []

    def operand(self, view: View) -> int:
        return number_of(view, self.views)

    def load(self, view: View, dtype: DType | None = None) -> Body:
        """The body that replaces the load of an operand by that of a view, and converts the element
        to `dtype`."""
        number, held = self.operand(view), view.layout.dtype

        def body(writer: Writer, index: Index) -> int:
            loaded = writer.step("load", held, *index, payload=number)
            return loaded if dtype is None else writer.cast(loaded, dtype)

        return body

    def inline(self, fused: FusedNest) -> Body:
        """The body that replaces the load of an operand by the steps of an injective nest."""
        numbers = self.numbers(fused)
        if fused.title:
            self.titles.append(fused.title)
        value = fused.nest.stores[0].value
        return lambda writer, index: writer.copy(fused.nest.steps, numbers, index)[value]

    def numbers(self, fused: FusedNest) -> dict[tuple[str, object], Body]:
        """The bodies that replace the loads of a nest, by its operand numbers."""
        return {("load", i): self.load(view) for i, view in enumerate(fused.views)}

    def joined(self, nest: Nest, title: str) -> FusedNest:
        """The nest with the steps and the operands that have been written."""
        operands, steps = tuple(v.layout for v in self.views), tuple(self.writer.steps)
        return FusedNest(replace(nest, operands=operands, steps=steps), tuple(self.views), title)


def stored_as(nest: Nest, dtypes: Sequence[DType]) -> Nest:
    """The nest, with its results converted to dtypes."""
    steps, stores = list(nest.steps), []
    for store, dtype in zip(nest.stores, dtypes, strict=True):
        if steps[store.value].dtype != dtype:
            steps.append(Step("cast", dtype, (store.value,)))
            store = replace(store, value=len(steps) - 1)
        stores.append(store)
    return replace(nest, steps=tuple(steps), stores=tuple(stores))


def written(shape: Shape, body: Body) -> tuple[Writer, Nest]:
    """The writer and the nest of a body that writes one element."""
    writer = Writer()
    index = [writer.index(axis) for axis in range(len(shape))]
    value = body(writer, index)
    axes = tuple(range(len(shape)))
    return writer, Nest(shape, (), (), (), (), (Store(value, axes),))


def identity(view: View) -> FusedNest:
    """The nest that copies a view."""
    joiner = Joiner()
    joiner.writer, nest = written(view.shape, joiner.load(view))
    return joiner.joined(nest, "copy")


def index_steps(nest: Nest) -> list[int]:
    """The steps that are the index along each axis."""
    found = {s.payload: i for i, s in enumerate(nest.steps) if s.op == "index"}
    return [found.get(axis, -1) for axis in range(len(nest.axes))]


def reads_where_made(nest: Nest, operand: int) -> bool:
    """Whether each element of an operand that a nest reads is used where it is made."""
    at = tuple(index_steps(nest))
    loads = (s for s in nest.steps if (s.op, s.payload) == ("load", operand))
    return all(step.arguments == at for step in loads)


def ones_reshaped(fused: FusedNest, old: Shape, new: Shape) -> FusedNest:
    """An injective nest reshaped from `old` to `new`, which differ only in axes of extent 1."""
    real = [i for i, extent in enumerate(new) if extent != 1]
    joiner = Joiner()

    def body(writer: Writer, index: Index) -> int:
        left = iter(real)
        at = [writer.integer(0) if n == 1 else index[next(left)] for n in old]
        return joiner.inline(fused)(writer, at)

    joiner.writer, nest = written(new, body)
    return joiner.joined(nest, fused.title)
