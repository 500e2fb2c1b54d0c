"""Pairwise coupling in LLVM IR: `graph.ops.learning.coupled`, row by row.

A task is a block of rows. `dims` holds `CouplingStep.parameters()`; `buffers` the probabilities of
pairs, those of classes, and for each task a matrix Q and the product of Q and the probabilities.
"""

from __future__ import annotations

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import I1, I64, IRBuilder, begun, scalar_type
from ftuner.codegen.llvm.kernels.step import STEP_KERNEL_TYPE
from ftuner.core.dtype import DType
from ftuner.graph.ops.learning import CONVERGED, MOST_ROUNDS


def emit(module: ir.Module, symbol: str, dtype: DType, rows_of_task: int) -> None:
    """Add the kernel to a module."""
    b, (buffers, dims, _, _, begin, end) = begun(module, STEP_KERNEL_TYPE, symbol)
    row = _Row(b, scalar_type(dtype), b.slot(dims, 1))
    pairs, found, matrices = b.pointer_slots(buffers, *range(3))
    rows, classes, offset = b.slot(dims, 0), row.classes, b.slot(dims, 2)
    count = b.udiv(b.mul(classes, b.sub(classes, 1)), 2)
    with b.counted_loop(begin, end) as task:
        first = b.mul(task, rows_of_task)
        row.q = row.at(matrices, b.mul(task, b.mul(classes, b.add(classes, 1))))
        row.qp = row.at(row.q, b.mul(classes, classes))
        last = b.minimum(b.add(first, rows_of_task), rows)
        with b.counted_loop(first, last) as number:
            row.p = row.at(found, b.mul(number, classes))
            row.begin(row.at(pairs, b.add(offset, b.mul(number, count))))
            row.iterate()
    b.ret_void()


class _Row:
    """Emits the iteration of one row."""

    p: ir.Value
    """The probabilities of classes."""
    q: ir.Value
    """The symmetric matrix of the equations, Q."""
    qp: ir.Value
    """Q p."""

    def __init__(self, b: IRBuilder, element: ir.Type, classes: ir.Value) -> None:
        self._b, self._element, self.classes = b, element, classes
        self._zero, self._one, self._two = (ir.Constant(element, n) for n in (0.0, 1.0, 2.0))
        self._converged = b.fdiv(ir.Constant(element, CONVERGED), b.sitofp(classes, element))
        self._total, self._going = b.reserve(element), b.reserve(I1)
        """p' Q p, and whether to go on."""

    def at(self, base: ir.Value, number: ir.Value) -> ir.Value:
        return self._b.gep(base, [number], source_etype=self._element)

    def _load(self, place: ir.Value) -> ir.Value:
        return self._b.load(place, typ=self._element)

    def _gather(self, value: ir.Value, place: ir.Value) -> None:
        self._b.store(self._b.fadd(self._load(place), value), place)

    def _of(self, i: ir.Value, j: ir.Value) -> ir.Value:
        return self.at(self.q, self._b.add(self._b.mul(i, self.classes), j))

    def begin(self, pairs: ir.Value) -> None:
        """Emit Q, and equal probabilities."""
        b, count = self._b, self.classes
        equal = b.fdiv(self._one, b.sitofp(count, self._element))
        with b.counted_loop(0, count) as i:
            b.store(equal, self.at(self.p, i))
            b.store(self._zero, self._of(i, i))
        pair = b.variable(0)
        with b.counted_loop(0, count) as i, b.counted_loop(b.add(i, 1), count) as j:
            number = b.load(pair, typ=I64)
            x = self._load(self.at(pairs, number))
            y = b.fsub(self._one, x)
            both = b.fneg(b.fmul(x, y))
            b.store(both, self._of(i, j))
            b.store(both, self._of(j, i))
            self._gather(b.fmul(y, y), self._of(i, i))
            self._gather(b.fmul(x, x), self._of(j, j))
            b.store(b.add(number, 1), pair)

    def iterate(self) -> None:
        """Emit rounds until the error is small."""
        b = self._b
        b.store(ir.Constant(I1, 1), self._going)
        with b.counted_loop(0, MOST_ROUNDS), b.if_then(b.load(self._going, typ=I1)):
            self._products()
            with b.if_then(b.load(self._going, typ=I1)), b.counted_loop(0, self.classes) as i:
                self._step(i)

    def _products(self) -> None:
        """Emit Q p, p' Q p, and whether any error is not small yet."""
        b, element = self._b, self._element
        b.store(self._zero, self._total)
        with b.counted_loop(0, self.classes) as i:
            place = self.at(self.qp, i)
            b.store(self._zero, place)
            with b.counted_loop(0, self.classes) as j:
                p = self._load(self.at(self.p, j))
                self._gather(b.fmul(self._load(self._of(i, j)), p), place)
            self._gather(b.fmul(self._load(self.at(self.p, i)), self._load(place)), self._total)
        b.store(ir.Constant(I1, 0), self._going)
        absolute = b.module.declare_intrinsic("llvm.fabs", [element])
        total = self._load(self._total)
        with b.counted_loop(0, self.classes) as i:
            error = b.call(absolute, [b.fsub(self._load(self.at(self.qp, i)), total)])
            large = b.fcmp_ordered(">=", error, self._converged)
            b.store(b.or_(b.load(self._going, typ=I1), large), self._going)

    def _step(self, i: ir.Value) -> None:
        """Emit the change of one probability, after which all are divided by their sum."""
        b, total = self._b, self._load(self._total)
        here, qp = self._load(self._of(i, i)), self._load(self.at(self.qp, i))
        step = b.fdiv(b.fsub(total, qp), here)
        self._gather(step, self.at(self.p, i))
        whole = b.fadd(self._one, step)
        grown = b.fmul(step, b.fadd(b.fmul(step, here), b.fmul(self._two, qp)))
        b.store(b.fdiv(b.fdiv(b.fadd(total, grown), whole), whole), self._total)
        with b.counted_loop(0, self.classes) as j:
            for place, more in (
                (self.at(self.qp, j), b.fmul(step, self._load(self._of(i, j)))),
                (self.at(self.p, j), self._zero),
            ):
                b.store(b.fdiv(b.fadd(self._load(place), more), whole), place)
