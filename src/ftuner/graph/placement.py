"""The state of a lowering: the memory of values, pending values, and the steps so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ftuner.core.dim import Dim, Shape, product
from ftuner.core.dtype import FLOAT32, INT8, UINT8, DType
from ftuner.core.expr import MAX_REPEATED_STEPS
from ftuner.core.index_expr import Body, Nest, Operand, Store
from ftuner.graph.appending import Appended
from ftuner.graph.buffers import Buffer, View, contiguous_rows, row_major, same_elements
from ftuner.graph.concat_placement import parts
from ftuner.graph.fused_nest import MAX_INLINED_STEPS, FusedNest, Joiner, identity
from ftuner.graph.ir import Graph, Node, TensorType, Value, consumers
from ftuner.graph.steps import Step

LEVEL_LIMITS = frozenset(
    float(limit)
    for dtype in (INT8, UINT8)
    for limit in (np.iinfo(dtype.name).min, np.iinfo(dtype.name).max)
)
"""The limits of levels of 8 bits, which kernels have as literals: they round by them."""


class Pending(ABC):
    """A value that is not in memory yet: it may still take in the node that reads it, or be
    computed to where that node wants it."""

    @property
    def strided_rows(self) -> bool:
        """Whether its rows may be stored with any strides."""
        return False

    @property
    def fused(self) -> FusedNest | None:
        """The value as a nest, for nests that read it."""
        return None

    @abstractmethod
    def store(self, target: View, placement: Placement) -> None:
        """Add the steps that compute the value to a target."""

    def grown(self, node: Node, position: int, placement: Placement) -> Pending | None:
        """The result of a node, of which the operand at `position` is this value and has no other
        reader; None if the node cannot be taken in."""
        return None

    def reshaped(self, old: Shape, new: Shape, read_once: bool) -> Pending | None:
        """The value in another shape; None if it has to be in memory for that. `read_once`: whether
        nothing else reads it."""
        return None


Form = View | Pending
"""A value in memory, or one that is not there yet."""
Runs = Callable[[str, DType], bool]
"""Whether a back end has a kind of step for elements of a dtype."""


def runs_all(kind: str, dtype: DType) -> bool:
    return True


class Placement:
    """Forms of values, and memory for those that need it."""

    def __init__(
        self, graph: Graph, held: Mapping[Value, DType], runs: Runs, appended: Sequence[Appended]
    ) -> None:
        self.graph = graph
        self.runs = runs
        self.held = held
        self.steps: list[Step] = []
        self._written: set[int] = set()
        """Numbers of the outputs that steps write."""
        self.forms: dict[Value, Form] = {}
        self.uses = {value: len(nodes) for value, nodes in consumers(graph).items()}
        self.output_numbers: dict[Value, int] = {}
        for number, (_, value) in enumerate(graph.outputs):
            self.uses[value] = self.uses.get(value, 0) + 1
            self.output_numbers.setdefault(value, number)
        self._appended = {pair.output for pair in appended}
        """Numbers of the outputs that are in memory with room for more."""
        self.constants: dict[Value, View] = {}
        self._others: dict[tuple[Buffer, DType], Buffer] = {}
        self._copies: dict[tuple[Buffer, Operand, DType], View] = {}
        places: dict[Value, View] = {}
        for pair in appended:
            room = Buffer("output", pair.whole.dtype, product(pair.room), pair.output)
            found = {v: View(room, layout) for v, layout in pair.layouts.items()}
            self.forms.update((v, found[v]) for v in pair.kept)
            places.update({pair.whole: View(room, pair.layout)})
            places.update((v, found[v]) for v in pair.parts)
        self._parts = parts(graph, self.alone, self.type_of, places)

    def type_of(self, value: Value) -> TensorType:
        """The type of a value in the arena or among constants."""
        return TensorType(self.held.get(value, value.dtype), value.shape)

    def form(self, value: Value) -> Form:
        if value.constant is None:
            return self.forms[value]
        found = self.constants.get(value)
        if found is None:
            # Native code reads aligned, row-major arrays; a constant may be a view, or unaligned.
            array = np.require(value.constant, requirements=["C", "A"])
            type_ = self.type_of(value)
            buffer = Buffer("constant", type_.dtype, product(value.shape), 0, array)
            found = self.constants[value] = View(buffer, row_major(type_))
        return found

    def pending(self, value: Value) -> Pending | None:
        """The value, if it is not in memory yet."""
        form = None if value.constant is not None else self.forms[value]
        return form if isinstance(form, Pending) else None

    def read_once(self, value: Value) -> bool:
        """Whether a value has one reader: an operand of a node, or an output."""
        return self.uses.get(value) == 1

    def view(self, value: Value, dtype: DType | None = None) -> View:
        """The value in memory; in a dtype, if one is given."""
        form = self.form(value)
        if isinstance(form, Pending):
            place = self.place(value)
            if dtype not in (None, place.layout.dtype) and self.read_once(value):
                assert dtype is not None
                place = self.apart(TensorType(dtype, value.shape))
            form = self.forms[value] = self.store(form, place)
        return form if dtype is None else self.converted(form, dtype)

    def converted(self, view: View, dtype: DType) -> View:
        """The elements in a dtype. Constants are converted when they are copied to a device, or
        packed."""
        buffer, layout = view.buffer, view.layout
        if layout.dtype == dtype:
            return view
        if buffer.array is not None:
            other = self._others.setdefault((buffer, dtype), replace(buffer, dtype=dtype))
            return View(other, replace(layout, dtype=dtype))
        found = self._copies.get((buffer, layout, dtype))
        if found is None:
            found = self.copied(view, self.apart(TensorType(dtype, view.shape)))
            self._copies[buffer, layout, dtype] = found
        return found

    def contiguous(self, value: Value, dtype: DType | None = None) -> View:
        """The value in memory, in row-major order; in a dtype, if one is given."""
        view = self.view(value, dtype)
        if view.contiguous:
            return view
        if view is not self.forms.get(value):
            return self.copied(view, self.apart(TensorType(view.layout.dtype, view.shape)))
        view = self.forms[value] = self.copied(view, self.alone(value))
        return view if dtype is None else self.converted(view, dtype)

    def contiguous_last(self, value: Value, dtype: DType | None = None) -> View:
        """The value in memory, with a contiguous last axis; in a dtype, if one is given."""
        view = self.view(value, dtype)
        return view if view.layout.strides[-1] == 1 else self.contiguous(value, dtype)

    def rows(self, value: Value, dtype: DType) -> View:
        """The value in memory as one axis of contiguous rows with one stride."""
        rows = contiguous_rows(self.view(value, dtype))
        if rows is None:
            view = self.contiguous(value, dtype)
            # One element may have any stride, as of a slice backwards.
            layout = replace(view.layout, strides=(*view.layout.strides[:-1], 1))
            rows = contiguous_rows(View(view.buffer, layout))
        assert rows is not None
        return rows

    def row_of(self, value: Value, extent: Dim) -> View:
        """A value of one element, repeated as a row of `extent`."""
        view = self.view(value)
        row = View(view.buffer, replace(view.layout, shape=(1, extent), strides=(0, 0)))
        return self.copied(row, self.apart(TensorType(view.layout.dtype, (1, extent))))

    def place(self, value: Value) -> View:
        """Memory for a value: its part of a concatenation or of what an output appends to, if it is
        computed to that, or memory of its own."""
        part = self._parts.get(value)
        return self.alone(value) if part is None else part

    def alone(self, value: Value) -> View:
        """Row-major memory for a value. That is the caller's if the value is an output that no
        step has written, and if no other node reads it in another dtype."""
        number = self.output_numbers.get(value)
        type_ = self.type_of(value)
        as_given = type_.dtype == value.dtype or self.uses.get(value, 0) <= 1
        if number is not None and as_given and number not in self._written:
            return self._given(number, value)
        return self.apart(type_)

    def _given(self, number: int, value: Value) -> View:
        """The caller's memory for an output."""
        return View(
            Buffer("output", value.dtype, product(value.shape), number), row_major(value.type)
        )

    def apart(self, type_: TensorType) -> View:
        """Memory of the arena."""
        return View(Buffer("arena", type_.dtype, product(type_.shape)), row_major(type_))

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self._written |= {b.number for b in step.writes if b.kind == "output"}

    def output(self, number: int, value: Value) -> View:
        view = self.view(value)
        if number in self._appended:
            return view
        if view.buffer.kind == "output" and view.buffer.number == number and view.contiguous:
            return view
        return self.copied(view, self._given(number, value))

    def store(self, pending: Pending, target: View) -> View:
        """Compute a pending value to a target."""
        pending.store(target, self)
        return target

    def store_by_copy(self, pending: Pending, dtype: DType, target: View) -> None:
        """Compute a pending value to row-major memory of a dtype, and copy it to a target."""
        self.copied(self.store(pending, self.apart(TensorType(dtype, target.shape))), target)

    def put(self, value: Value, target: View) -> None:
        """Have a value in a target: computed to it, or copied if something else reads it too."""
        pending = self.pending(value)
        if pending is None or not self.read_once(value):
            view = self.view(value)
            if not same_elements(view, target):
                self.copied(view, target)
        else:
            self.forms[value] = self.store(pending, target)

    def copied(self, view: View, target: View) -> View:
        self.add(identity(view).step(target))
        return target

    # Fusion.

    def fused(self, node: Node, definition: Nest | None) -> FusedNest:
        """The nest of a node, which computes its operands in its loads wherever that pays."""
        assert definition is not None
        joiner = Joiner()
        loads: dict[tuple[str, object], Body] = {
            ("load", i): self.loaded(joiner, value, definition)
            for i, value in enumerate(node.inputs)
        }
        writer = joiner.writer
        at = [writer.index(axis) for axis in range(len(definition.axes))]
        went = writer.copy(definition.steps, loads, at)
        stages = tuple(stage.moved(went) for stage in definition.stages)
        stores = tuple(
            Store(went[s.value], s.axes, tuple(went[a] for a in s.at), s.combine)
            for s in definition.stores
        )
        nest = Nest(definition.kept, definition.reduced, (), (), stages, stores)
        return joiner.joined(nest, " + ".join([*joiner.titles, node.op]))

    def loaded(self, joiner: Joiner, value: Value, nest: Nest) -> Body:
        """The body of the load of an operand of a nest: the operand's own nest inlined, a literal,
        or a load from memory."""
        limits = nest.steps[nest.stores[0].value].op in ("maximum", "minimum")
        if limits and value.constant is not None and not value.rank:
            number = float(value.constant)
            if value.dtype == FLOAT32 and number in LEVEL_LIMITS:
                return lambda writer, index: writer.constant(number, FLOAT32)
        pending = self.pending(value)
        fused = None if pending is None else pending.fused
        if fused is not None and self._is_inlined(fused, value, nest):
            return joiner.inline(fused)
        return joiner.load(self.view(value), value.dtype)

    def _is_inlined(self, fused: FusedNest, value: Value, nest: Nest) -> bool:
        if not fused.injective or len(fused.nest.steps) > MAX_INLINED_STEPS:
            return False
        alone, staged = self.read_once(value), len(nest.stages) > 1
        if staged and not alone:
            # It would be computed for each stage, and again for the other readers.
            return False
        once = alone and not staged and product(value.shape) == product(nest.axes)
        return once or not (fused.expensive or len(fused.nest.steps) > MAX_REPEATED_STEPS)
