"""Where values lie while a graph is lowered, and the steps that store them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ftuner.core.affine import kernel_of
from ftuner.core.dim import product
from ftuner.core.expr import operands as operands_of
from ftuner.core.schedule import operand_numbers
from ftuner.graph.buffers import Buffer, View, collapses, reshaped_strides, row_major
from ftuner.graph.forms import Form, Lazy, PendingAttention, PendingProduct, identity
from ftuner.graph.ir import Graph, TensorType, Value, consumers
from ftuner.graph.steps import AttentionStep, NestStep, ProductStep, Step


class Placement:
    """Forms of values, and memory for those that need it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.forms: dict[Value, Form] = {}
        self.uses = {value: len(nodes) for value, nodes in consumers(graph).items()}
        self.output_numbers: dict[Value, int] = {}
        for number, (_, value) in enumerate(graph.outputs):
            self.uses[value] = self.uses.get(value, 0) + 1
            self.output_numbers.setdefault(value, number)
        self.constants: dict[Value, View] = {}

    def form(self, value: Value) -> Form:
        if value.constant is None:
            return self.forms[value]
        found = self.constants.get(value)
        if found is None:
            # As native code reads it: a constant may be a view of another, or begin at any byte.
            array = np.require(value.constant, requirements=["C", "A"])
            buffer = Buffer("constant", value.dtype, product(value.shape), 0, array)
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
        return self.apart(value.type)

    def apart(self, type_: TensorType) -> View:
        """Memory of the arena."""
        return View(Buffer("arena", type_.dtype, product(type_.shape)), row_major(type_))

    def is_output(self, number: int) -> bool:
        return any(b.kind == "output" and b.number == number for s in self.steps for b in s.writes)

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
            if strides is None:
                whole = replace(form.type, shape=target.shape)
                return self.copied(self.store(form, self.apart(whole)), target)
            out = replace(target.layout, shape=form.type.shape, strides=strides)
            self.steps.append(
                AttentionStep(form.weighting.title, form.q, form.k, form.v, form.mask,
                              View(target.buffer, out), form.weighting)
            )  # fmt: skip
        elif isinstance(form, PendingProduct):
            if form.flat and not collapses(target):
                # All rows are walked as one axis.
                return self.copied(self.store(form, self.apart(form.result.type)), target)
            expr = form.epilogue.expr
            views = {f"x{i}": v for i, v in enumerate(form.epilogue.operands, 1)}
            # Records hold them in the order of their first use.
            ordered = tuple(views[o.name] for o in operands_of(expr))
            self.steps.append(ProductStep(form.title, form.a, form.b, target, expr, ordered))
        else:
            self.nest_step(form, target)
        return target

    def copied(self, view: View, target: View) -> View:
        self.nest_step(identity(view), target)
        return target

    def nest_step(self, form: Lazy, target: View) -> None:
        kernel = kernel_of(form.nest, [target.layout])
        operands = tuple(form.views[n].buffer for n in operand_numbers(kernel))
        self.steps.append(NestStep(form.title, kernel, operands, (target.buffer,)))
