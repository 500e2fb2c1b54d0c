"""From a graph to steps: what is fused with what, and where every tensor lies.

Nodes are visited once, in order. What an injective operator computes stays an expression until
somebody needs it in memory: a consumer with loops of its own takes it into its loads (a prologue).
A matrix product, or a nest with reductions, likewise waits until it is known whether the only
consumer is injective, and then takes it into its stores (an epilogue). Transpositions, slices,
broadcasts and reshapes of what is in memory are views. Everything else is written to a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftuner.core.affine import Kernel, kernel_of
from ftuner.core.definition import Body, Index, Nest, Stage, Store, Writer
from ftuner.core.dim import Dim, Shape, product, row_major_strides
from ftuner.core.dtype import DTYPES
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.schedule import operand_numbers
from ftuner.errors import UnsupportedOperatorError
from ftuner.graph.buffers import (
    Buffer,
    View,
    broadcast_strides,
    collapses,
    permuted,
    reshaped_strides,
    row_major,
)
from ftuner.graph.epilogue import MAX_OPERANDS, Epilogue, extended
from ftuner.graph.ir import Graph, Node, Value, consumers
from ftuner.graph.operators import OPERATORS

EXPENSIVE = frozenset(
    {"exp", "log", "sin", "cos", "tanh", "erf", "sigmoid", "gelu", "gelu_tanh", "power"}
)
"""Not worth computing twice."""
MAX_INLINED_STEPS = 160
"""Longer expressions are written to memory: compiling takes time for each step."""
MAX_REPEATED_STEPS = 8
"""An expression up to this long is computed again by each of its consumers."""


@dataclass(frozen=True)
class NestStep:
    """Loops over a kernel; operands and results in the order of its buffers."""

    title: str
    kernel: Kernel
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.operands

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return self.results


@dataclass(frozen=True)
class ProductStep:
    """A matrix product: `c = epilogue(a @ b, *operands)`."""

    title: str
    a: View
    b: View
    c: View
    epilogue: Expr
    operands: tuple[View, ...]

    @property
    def views(self) -> tuple[View, ...]:
        return (self.a, self.b, self.c, *self.operands)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.a.buffer, self.b.buffer, *(v.buffer for v in self.operands))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.c.buffer,)


@dataclass(frozen=True)
class AttentionStep:
    """`out = softmax(q @ k * scale + mask) @ v`."""

    title: str
    q: View
    k: View
    v: View
    mask: View | None
    """Of the shape of the scores."""
    out: View
    scale: float

    @property
    def views(self) -> tuple[View, ...]:
        """All operands and the result, in the order of the kernel's buffers."""
        mask = () if self.mask is None else (self.mask,)
        return (self.q, self.k, self.v, *mask, self.out)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return tuple(v.buffer for v in self.views[:-1])

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.out.buffer,)


@dataclass(frozen=True)
class TopKStep:
    """The `wanted` best of each row of `count` elements, in order, and where they were."""

    title: str
    x: View
    """In row-major order, but for an offset."""
    values: Buffer
    positions: Buffer
    rows: Dim
    count: Dim
    wanted: Dim
    distance: Dim
    """Elements between those of one row."""
    largest: bool

    @property
    def operands(self) -> tuple[Buffer, ...]:
        return (self.x.buffer,)

    @property
    def results(self) -> tuple[Buffer, ...]:
        return (self.values, self.positions)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.operands

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return self.results

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        return (self.count, self.wanted, self.distance, self.x.layout.offset)


Step = NestStep | ProductStep | AttentionStep | TopKStep


