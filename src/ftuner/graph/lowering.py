"""From a graph to steps: fusion, and the memory of every tensor.

Nodes are visited once, in order. A value that a nest computes is not written to memory until a
reader needs it there. A consumer with loops of its own takes an injective nest into its loads (a
prologue). A pending value with reductions, such as a matrix product, takes an injective consumer
into its stores (an epilogue) if it has no other reader. Transpositions, slices, broadcasts and
reshapes of what is in memory are views. Everything else is written to a buffer.

An operator may have a lowering of its own, `Operator.lower`; all others are lowered by their
definitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftuner.core.dim import Shape, product, without_ones
from ftuner.core.dtype import DType
from ftuner.core.frozen import dataclass
from ftuner.core.index_expr import Body, Nest, Store
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph import fused_nest
from ftuner.graph.appending import Appended
from ftuner.graph.buffers import Buffer, View, row_major
from ftuner.graph.ir import Graph, Node, Value
from ftuner.graph.operators import OPERATORS, definition
from ftuner.graph.placement import Form, Pending, Placement, Runs, runs_all
from ftuner.graph.schedules import rewritten
from ftuner.graph.steps import Lowered


def lower(
    graph: Graph, held: Mapping[Value, DType] | None = None, runs: Runs = runs_all,
    appended: Sequence[Appended] = (),
) -> Lowered:  # fmt: skip
    """Fuse a graph and give its tensors memory.

    Args:
        held: the dtypes of values in memory, other than those that they are computed in; see
            `graph.precision`.
        runs: whether a back end has a kind of step for a dtype. Where it has none for an operator
            that may do without, the operator is lowered by its definition.
        appended: those of `appending.appended_outputs` whose inputs are in the memory of the
            outputs when a run begins. None of these values is held in another dtype.

    Raises:
        UnsupportedOperatorError: an operator without a schedule.
    """
    operators = {node.op: OPERATORS[node.op] for node in graph.nodes}
    unknown = sorted(n for n, o in operators.items() if o.define is None and o.lower is None)
    if unknown:
        raise UnsupportedOperatorError(f"no schedule for {', '.join(unknown)}")
    placement = Placement(graph, held or {}, runs, appended)
    inputs = []
    for number, value in enumerate(graph.inputs):
        buffer = Buffer("input", value.dtype, product(value.shape), number)
        inputs.append(buffer)
        placement.forms.setdefault(value, View(buffer, row_major(value.type)))
    left = dict(placement.uses)
    for node in graph.nodes:
        if any(value not in placement.forms for value in node.outputs):
            placement.forms.update(zip(node.outputs, lowered(node, placement), strict=True))
        for value in node.inputs:
            left[value] -= 1
            if not left[value]:
                placement.forms.pop(value, None)
    outputs = [placement.output(number, value) for number, (_, value) in enumerate(graph.outputs)]
    steps = rewritten(placement.steps, outputs, runs)
    return Lowered(graph, steps, tuple(inputs), tuple(outputs), tuple(appended))


def lowered(node: Node, placement: Placement) -> Sequence[Form]:
    """The results of a node: by its operator's own lowering; or taken into a value that it reads;
    or as a nest that takes in what it reads."""
    operator = OPERATORS[node.op]
    forms = None if operator.lower is None else operator.lower(node, placement)
    if forms is not None:
        return forms
    if len(node.outputs) > 1:
        targets = [placement.place(value) for value in node.outputs]
        placement.add(placement.fused(node, definition(node)).step(*targets))
        return targets
    for position, value in enumerate(node.inputs):
        if placement.read_once(value):
            pending = placement.pending(value)
            grown = None if pending is None else pending.grown(node, position, placement)
            if grown is not None:
                return (grown,)
    return (PendingNest(placement.fused(node, definition(node))),)


@dataclass(frozen=True)
class PendingNest(Pending):
    """A value that a nest computes."""

    nest: fused_nest.FusedNest

    @property
    def fused(self) -> fused_nest.FusedNest:
        return self.nest

    def store(self, target: View, placement: Placement) -> None:
        placement.add(self.nest.step(target))

    def grown(self, node: Node, position: int, placement: Placement) -> PendingNest | None:
        """An injective node is taken into the stores of reductions."""
        form, nest = self.nest, self.nest.nest
        store = nest.stores[0]
        own = None if form.injective or not store.axes else definition(node)
        if own is None or own.stages or own.kept != node.inputs[position].shape:
            return None
        if len(nest.steps) + len(own.steps) > fused_nest.MAX_INLINED_STEPS:
            return None
        if not fused_nest.reads_where_made(own, position):
            return None
        joiner = fused_nest.Joiner()
        writer = joiner.writer
        numbers = joiner.numbers(form)
        at = [writer.index(axis) for axis in range(len(nest.axes))]
        went = writer.copy(nest.steps, numbers, at)
        value = went[store.value]
        loads: dict[tuple[str, object], Body] = {}
        for i, operand in enumerate(node.inputs):
            if i == position:
                loads["load", i] = lambda w, index: value
            else:
                loads["load", i] = placement.loaded(joiner, operand, own)
        result = writer.copy(own.steps, loads, [at[axis] for axis in store.axes])
        stages = tuple(stage.moved(went) for stage in nest.stages)
        stores = (Store(result[own.stores[0].value], store.axes),)
        joined = Nest(nest.kept, nest.reduced, (), (), stages, stores)
        return PendingNest(joiner.joined(joined, f"{form.title} + {node.op}"))

    def reshaped(self, old: Shape, new: Shape, read_once: bool) -> PendingNest | None:
        if not self.nest.injective or without_ones(old) != without_ones(new):
            return None
        return PendingNest(fused_nest.ones_reshaped(self.nest, old, new))
