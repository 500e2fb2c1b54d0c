"""Where values lie while a graph is lowered, and the steps that store them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ftuner.core.access import kernel_of
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.dim import product
from ftuner.core.dtype import DType
from ftuner.core.expr import operands as operands_of
from ftuner.core.index_expr import Operand
from ftuner.graph.buffers import Buffer, View, as_rows, reshaped_strides, row_major
from ftuner.graph.forms import Form, Lazy, PendingAttention, PendingProduct, identity, stored_as
from ftuner.graph.ir import Graph, TensorType, Value, consumers
from ftuner.graph.steps import AttentionStep, NestStep, ProductStep, Step


class Placement:
    """Forms of values, and memory for those that need it."""

    def __init__(self, graph: Graph, held: Mapping[Value, DType]) -> None:
        self.graph = graph
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
        self.constants: dict[Value, View] = {}
        self._others: dict[tuple[Buffer, DType], Buffer] = {}
        self._copies: dict[tuple[Buffer, Operand, DType], View] = {}

    def type_of(self, value: Value) -> TensorType:
        """The type of a value where it lies in the arena, or among constants."""
        return TensorType(self.held.get(value, value.dtype), value.shape)

    def form(self, value: Value) -> Form:
        if value.constant is None:
            return self.forms[value]
        found = self.constants.get(value)
        if found is None:
            # As native code reads it: a constant may be a view of another, or begin at any byte.
            array = np.require(value.constant, requirements=["C", "A"])
            type_ = self.type_of(value)
            buffer = Buffer("constant", type_.dtype, product(value.shape), 0, array)
            found = self.constants[value] = View(buffer, row_major(type_))
        return found

    def view(self, value: Value, dtype: DType | None = None) -> View:
        """The value in memory, wherever; in an element type, if one is given."""
        form = self.form(value)
        if not isinstance(form, View):
            place = self.place(value)
            if dtype not in (None, place.layout.dtype) and self.uses.get(value) == 1:
                assert dtype is not None
                place = self.apart(TensorType(dtype, value.shape))
            form = self.forms[value] = self.store(form, place)
        return form if dtype is None else self.converted(form, dtype)

    def converted(self, view: View, dtype: DType) -> View:
        """The same elements in a type; constants are converted when they are moved."""
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
        """The value in memory, in row-major order; in an element type, if one is given."""
        view = self.view(value, dtype)
        if view.contiguous:
            return view
        if view is not self.forms.get(value):
            return self.copied(view, self.apart(TensorType(view.layout.dtype, view.shape)))
        view = self.forms[value] = self.copied(view, self.place(value))
        return view if dtype is None else self.converted(view, dtype)

    def place(self, value: Value) -> View:
        """Memory for a value: the caller's if it is an output and nothing else is there yet, unless
        others read it as it is held elsewhere."""
        number = self.output_numbers.get(value)
        elements = product(value.shape)
        type_ = self.type_of(value)
        alone = type_.dtype == value.dtype or self.uses.get(value, 0) <= 1
        if number is not None and alone and number not in self._written:
            return View(Buffer("output", value.dtype, elements, number), row_major(value.type))
        return self.apart(type_)

    def apart(self, type_: TensorType) -> View:
        """Memory of the arena."""
        return View(Buffer("arena", type_.dtype, product(type_.shape)), row_major(type_))

    def add(self, step: Step) -> None:
        self.steps.append(step)
        self._written |= {b.number for b in step.writes if b.kind == "output"}

    def output(self, number: int, value: Value) -> View:
        view = self.view(value)
        if view.buffer.kind == "output" and view.buffer.number == number and view.contiguous:
            return view
        buffer = Buffer("output", value.dtype, product(value.shape), number)
        return self.copied(view, View(buffer, row_major(value.type)))

    # Steps.

    def store(self, form: Lazy | PendingProduct | PendingAttention, target: View) -> View:
        """Compute a value to its place."""
        if isinstance(form, PendingAttention):
            strides = reshaped_strides(target, form.type.shape)
            dtype = form.q.layout.dtype
            if strides is None or target.layout.dtype != dtype:
                whole = TensorType(dtype, target.shape)
                return self.copied(self.store(form, self.apart(whole)), target)
            out = replace(target.layout, shape=form.type.shape, strides=strides)
            self.add(
                AttentionStep(form.weighting.title, form.q, form.k, form.v, form.mask,
                              View(target.buffer, out), form.weighting)
            )  # fmt: skip
        elif isinstance(form, PendingProduct):
            dtype = form.a.layout.dtype
            # All rows are walked as one axis, and written in the type that is multiplied.
            rows = as_rows(target) if form.flat else target
            if target.layout.dtype != dtype or rows is None:
                whole = TensorType(dtype, form.result.shape)
                return self.copied(self.store(form, self.apart(whole)), target)
            expr = form.epilogue.expr
            views = {f"x{i}": v for i, v in enumerate(form.epilogue.operands, 1)}
            # Records hold them in the order of their first use.
            ordered = tuple(views[o.name] for o in operands_of(expr))
            self.add(ProductStep(form.title, form.a, form.b, rows, expr, ordered))
        else:
            self.nest_step(form, target)
        return target

    def copied(self, view: View, target: View) -> View:
        self.nest_step(identity(view), target)
        return target

    def nest_step(self, form: Lazy, target: View) -> None:
        kernel = kernel_of(stored_as(form.nest, target.layout.dtype), [target.layout])
        operands = tuple(form.views[n].buffer for n in operand_numbers(kernel))
        self.add(NestStep(form.title, kernel, operands, (target.buffer,)))
