"""Control flow: If, Loop and Scan.

A graph that is taken for certain, and few iterations, become nodes of the graph around. Other loops
run a graph that is compiled once. Where such a graph would differ from iteration to iteration,
because it needs numbers that the loop carries, the iterations become nodes, however many they are,
if that makes the numbers known, such as the position of an iteration. Otherwise extents that data
decides are bound in each iteration. Where that is not enough, the iterations become nodes all the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from ftuner.core.dtype import BOOL, INT64
from ftuner.frontends.onnx.context import (
    CarriedNumberError,
    CarriedTypeError,
    Context,
    NodeView,
    Operand,
    T,
    node_count,
)
from ftuner.frontends.onnx.inner import Body, Step, appended, chosen, looped, starting, unrolled
from ftuner.frontends.onnx.records import GraphRecord
from ftuner.frontends.onnx.signatures import onnx
from ftuner.graph.algebra import concat, constant, gather, scalar, where
from ftuner.graph.checks import malformed, require, unsupported
from ftuner.graph.ir import Value
from ftuner.graph.operator import Numerics
from ftuner.graph.operators import OPERATORS
from ftuner.graph.specialization import RunTimeNumberError
from ftuner.graph.splitting import runs_on_host

FEW_TRIPS = 8
FEW_NODES = 64
"""Loops of at most this many iterations, and of this many nodes in all of them, become nodes of the
graph around, where they are fused with what is before and after them."""
MOST_TRIPS = 4096
"""Most iterations that become nodes because their graph needs numbers that the loop carries."""
FOREVER = 1 << 62
"""Iterations of a loop that only a condition ends."""


@onnx("If")
def _if(context: Context, node: NodeView, condition: Value) -> Sequence[Operand]:
    known = condition.constant is not None or condition.name in context.answers
    branches = [node.graph(name) for name in ("then_branch", "else_branch")]
    if not known and (context.nested or _is_costly(context, condition)):
        results = _chosen(context, node, condition, branches)
        if results is not None:
            return results
    # Another condition makes another graph.
    found = context.array_of(condition, "the condition")
    if found.size != 1:
        raise malformed(f"the condition is {condition.type}; expected one element")
    return node.inner(context, branches[0 if found.item() else 1], ())


def _is_costly(context: Context, condition: Value) -> bool:
    """Whether the graph that computes a condition, of which the model would compute all again,
    multiplies matrices or has host nodes, as where it asks whether a box is left."""
    for node in context.builder.graph((), [("", condition)]).nodes:
        numerics = OPERATORS[node.op].numerics_of(node.attributes)
        if runs_on_host(node) or numerics is Numerics.PRODUCT:
            return True
    return False


def _chosen(
    context: Context, node: NodeView, condition: Value, branches: Sequence[GraphRecord]
) -> Sequence[Operand] | None:
    """The results of one node that runs either branch. None if their types differ or, where the
    condition can be asked for instead, if a branch needs numbers from run time."""
    inside = [lambda inner, graph=graph: node.inner(inner, graph, ()) for graph in branches]
    try:
        return chosen(context, condition.reshape(()), inside)
    except RunTimeNumberError:
        if context.nested:
            raise
        return None


@onnx("Loop")
def _loop(
    context: Context, node: NodeView, trips: Value | None, going: Value | None, body: GraphRecord
) -> Sequence[Operand]:
    initial = list(node.inputs[2:])
    zero, always = starting()
    trips = constant(np.int64(FOREVER)) if trips is None else trips
    going = always if going is None else going
    for value, dtype in ((trips, INT64), (going, BOOL)):
        if value.dtype != dtype or value.rank > 1 or any(n != 1 for n in value.shape):
            raise malformed(f"{value.type} begins a loop; expected one {dtype}")
    trips, going = trips.reshape(()), going.reshape(())
    if len(body.inputs) != 2 + len(initial) or len(body.outputs) < 1 + len(initial):
        raise malformed(
            f"{len(initial)} carried values, {len(body.inputs)} inputs and {len(body.outputs)} "
            "outputs of the body"
        )
    carried = [v for v in initial if v is not None]
    if len(carried) < len(initial):
        raise malformed("a carried value is missing")

    changed = _changed(body, body.inputs[2:], body.outputs[1 : 1 + len(carried)])
    if not changed and len(body.outputs) == 1 + len(carried):
        return carried

    merged = partial(_merged, carried, changed)

    def step(inner: Context, values: Sequence[Operand]) -> Step:
        _expect_few(inner, body)
        number, condition, *others = values
        goes_on, *results = node.inner(inner, body, [number, condition, *merged(others)])
        assert isinstance(number, Value)
        assert isinstance(goes_on, Value)
        unchanged = goes_on is condition
        goes_on = goes_on.reshape(())
        after = [number + 1, goes_on, *(results[i] for i in changed)]
        return Step(None if unchanged else goes_on, after, results[len(carried) :])

    first = [zero, going, *(carried[i] for i in changed)]
    last = _repeated(context, trips, going, first, step, 2, node_count(body))
    return [*merged(last[: len(changed)]), *last[len(changed) :]]


def _changed(graph: GraphRecord, inputs: Sequence[str], outputs: Sequence[str]) -> list[int]:
    """Which carried values the body of a loop changes, by their names before and after an
    iteration. TensorFlow's loops carry whatever they read, weights included, and scans of skl2onnx
    the rows of a table: what stays is read from around the loop, so that a constant stays one."""
    origins: dict[str, str] = {}
    for node in graph.nodes:
        if (node.domain, node.op) == ("", "Identity"):
            origins[node.outputs[0]] = origins.get(node.inputs[0], node.inputs[0])
    names = zip(inputs, outputs, strict=True)
    return [i for i, (before, after) in enumerate(names) if origins.get(after, after) != before]


def _merged(carried: Sequence[T], changed: Sequence[int], changing: Sequence[T]) -> list[T]:
    """All carried values, with those in the place of the ones that iterations change."""
    found = dict(zip(changed, changing, strict=True))
    return [found.get(i, value) for i, value in enumerate(carried)]


def _repeated(
    context: Context, trips: Value, going: Value, initial: Sequence[Operand], step: Body,
    optional: int, nodes: int,
) -> Sequence[Operand]:  # fmt: skip
    """The results of a loop, without the `optional` first carried values. `nodes`: how many nodes
    an iteration has.

    The first iteration may change the types of what is carried, as where PaddlePaddle's loops
    begin with scalars in the place of tensors. If it surely runs, it precedes the loop.
    """
    try:
        return _iterated(context, trips, going, initial, step, optional, nodes)
    except CarriedTypeError:
        at_least_one = trips.constant is not None and trips.constant.item() > 0
        if not at_least_one or going.constant is None or not going.constant.item():
            raise
    first = step(replace(context, nested=True), initial)
    goes_on = going if first.condition is None else first.condition
    assert isinstance(goes_on, Value)
    found = _iterated(context, trips + -1, goes_on, first.carried, step, optional, nodes)
    last = len(initial) - optional
    stacked = zip(first.stacked, found[last:], strict=True)
    return [*found[:last], *(_stacked_before(x, others) for x, others in stacked)]


def _stacked_before(first: Operand, others: Operand) -> Value:
    assert isinstance(first, Value)
    assert isinstance(others, Value)
    return concat([first.unsqueeze([0]), others], 0)


def _iterated(
    context: Context, trips: Value, going: Value, initial: Sequence[Operand], step: Body,
    optional: int, nodes: int,
) -> Sequence[Operand]:  # fmt: skip
    """The results of a loop; see `_repeated`.

    Raises:
        CarriedTypeError: an iteration changes the type of a carried value.
    """
    loop = context.builder.random_number()

    def body(inner: Context, values: Sequence[Operand]) -> Step:
        number = values[0]
        assert isinstance(number, Value)
        with inner.builder.iteration(loop, number):
            return step(inner, values)

    known = None if trips.constant is None else int(trips.constant.item())
    sequences = not all(isinstance(v, Value) for v in initial)
    if known is not None and known <= min(FEW_TRIPS, FEW_NODES // (nodes + 1)):
        # A number that comes at run time would be asked for, and its signs would make other models.
        with suppress(*(() if sequences else (RunTimeNumberError,))):
            found = unrolled(context, known, going, initial, body, optional, asks=sequences)
            if found is not None:
                return found
    few = known is not None and known <= MOST_TRIPS
    tensors = [v for v in initial if isinstance(v, Value)]
    for counted, presumes_ones in ((False, False), (True, False), (True, True)):
        if counted < context.counted:
            continue
        if counted and few and _becomes_known(context, going, initial, body):
            break
        given = replace(context, counted=counted, presumes_ones=presumes_ones)
        try:
            if sequences:
                return appended(given, trips, going, initial, body, optional)
            return looped(given, trips, going, tensors, body, optional)
        except CarriedNumberError:
            pass
    count = context.integer_of(trips, "the number of iterations")
    found = unrolled(context, min(count, MOST_TRIPS + 1), going, initial, body, optional, asks=True)
    assert found is not None
    return found


def _becomes_known(context: Context, going: Value, initial: Sequence[Operand], body: Body) -> bool:
    """Whether the numbers that an iteration needs are known where it is part of the graph around,
    as the position of an iteration is: the first two need none that comes at run time. The first
    one alone may know what is carried only because it is constant before the loop."""
    trial = context.within()
    try:
        with trial.builder.writing():
            found = unrolled(trial, 2, going, initial, body, optional=0, asks=False)
    except RunTimeNumberError:
        return False
    return found is not None


def _expect_few(context: Context, graph: GraphRecord) -> None:
    if not context.repeats.take(graph):
        raise unsupported("too many iterations or nested loops to import")


@onnx("Scan", since=9)
def _scan(context: Context, node: NodeView) -> Sequence[Operand]:
    graph, count = node.graph("body"), node.integer("num_scan_inputs")
    operands = node.present()
    if not 0 <= count <= len(operands):
        raise malformed(f"num_scan_inputs is {count}, of {len(operands)} operands")
    states, inputs = operands[: len(operands) - count], operands[len(operands) - count :]
    outputs = len(graph.outputs) - len(states)
    axes = node.integers("scan_input_axes", (0,) * count)
    backwards = node.integers("scan_input_directions", (0,) * count)
    results = _scanned(context, node, graph, states, inputs, axes, backwards, None)
    axes = node.integers("scan_output_axes", (0,) * outputs)
    backwards = node.integers("scan_output_directions", (0,) * outputs)
    _expect_lengths(outputs, axes, backwards)
    found: list[Operand] = list(results[: len(states)])
    for x, axis, reverse in zip(results[len(states) :], axes, backwards, strict=True):
        if reverse:
            x = x.slice(0, x.shape[0] - 1, x.shape[0], -1)
        axis = context.axis(axis, x.rank)
        found.append(x.moved(0, axis))
    return found


def _expect_lengths(count: int, *lists: Sequence[int]) -> None:
    if count < 0 or any(len(found) != count for found in lists):
        raise malformed(f"axes and directions {lists}; expected {count} each")


def _scanned(
    context: Context, node: NodeView, graph: GraphRecord, states: Sequence[Value],
    inputs: Sequence[Value], axes: Sequence[int], backwards: Sequence[int],
    length: Value | None,
) -> list[Value]:  # fmt: skip
    """The last states, and the outputs stacked along the first axis.

    Args:
        length: the number of elements that count, if not all do. After them states stay, and
            outputs are zero.
    """
    _expect_lengths(len(inputs), axes, backwards)
    if not inputs:
        raise malformed("there is nothing to scan")
    axes = [context.axis(axis, x.rank) for x, axis in zip(inputs, axes, strict=True)]
    extent = inputs[0].shape[axes[0]]
    for x, axis in zip(inputs, axes, strict=True):
        require(x.shape[axis], extent, "lengths of what is scanned")

    if len(graph.inputs) != len(states) + len(inputs) or len(graph.outputs) < len(states):
        raise malformed(
            f"{len(states)} states, {len(inputs)} scan inputs, {len(graph.inputs)} inputs and "
            f"{len(graph.outputs)} outputs of the body"
        )
    changed = _changed(graph, graph.inputs[: len(states)], graph.outputs[: len(states)])
    merged = partial(_merged, states, changed)

    def body(inner: Context, values: Sequence[Operand]) -> Step:
        _expect_few(inner, graph)
        number, *changing = (v for v in values if isinstance(v, Value))
        before = merged(changing)
        last = inner.builder.dims([extent - 1], ())
        at = [last - number if back else number for back in backwards]
        elements = [gather(x, i, axis) for x, i, axis in zip(inputs, at, axes, strict=True)]
        results = node.inner(inner, graph, [*before, *elements])
        if length is not None:
            tensors = [v for v in results if isinstance(v, Value)]
            counts = number < length
            old = [*before, *(scalar(0, v.dtype) for v in tensors[len(before) :])]
            results = [where(counts, x, y) for x, y in zip(tensors, old, strict=True)]
        return Step(None, [number + 1, *(results[i] for i in changed)], results[len(before) :])

    zero, always = starting()
    trips = context.builder.dims([extent], ())
    first = [zero, *(states[i] for i in changed)]
    found = _repeated(context, trips, always, first, body, 1, node_count(graph))
    last = [v for v in found if isinstance(v, Value)]
    return [*merged(last[: len(changed)]), *last[len(changed) :]]


@onnx("Scan")
def _scan_batch(context: Context, node: NodeView) -> Sequence[Operand]:
    """The first version: all operands begin with an axis of images, each scanned by itself."""
    graph, count = node.graph("body"), node.integer("num_scan_inputs")
    lengths = node.optional(0)
    operands = [node.input(i) for i in range(1, len(node.inputs))]
    if any(x.rank < 1 for x in operands) or len(operands) < count or not operands:
        raise malformed("expected operands with an axis of the batch")
    batch = operands[0].shape[0]
    for x in operands:
        require(x.shape[0], batch, "extents of the batch")
    backwards = node.integers("directions", (0,) * count)

    def body(inner: Context, values: Sequence[Operand]) -> Step:
        (number,) = (v for v in values if isinstance(v, Value))

        found = [gather(x, number) for x in operands]
        states, inputs = found[: len(found) - count], found[len(found) - count :]
        length = None if lengths is None else gather(lengths, number)
        results = _scanned(inner, node, graph, states, inputs, [0] * count, backwards, length)
        return Step(None, [number + 1], results)

    zero, always = starting()
    trips = context.builder.dims([batch], ())
    return _repeated(context, trips, always, [zero], body, 1, node_count(graph))