@dataclass(frozen=True)
class Lowered:
    """A graph as steps that run one after the other."""

    graph: Graph
    steps: tuple[Step, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[View, ...]


@dataclass(frozen=True)
class _Lazy:
    """A value that is an expression: a nest and what it reads."""

    nest: Nest
    views: tuple[View, ...]
    title: str

    @property
    def injective(self) -> bool:
        return not self.nest.stages

    @property
    def expensive(self) -> bool:
        return any(s.op in EXPENSIVE for s in self.nest.steps)


@dataclass(frozen=True)
class _Product:
    """A matrix product whose epilogue may still grow."""

    a: View
    b: View
    result: Value
    flat: bool
    """Whether all axes of the result but the last are one."""
    epilogue: Epilogue
    title: str


@dataclass(frozen=True)
class _Attention:
    """An attention that has no place for its result yet."""

    q: View
    k: View
    v: View
    mask: View | None
    scale: float


_Form = View | _Lazy | _Product | _Attention


def lower(graph: Graph) -> Lowered:
    """Fuse a graph and lay its tensors out.

    Raises:
        UnsupportedOperatorError: an operator without a schedule.
    """
    return _Lowering(graph).run()


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.forms: dict[Value, _Form] = {}
        self.uses = {value: len(nodes) for value, nodes in consumers(graph).items()}
        self.output_numbers: dict[Value, int] = {}
        for number, (_, value) in enumerate(graph.outputs):
            self.uses[value] = self.uses.get(value, 0) + 1
            self.output_numbers.setdefault(value, number)
        self.constants: dict[Value, View] = {}

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
        for node in self.graph.nodes:
            if node.op == "top_k":
                self.top_k(node)
                continue
            special = _SPECIAL.get(node.op)
            form = special(self, node) if special is not None else None
            self.forms[node.output] = form if form is not None else self.fused(node)
        outputs = [
            self.output(number, value) for number, (_, value) in enumerate(self.graph.outputs)
        ]
        return Lowered(self.graph, tuple(self.steps), tuple(inputs), tuple(outputs))

    # Forms of values.

    def form(self, value: Value) -> _Form:
        if value.constant is None:
            return self.forms[value]
        found = self.constants.get(value)
        if found is None:
            buffer = Buffer("constant", value.dtype, product(value.shape), 0, value.constant)
            found = self.constants[value] = View(buffer, row_major(value.type))
        return found

    def view(self, value: Value) -> View:
        """The value in memory, wherever."""
        form = self.form(value)
        if not isinstance(form, View):
            form = self.forms[value] = self.store(form, self.place(value))
        return form

    def contiguous(self, value: Value) -> View:
        """The value in memory, in row-major order."""
        view = self.view(value)
        if not view.contiguous:
            view = self.forms[value] = self.copied(view, self.place(value))
        return view

    def place(self, value: Value) -> View:
        """Memory for a value: the caller's if it is an output and nothing else is there yet."""
        number = self.output_numbers.get(value)
        elements = product(value.shape)
        if number is not None and not self.is_output(number):
            return View(Buffer("output", value.dtype, elements, number), row_major(value.type))
        return View(Buffer("arena", value.dtype, elements), row_major(value.type))

    def is_output(self, number: int) -> bool:
        return any(b.kind == "output" and b.number == number for s in self.steps for b in s.writes)

    def output(self, number: int, value: Value) -> View:
        view = self.view(value)
        if view.buffer.kind == "output" and view.buffer.number == number and view.contiguous:
            return view
        buffer = Buffer("output", value.dtype, product(value.shape), number)
        return self.copied(view, View(buffer, row_major(value.type)))

    # Steps.

    def store(self, form: _Lazy | _Product | _Attention, target: View) -> View:
        """Compute a value to its place."""
        if isinstance(form, _Attention):
            self.steps.append(
                AttentionStep("attention", form.q, form.k, form.v, form.mask, target, form.scale)
            )
        elif isinstance(form, _Product):
            self.steps.append(
                ProductStep(
                    form.title,
                    form.a,
                    form.b,
                    target,
                    form.epilogue.expr,
                    form.epilogue.operands,
                )
            )
        else:
            self.nest_step(form, target)
        return target

    def copied(self, view: View, target: View) -> View:
        self.nest_step(_identity(view), target)
        return target

    def nest_step(self, form: _Lazy, target: View) -> None:
        kernel = kernel_of(form.nest, [target.layout])
        operands = tuple(form.views[n].buffer for n in operand_numbers(kernel))
        self.steps.append(NestStep(form.title, kernel, operands, (target.buffer,)))

    # Nodes.

    def fused(self, node: Node) -> _Form:
        """A node with a definition: into what it reads if that can still grow, else a nest that
        takes in what it reads."""
        for position, value in enumerate(node.inputs):
            form = self.forms.get(value)
            if self.uses.get(value) != 1 or node.inputs.count(value) != 1:
                continue
            if isinstance(form, _Product):
                grown = self.product_epilogue(node, position, form)
                if grown is not None:
                    return grown
            if isinstance(form, _Lazy) and not form.injective and form.nest.stores[0].axes:
                absorbed = self.nest_epilogue(node, position, form)
                if absorbed is not None:
                    return absorbed
        return self.nest(node)

    def nest(self, node: Node) -> _Lazy:
        """The nest of a node, with what it reads in its loads wherever that pays."""
        types = [v.type for v in node.inputs]
        define = OPERATORS[node.op].define
        assert define is not None
        nest = define(types, node.attributes, [v.type for v in node.outputs])
        joiner = _Joiner()
        loads: dict[tuple[str, object], Body] = {
            ("load", i): joiner.load(self.prologue(node, value, nest))
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

    def prologue(self, node: Node, value: Value, nest: Nest) -> View | _Lazy:
        """How a nest reads an operand: as an expression, or from memory."""
        form = self.form(value)
        if not isinstance(form, _Lazy):
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

    def nest_epilogue(self, node: Node, position: int, form: _Lazy) -> _Lazy | None:
        """An injective node taken into the stores of the reductions that it reads."""
        define = OPERATORS[node.op].define
        if define is None:
            return None
        own = define([v.type for v in node.inputs], node.attributes, [node.output.type])
        store = form.nest.stores[0]
        if own.stages or own.kept != node.inputs[position].shape:
            return None
        # Only if each element is used where it is made.
        identity = tuple(_index_steps(own))
        for step in own.steps:
            if (step.op, step.payload) == ("load", position) and step.arguments != identity:
                return None
        joiner = _Joiner()
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
                loads["load", i] = joiner.load(self.prologue(node, operand, own))
        result = writer.copy(own.steps, loads, [at[axis] for axis in store.axes])
        stages = tuple(Stage(s.kind, went[s.value], s.last) for s in form.nest.stages)
        stores = (Store(result[own.stores[0].value], store.axes),)
        kept, reduced = form.nest.kept, form.nest.reduced
        return joiner.lazy(Nest(kept, reduced, (), (), stages, stores), f"{form.title} + {node.op}")

    def product_epilogue(self, node: Node, position: int, form: _Product) -> _Product | None:
        """A node taken into the epilogue of the product that it reads."""
        if node.output.shape != form.result.shape or node.output.dtype != form.result.dtype:
            return None
        grown = extended(form.epilogue, node, position, form.flat, self.epilogue_operand)
        if grown is None or len(grown.operands) > MAX_OPERANDS:
            return None
        return replace(form, epilogue=grown, title=f"{form.title} + {node.op}")

    def epilogue_operand(self, value: Value) -> View:
        return self.view(value)

    def matmul(self, node: Node) -> _Form | None:
        a, b = node.inputs
        if a.dtype.name not in DTYPES or 0 in (*a.shape, *b.shape):
            return None
        left, right = self.view(a), self.view(b)
        flat = b.rank == 2 and collapses(left)
        return _Product(left, right, node.output, flat, Epilogue(ACCUMULATOR, ()), "matmul")

    def attention(self, node: Node) -> _Form | None:
        q, k, v, *masks = node.inputs
        views = [self.view(q), self.view(k), self.view(v)]
        if views[0].layout.strides[-1] != 1:
            views[0] = self.contiguous(q)
        mask = None
        if masks:
            given = self.view(masks[0])
            if given.layout.strides[-1] != 1:
                given = self.contiguous(masks[0])
            shape = (*q.shape[:-1], k.shape[-1])
            strides = broadcast_strides(given.layout, shape)
            mask = View(given.buffer, replace(given.layout, shape=shape, strides=strides))
        return _Attention(views[0], views[1], views[2], mask, node.attributes["scale"])

    def reshape(self, node: Node) -> _Form | None:
        (value,) = node.inputs
        form = self.form(value)
        shape = node.attributes["shape"]
        if (
            isinstance(form, _Lazy)
            and form.injective
            and _without_ones(value.shape) == (_without_ones(shape))
        ):
            return self.ones_reshaped(node, form)
        view = self.view(value)
        strides = reshaped_strides(view, shape)
        if strides is None:
            view = self.contiguous(value)
            strides = row_major_strides(shape)
        return View(view.buffer, replace(view.layout, shape=shape, strides=strides))

    def ones_reshaped(self, node: Node, form: _Lazy) -> _Lazy:
        """Axes of one element come and go: still an expression."""
        (value,) = node.inputs
        shape = node.attributes["shape"]
        real = [i for i, extent in enumerate(shape) if extent != 1]
        joiner = _Joiner()

        def body(writer: Writer, index: Index) -> int:
            left = iter(real)
            at = [writer.integer(0) if n == 1 else index[next(left)] for n in value.shape]
            return joiner.load(form)(writer, at)

        joiner.writer, nest = _written(shape, body)
        return joiner.lazy(nest, form.title)

    def transpose(self, node: Node) -> _Form | None:
        (value,) = node.inputs
        perm = node.attributes["perm"]
        form = self.form(value)
        waits = isinstance(form, (_Product, _Attention)) and self.uses.get(value) == 1
        if waits and perm[-1] == len(perm) - 1:
            assert isinstance(form, (_Product, _Attention))
            # It writes its rows where the transposition wants them.
            target = self.place(node.output)
            self.store(form, permuted(target, [perm.index(a) for a in range(len(perm))]))
            return target
        if isinstance(form, _Lazy) and form.injective:
            return None
        return permuted(self.view(value), perm)

    def slice(self, node: Node) -> _Form | None:
        (value,) = node.inputs
        if isinstance(self.form(value), _Lazy):
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

    def broadcast(self, node: Node) -> _Form | None:
        (value,) = node.inputs
        if isinstance(self.form(value), _Lazy):
            return None
        view = self.view(value)
        strides = broadcast_strides(view.layout, node.output.shape)
        return View(view.buffer, replace(view.layout, shape=node.output.shape, strides=strides))

    def top_k(self, node: Node) -> None:
        """Both results, straight to memory."""
        (x,) = node.inputs
        axis = node.attributes["axis"]
        values, positions = (self.place(v) for v in node.outputs)
        distance = product(x.shape[axis + 1 :])
        rows = product(x.shape[:axis]) * distance
        self.steps.append(
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

    def scatter(self, node: Node) -> _Form | None:
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

    def concat(self, node: Node) -> _Form | None:
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
    "attention": _Lowering.attention,
    "reshape": _Lowering.reshape,
    "transpose": _Lowering.transpose,
    "slice": _Lowering.slice,
    "broadcast": _Lowering.broadcast,
    "concat": _Lowering.concat,
    "scatter_elements": _Lowering.scatter,
    "scatter_nd": _Lowering.scatter,
}


class _Joiner:
    """Expressions put together into one, with what all of them read."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.views: list[View] = []
        self.titles: list[str] = []

    def operand(self, view: View) -> int:
        for number, known in enumerate(self.views):
            if known.buffer is view.buffer and known.layout == view.layout:
                return number
        self.views.append(view)
        return len(self.views) - 1

    def load(self, form: View | _Lazy) -> Body:
        """What the load of an operand becomes."""
        if isinstance(form, View):
            number, dtype = self.operand(form), form.layout.dtype
            return lambda writer, index: writer.step("load", dtype, *index, payload=number)
        numbers = self.numbers(form)
        if form.title:
            self.titles.append(form.title)
        value = form.nest.stores[0].value
        return lambda writer, index: writer.copy(form.nest.steps, numbers, index)[value]

    def numbers(self, form: _Lazy) -> dict[tuple[str, object], Body]:
        """Its loads, as loads of the operands that they are here."""
        return {("load", i): self.load(view) for i, view in enumerate(form.views)}

    def lazy(self, nest: Nest, title: str) -> _Lazy:
        operands = tuple(v.layout for v in self.views)
        return _Lazy(
            replace(nest, operands=operands, steps=tuple(self.writer.steps)),
            tuple(self.views),
            title,
        )


def _has_schedule(node: Node) -> bool:
    known = node.op in _SPECIAL or node.op == "top_k"
    return known or OPERATORS[node.op].define is not None


def _written(shape: Shape, body: Body) -> tuple[Writer, Nest]:
    """The nest of an element's expression, and its writer."""
    writer = Writer()
    index = [writer.index(axis) for axis in range(len(shape))]
    value = body(writer, index)
    axes = tuple(range(len(shape)))
    return writer, Nest(shape, (), (), (), (), (Store(value, axes),))


def _identity(view: View) -> _Lazy:
    """A copy."""
    joiner = _Joiner()
    joiner.writer, nest = _written(view.shape, joiner.load(view))
    return joiner.lazy(nest, "copy")


def _index_steps(nest: Nest) -> list[int]:
    """The steps that are the index along each axis."""
    found = {s.payload: i for i, s in enumerate(nest.steps) if s.op == "index"}
    return [found.get(axis, -1) for axis in range(len(nest.axes))]


def _without_ones(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)
