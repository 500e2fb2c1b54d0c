"""From a graph to steps: what is fused with what, and where every tensor lies.

Nodes are visited once, in order. What an injective operator computes stays an expression until
somebody needs it in memory: a consumer with loops of its own takes it into its loads (a prologue).
A matrix product, or a nest with reductions, likewise waits until it is known whether the only
consumer is injective, and then takes it into its stores (an epilogue). Transpositions, slices,
broadcasts and reshapes of what is in memory are views. Everything else is written to a buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ftuner.core.attention_weights import Weighting
from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.dim import Dim, product, row_major_strides
from ftuner.core.dtype import INT8, DType
from ftuner.core.expr import ACCUMULATOR, OperandKind, flatten
from ftuner.core.index_expr import Body, Nest, Stage, Store
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.buffers import (
    Buffer,
    View,
    as_rows,
    permuted,
    reshaped_strides,
    row_major,
    spread,
)
from ftuner.graph.epilogue import MAX_EPILOGUE_STEPS, Epilogue, extended
from ftuner.graph.forms import (
    MAX_INLINED_STEPS,
    MAX_REPEATED_STEPS,
    Form,
    Joiner,
    Lazy,
    PendingAttention,
    PendingProduct,
    index_steps,
    ones_reshaped,
    without_ones,
)
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.operators import OPERATORS
from ftuner.graph.placement import Placement
from ftuner.graph.steps import Lowered, TopKStep


def lower(graph: Graph, held: Mapping[Value, DType] | None = None) -> Lowered:
    """Fuse a graph and lay its tensors out. `held`: element types of values where they lie in
    memory, other than those that they are computed in; see `graph.precision`.

    Raises:
        UnsupportedOperatorError: an operator without a schedule.
    """
    return _Lowering(graph, held or {}).run()


class _Lowering(Placement):
    def run(self) -> Lowered:
        inputs = []
        for number, value in enumerate(self.graph.inputs):
            buffer = Buffer("input", value.dtype, product(value.shape), number)
            inputs.append(buffer)
            self.forms[value] = View(buffer, row_major(value.type))
        unknown = [n for n in self.graph.nodes if not _has_schedule(n)]
        if unknown:
            names = sorted({n.op for n in unknown})
            raise UnsupportedOperatorError(f"no schedule for {', '.join(names)}")
        left = dict(self.uses)
        for node in self.graph.nodes:
            if node.op == "top_k":
                self.top_k(node)
            else:
                special = _SPECIAL.get(node.op)
                form = special(self, node) if special is not None else None
                self.forms[node.output] = form if form is not None else self.fused(node)
            for value in node.inputs:
                left[value] -= 1
                if not left[value]:
                    self.forms.pop(value, None)
        outputs = [
            self.output(number, value) for number, (_, value) in enumerate(self.graph.outputs)
        ]
        return Lowered(self.graph, tuple(self.steps), tuple(inputs), tuple(outputs))

    # Nodes.

    def fused(self, node: Node) -> Form:
        """A node with a definition: into what it reads if that can still grow, else a nest that
        takes in what it reads."""
        for position, value in enumerate(node.inputs):
            form = self.forms.get(value)
            if self.uses.get(value) != 1 or node.inputs.count(value) != 1:
                continue
            if isinstance(form, PendingProduct):
                grown = self.product_epilogue(node, position, form)
                if grown is not None:
                    return grown
            if isinstance(form, Lazy) and not form.injective and form.nest.stores[0].axes:
                absorbed = self.nest_epilogue(node, position, form)
                if absorbed is not None:
                    return absorbed
        return self.nest(node)

    def nest(self, node: Node) -> Lazy:
        """The nest of a node, with what it reads in its loads wherever that pays."""
        types = [v.type for v in node.inputs]
        define = OPERATORS[node.op].define
        assert define is not None
        nest = define(types, node.attributes, [v.type for v in node.outputs])
        joiner = Joiner()
        loads: dict[tuple[str, object], Body] = {
            ("load", i): joiner.load(self.prologue(node, value, nest), value.dtype)
            for i, value in enumerate(node.inputs)
        }
        writer = joiner.writer
        at = [writer.index(axis) for axis in range(len(nest.axes))]
        went = writer.copy(nest.steps, loads, at)
        stages = tuple(Stage(s.kind, went[s.value], s.last) for s in nest.stages)
        stores = tuple(
            Store(went[s.value], s.axes, tuple(went[a] for a in s.at), s.combine)
            for s in nest.stores
        )
        title = " + ".join([*joiner.titles, node.op])
        return joiner.lazy(Nest(nest.kept, nest.reduced, (), (), stages, stores), title)

    def prologue(self, node: Node, value: Value, nest: Nest) -> View | Lazy:
        """How a nest reads an operand: as an expression, or from memory."""
        form = self.form(value)
        if not isinstance(form, Lazy):
            return self.view(value)
        if not form.injective or len(form.nest.steps) > MAX_INLINED_STEPS:
            return self.view(value)
        again = (
            self.uses.get(value, 0) > 1
            or len(nest.stages) > 1
            or product(value.shape) != product(nest.axes)
        )
        if again and (form.expensive or len(form.nest.steps) > MAX_REPEATED_STEPS):
            return self.view(value)
        return form

    def nest_epilogue(self, node: Node, position: int, form: Lazy) -> Lazy | None:
        """An injective node taken into the stores of the reductions that it reads."""
        define = OPERATORS[node.op].define
        if define is None:
            return None
        own = define([v.type for v in node.inputs], node.attributes, [node.output.type])
        store = form.nest.stores[0]
        if own.stages or own.kept != node.inputs[position].shape:
            return None
        if len(form.nest.steps) + len(own.steps) > MAX_INLINED_STEPS:
            return None
        # Only if each element is used where it is made.
        own_index = tuple(index_steps(own))
        for step in own.steps:
            if (step.op, step.payload) == ("load", position) and step.arguments != own_index:
                return None
        joiner = Joiner()
        writer = joiner.writer
        numbers = joiner.numbers(form)
        at = [writer.index(axis) for axis in range(len(form.nest.axes))]
        went = writer.copy(form.nest.steps, numbers, at)
        value = went[store.value]
        loads: dict[tuple[str, object], Body] = {}
        for i, operand in enumerate(node.inputs):
            if i == position:
                loads["load", i] = lambda w, index: value
            else:
                loads["load", i] = joiner.load(self.prologue(node, operand, own), operand.dtype)
        result = writer.copy(own.steps, loads, [at[axis] for axis in store.axes])
        stages = tuple(Stage(s.kind, went[s.value], s.last) for s in form.nest.stages)
        stores = (Store(result[own.stores[0].value], store.axes),)
        kept, reduced = form.nest.kept, form.nest.reduced
        return joiner.lazy(Nest(kept, reduced, (), (), stages, stores), f"{form.title} + {node.op}")

    def product_epilogue(
        self, node: Node, position: int, form: PendingProduct
    ) -> PendingProduct | None:
        """A node taken into the epilogue of the product that it reads."""
        if node.output.shape != form.result.shape or node.output.dtype != form.result.dtype:
            return None
        dtype = form.a.layout.dtype
        if self.type_of(node.output).dtype != dtype:
            # What a product writes is rounded to what it multiplies.
            return None

        def operand(value: Value, kind: OperandKind) -> View:
            # A matrix is of the type that is multiplied; a number for each column may be wider.
            return self.rows(value, dtype if kind == "matrix" else value.dtype)

        grown = extended(form.epilogue, node, position, form.flat, operand)
        if grown is None or len(grown.operands) > MAX_OPERANDS:
            return None
        if len(flatten(grown.expr)) > MAX_EPILOGUE_STEPS:
            return None
        return replace(form, epilogue=grown, title=f"{form.title} + {node.op}")

    def rows(self, value: Value, dtype: DType) -> View:
        """The value in memory as one axis of contiguous rows, evenly apart."""
        view = self.view(value, dtype)
        rows = as_rows(view) if view.layout.strides[-1] == 1 else None
        if rows is None:
            rows = as_rows(self.contiguous(value, dtype))
        assert rows is not None
        return rows

    def matmul(self, node: Node) -> Form | None:
        a, b = node.inputs
        if a.dtype.kind != "float":
            return None
        dtype = self.type_of(node.output).dtype
        left, right = self.view(a, dtype), self.view(b)
        if right.layout.dtype != INT8:
            right = self.converted(right, dtype)
        flat = b.rank == 2
        if flat:
            # All rows are one product, so that they have to lie evenly apart.
            in_place = as_rows(left) if node.op == "matmul" else None
            left = in_place or self.rows(a, dtype)
        return PendingProduct(left, right, node.output, flat, Epilogue(ACCUMULATOR, ()), node.op)

    def attention(self, node: Node) -> Form | None:
        q, k, v, *masks = node.inputs
        weighting = Weighting(**node.attributes)
        dtype = self.type_of(node.output).dtype
        rows = self.view(q, dtype)
        if rows.layout.strides[-1] != 1:
            rows = self.contiguous(q, dtype)
        batch = q.shape[:-2]
        mask = None
        if masks:
            mask = spread(self.row_of_steps(masks[0], k.shape[-1]), (*q.shape[:-1], k.shape[-1]))
        keys, values = (spread(self.view(x, dtype), (*batch, *x.shape[-2:])) for x in (k, v))
        return PendingAttention(rows, keys, values, mask, node.output.type, weighting)

    def row_of_steps(self, mask: Value, steps: Dim) -> View:
        """A mask with a contiguous element for each step, which it may leave to broadcasting."""
        view = self.view(mask)
        if mask.rank and mask.shape[-1] == steps and view.layout.strides[-1] == 1:
            return view
        shape = (*mask.shape[:-1], steps)
        return self.copied(spread(view, shape), self.apart(TensorType(view.layout.dtype, shape)))

    def reshape(self, node: Node) -> Form | None:
        (value,) = node.inputs
        form = self.form(value)
        shape = node.attributes["shape"]
        if isinstance(form, PendingAttention) and self.uses.get(value) == 1:
            # It finds its own axes in what this is stored to.
            return form
        if (
            isinstance(form, Lazy)
            and form.injective
            and without_ones(value.shape) == (without_ones(shape))
        ):
            return ones_reshaped(form, value.shape, shape)
        if not isinstance(form, View) and self.uses.get(value) == 1:
            # Nobody reads it in its own shape: it is computed to where it is wanted.
            place = self.place(node.output)
            self.store(
                form, View(place.buffer, row_major(replace(value.type, dtype=place.layout.dtype)))
            )
            return place
        view = self.view(value)
        strides = reshaped_strides(view, shape)
        if strides is None:
            view = self.contiguous(value)
            strides = row_major_strides(shape)
        return View(view.buffer, replace(view.layout, shape=shape, strides=strides))

    def transpose(self, node: Node) -> Form | None:
        (value,) = node.inputs
        perm = node.attributes["perm"]
        form = self.form(value)
        rows_apart = isinstance(form, PendingAttention) or (
            isinstance(form, PendingProduct) and not form.flat
        )
        waits = rows_apart and self.uses.get(value) == 1
        if waits and perm[-1] == len(perm) - 1:
            assert isinstance(form, (PendingProduct, PendingAttention))
            # It writes its rows where the transposition wants them.
            target = self.place(node.output)
            self.store(form, permuted(target, [perm.index(a) for a in range(len(perm))]))
            return target
        if isinstance(form, Lazy) and form.injective:
            return None
        return permuted(self.view(value), perm)

    def slice(self, node: Node) -> Form | None:
        (value,) = node.inputs
        if isinstance(self.form(value), Lazy):
            return None
        layout = self.view(value).layout
        offset = layout.offset
        strides = []
        for start, step, stride in zip(
            node.attributes["starts"], node.attributes["steps"], layout.strides, strict=True
        ):
            offset = offset + start * stride
            strides.append(stride * step)
        shape = node.output.shape
        return View(
            self.view(value).buffer,
            replace(layout, shape=shape, strides=tuple(strides), offset=offset),
        )

    def broadcast(self, node: Node) -> Form | None:
        (value,) = node.inputs
        if isinstance(self.form(value), Lazy):
            return None
        return spread(self.view(value), node.output.shape)

    def top_k(self, node: Node) -> None:
        """Both results, straight to memory."""
        (x,) = node.inputs
        axis = node.attributes["axis"]
        values, positions = (self.place(v) for v in node.outputs)
        distance = product(x.shape[axis + 1 :])
        rows = product(x.shape[:axis]) * distance
        self.add(
            TopKStep(
                "top_k",
                self.contiguous(x),
                values.buffer,
                positions.buffer,
                rows,
                x.shape[axis],
                node.attributes["k"],
                distance,
                node.attributes["largest"],
            )
        )
        for value, place in zip(node.outputs, (values, positions), strict=True):
            self.forms[value] = place

    def scatter(self, node: Node) -> Form | None:
        """A copy of the first operand, into which the updates are written in their order."""
        x = node.inputs[0]
        place = self.place(node.output)
        form = self.form(x)
        if isinstance(form, View) or self.uses.get(x, 0) > 1:
            self.copied(self.view(x), place)
        else:
            self.forms[x] = self.store(form, place)
        self.nest_step(self.nest(node), place)
        return place

    def concat(self, node: Node) -> Form | None:
        """Each operand is computed to its part of the result."""
        axis = node.attributes["axis"]
        whole = self.place(node.output)
        begin: Dim = 0
        for value in node.inputs:
            offset = whole.layout.offset + begin * whole.layout.strides[axis]
            part = View(whole.buffer, replace(whole.layout, shape=value.shape, offset=offset))
            form = self.form(value)
            if isinstance(form, View) or self.uses.get(value, 0) > 1:
                self.copied(self.view(value), part)
            else:
                self.forms[value] = self.store(form, part)
            begin = begin + value.shape[axis]
        return whole


_SPECIAL = {
    "matmul": _Lowering.matmul,
    "int8_matmul": _Lowering.matmul,
    "attention": _Lowering.attention,
    "reshape": _Lowering.reshape,
    "transpose": _Lowering.transpose,
    "slice": _Lowering.slice,
    "broadcast": _Lowering.broadcast,
    "concat": _Lowering.concat,
    "scatter_elements": _Lowering.scatter,
    "scatter_nd": _Lowering.scatter,
}


def _has_schedule(node: Node) -> bool:
    known = node.op in _SPECIAL or node.op == "top_k"
    return known or OPERATORS[node.op].define is not None
