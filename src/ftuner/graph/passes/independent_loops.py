"""Has iterations that do not depend on each other computed by a nest, which has an axis of them.

A scan over the samples that neighbours are sought among reduces the difference of each to a row. A
loop over the bags of an embedding takes the rows from one offset to the next, and reduces them:
their number, an extent, is data, and each iteration reduces the first elements of its own part.
"""

from __future__ import annotations

from dataclasses import replace

from ftuner.core.dim import Dim, Shape, symbol, symbols_of, without_ones
from ftuner.core.dtype import INT64
from ftuner.core.index_expr import Body, Index, Nest, Stage, Store
from ftuner.core.symbolic import Atom, Symbol, Symbolic
from ftuner.graph.algebra import apply
from ftuner.graph.fused_nest import MAX_INLINED_STEPS
from ftuner.graph.ir import Graph, Node, Value, producers, writing_to
from ftuner.graph.operator import NestWriter
from ftuner.graph.operators import definition
from ftuner.graph.rewrite.rule import Rewriting
from ftuner.graph.rewrite.surroundings import Surroundings, scalar


class _NoNestError(Exception):
    """No nest computes the iterations."""


def write_loops_as_nests(graph: Graph) -> Graph:
    """Replace each stacked result of such loops by a node of its own, `independent_loop`."""
    around, new = Surroundings(graph), Rewriting(graph)
    with writing_to(new):
        for node in graph.nodes:
            if node.op == "loop" and _is_independent(node, around):
                stacked, new.name = node.outputs[_carried(node) :], node.outputs[-1].name
                try:
                    new.same |= {value: _written(node, value) for value in stacked}
                except (_NoNestError, RecursionError):
                    # Dims, and chains of nodes, may be nested deeper than calls of Python.
                    continue
    return new.rewritten()


def _carried(node: Node) -> int:
    return int(node.attributes["carried"])


def _is_independent(node: Node, around: Surroundings) -> bool:
    """Whether iterations read nothing of other ones but their number, and data decides no extent of
    the results."""
    body, carried = node.attributes["body"], _carried(node)
    if node.attributes["conditional"] or node.attributes["counts"] or carried > 1:
        return False
    if carried and (around.read(node.outputs[0]) or scalar(node.inputs[2]) != 0):
        return False
    return len(node.outputs) > carried and (not carried or _counts(body))


def _counts(body: Graph) -> bool:
    """Whether the first result is one more than the first input."""
    step = producers(body).get(body.outputs[0][1])
    if step is None or step.op != "add":
        return False
    return sorted(scalar(v) == 1 for v in step.inputs if v is not body.inputs[0]) == [True]


def _written(node: Node, result: Value) -> Value:
    """A stacked result of a loop, computed by a node of its own.

    Raises:
        _NoNestError: no nest computes it.
    """
    number, carried = node.outputs.index(result), _carried(node)
    attributes = {n: x for n, x in node.attributes.items() if n != "counts"}
    body = attributes["body"]
    outputs = (*body.outputs[:carried], body.outputs[number])
    attributes["body"] = replace(body, outputs=outputs)
    attributes["types"] = (*attributes["types"][:carried], result.type)
    stacked = len(node.outputs) - carried
    empty = len(node.inputs) - stacked + number - carried
    inputs = (*node.inputs[: len(node.inputs) - stacked], node.inputs[empty])
    writer = _Iterations(replace(node, inputs=inputs), attributes["body"])
    nest = writer.nest(outputs[-1][1], result)
    constants = len(writer.operands) - len(inputs)
    return apply("independent_loop", *writer.operands, **attributes, nest=nest, constants=constants)


class _Iterations:
    """Writes elements of values of the body of a loop, whose iteration is the first axis."""

    def __init__(self, node: Node, body: Graph) -> None:
        self.operands = [*node.inputs]
        """What the nest reads: the operands of the loop, then constants of its body."""
        self._body = body
        self._producers = producers(body)
        # After the number of iterations and whether to begin.
        self._operand_of = {value: i for i, value in enumerate(body.inputs, 2)}
        self._number = body.inputs[0] if _carried(node) else None
        self._counts = {
            name: (inner.inputs[0], place)
            for inner in body.nodes
            if inner.op == "extents"
            for place, name in enumerate(inner.binds)
        }
        """The vector, and the place in it, of each extent that data decides."""
        self._writer = NestWriter((), {})
        self._found: dict[tuple[Value, tuple[int, ...]], int] = {}
        self._dims: dict[Dim, int] = {}
        self._reduced: tuple[Dim, ...] = ()
        self._stages: tuple[Stage, ...] = ()
        self._shape: Shape = ()
        self._is_checked_before = not self._counts and not body.constraints
        """Whether nothing is demanded of extents that is known within an iteration alone."""

    def nest(self, value: Value, result: Value) -> Nest:
        """The nest of a result that stacks a value of the body."""
        writer, self._shape = self._writer, result.shape
        element = self._element(value, [writer.index(axis) for axis in range(1, result.rank)])
        checked = any(stage.count is not None for stage in self._stages)
        if len(writer.steps) > MAX_INLINED_STEPS or not (checked or self._is_checked_before):
            raise _NoNestError
        store = Store(element, tuple(range(result.rank)))
        writer.types = [v.type for v in self.operands]
        return writer.nest(result.shape, self._reduced, self._stages, store)

    def _element(self, value: Value, index: Index) -> int:
        key = (value, tuple(index))
        if key not in self._found:
            self._found[key] = self._computed(value, index)
        return self._found[key]

    def _computed(self, value: Value, index: Index) -> int:
        writer, node = self._writer, self._producers.get(value)
        if value is self._number:
            return writer.index(0)
        if value.constant is not None and value.constant.size == 1 and not value.dtype.on_host:
            return writer.constant(value.constant.item(), value.dtype)
        if node is None:
            if value not in self._operand_of:
                self._operand_of[value] = len(self.operands)
                self.operands.append(value)
            return writer.step("load", value.dtype, *index, payload=self._operand_of[value])
        if node.op == "reduce":
            return self._reduction(node, index)
        if node.op == "reshape":
            return self._element(node.inputs[0], self._unreshaped(node, index))
        nest = definition(node)
        if nest is None or nest.stages or len(nest.stores) != 1:
            raise _NoNestError
        if nest.stores[0].axes != (*range(len(nest.kept)),):
            raise _NoNestError
        replaced: dict[tuple[str, object], Body] = {
            ("load", i): self._loaded(v) for i, v in enumerate(node.inputs)
        }
        for step in nest.steps:
            if isinstance(step.payload, Symbolic):
                replaced["dim", step.payload] = self._constant(self._dim(step.payload))
        return writer.copy(nest.steps, replaced, index)[nest.stores[0].value]

    def _loaded(self, value: Value) -> Body:
        return lambda _, index: self._element(value, index)

    def _constant(self, step: int) -> Body:
        return lambda *_: step

    def _unreshaped(self, node: Node, index: Index) -> list[int]:
        """The index into what is reshaped, to which axes of one element may be added."""
        old, new = node.inputs[0].shape, node.output.shape
        left = [at for at, n in zip(index, new, strict=True) if n != 1]
        if without_ones(old) != without_ones(new):
            raise _NoNestError
        return [self._writer.integer(0) if n == 1 else left.pop(0) for n in old]

    def _reduction(self, node: Node, index: Index) -> int:
        """The stage that reduces as much of an axis as its extent is. If data decides that, what
        the body demands of extents is checked there."""
        writer, (x,), axes = self._writer, node.inputs, node.attributes["axes"]
        one = writer.integer(1)
        kept = {writer.index(axis) for axis, n in enumerate(self._shape) if axis and n != 1}
        # Elements of a result that have one sum would each compute it.
        if self._reduced or len(axes) != 1 or not kept.issubset(index):
            raise _NoNestError
        extent = x.shape[axes[0]]
        counted = not self._counts.keys().isdisjoint(symbols_of([extent]))
        self._reduced = (self._bound(extent) if counted else extent,)
        at = [*index]
        at.insert(axes[0], writer.index(len(self._shape)))
        value = self._element(x, at)
        if not counted:
            self._stages = (Stage(node.attributes["kind"], value),)
            return writer.step("stage", x.dtype, payload=0)
        count = writer.step("minimum", INT64, self._dim(extent), self._dim(self._reduced[0]))
        for constraint in self._body.constraints:
            if constraint.or_one:
                raise _NoNestError
            holds = writer.compare("equal", self._dim(constraint.x), self._dim(constraint.y))
            wrong = writer.subtract(one, writer.cast(holds, INT64))
            # An index of an axis of one element, which is 0 if it is right.
            count = writer.add(
                count, writer.step("checked", INT64, wrong, one, payload=constraint.what)
            )
        self._stages = (Stage(node.attributes["kind"], value, count=count),)
        return writer.step("stage", x.dtype, payload=0)

    def _bound(self, extent: Dim) -> Dim:
        """The extent of an axis whose part an extent is that data decides."""
        for node in self._body.nodes:
            if node.op == "slice" and extent in node.output.shape:
                whole = node.inputs[0].shape[node.output.shape.index(extent)]
                if self._counts.keys().isdisjoint(symbols_of([whole])):
                    return whole
        raise _NoNestError

    def _dim(self, dim: Dim) -> int:
        """A dim as a step."""
        if dim not in self._dims:
            self._dims[dim] = self._written(dim)
        return self._dims[dim]

    def _written(self, dim: Dim) -> int:
        writer = self._writer
        if isinstance(dim, int) or self._counts.keys().isdisjoint(symbols_of([dim])):
            return writer.integer(dim)
        total = writer.integer(0)
        for atoms, factor in dim.terms:
            term = writer.integer(factor)
            for atom in atoms:
                term = writer.multiply(term, self._atom(atom))
            total = writer.add(total, term)
        return total

    def _atom(self, atom: Atom | Symbol) -> int:
        if isinstance(atom, Symbol):
            if atom.name not in self._counts:
                return self._writer.step("dim", INT64, payload=symbol(atom.name))
            vector, place = self._counts[atom.name]
            element = self._element(vector, [self._writer.integer(place)])
            return self._writer.cast(element, INT64)
        if atom.kind not in ("minimum", "maximum"):
            raise _NoNestError
        return self._writer.step(atom.kind, INT64, *(self._dim(n) for n in (atom.x, atom.y)))
