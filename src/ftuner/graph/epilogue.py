"""Pointwise nodes as the epilogue of a matrix product or a convolution."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ftuner.core.cpu.tile import MAX_OPERANDS
from ftuner.core.dim import Shape
from ftuner.core.dtype import FLOAT32, UINT8, DType, block_of_bytes, moved_as
from ftuner.core.expr import (
    ACCUMULATOR,
    Apply,
    Constant,
    Expr,
    Operand,
    OperandKind,
    applied,
    flatten,
    operands,
)
from ftuner.core.frozen import dataclass
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.product import STORED, WORD_PRODUCTS
from ftuner.graph.buffers import View, reshaped
from ftuner.graph.ir import Node, TensorType, Value
from ftuner.graph.placement import Pending, Placement
from ftuner.graph.rewrite.surroundings import constant

MAX_EPILOGUE_STEPS = 48
"""Longest epilogue, because each uKernel of a family contains it; what is longer becomes a step of
its own. A bias, a gelu and a residual have six. Assumed."""


@dataclass(frozen=True)
class Epilogue:
    """An expression of a product's elements, and its other operands."""

    expr: Expr
    operands: tuple[View, ...]


NO_EPILOGUE = Epilogue(ACCUMULATOR, ())


@dataclass(frozen=True)
class PendingRows(Pending):
    """Rows of channels that are not computed yet, with an epilogue that may still grow."""

    result: Value
    flat: bool
    """Whether all axes of the result but the last are one axis of rows."""
    epilogue: Epilogue
    title: str

    @property
    @abstractmethod
    def multiplied(self) -> DType:
        """What is multiplied: numbers, or words or blocks of them."""

    @property
    def dtype(self) -> DType:
        """What sums and operands are in."""
        return moved_as(self.multiplied)

    @property
    def of_levels(self) -> bool:
        """Whether sums of levels are added up, which may be rounded to levels again."""
        levels = WORD_PRODUCTS[UINT8].a, block_of_bytes(self.multiplied.numbers)
        return self.dtype == FLOAT32 and self.multiplied in levels

    @property
    def stored(self) -> DType:
        """What memory has: what words are rounded to, or what is multiplied."""
        rounded = self.result.dtype in STORED.get(self.multiplied, ())
        return self.result.dtype if rounded else self.dtype

    def ordered_operands(self) -> tuple[View, ...]:
        """The operands of the epilogue in the order of their first use, as records hold them."""
        views = {f"x{i}": v for i, v in enumerate(self.epilogue.operands, 1)}
        return tuple(views[o.name] for o in operands(self.epilogue.expr))

    def grown(self, node: Node, position: int, placement: Placement) -> PendingRows | None:
        """A node is taken into the epilogue."""
        if node.op == "cast":
            return self._rounded(node)
        if node.op == "rint" and not self.of_levels:
            return None
        if node.output.shape != self.result.shape or node.output.dtype != self.result.dtype:
            return None
        dtype = self.dtype
        if placement.type_of(node.output).dtype != dtype:
            # What is written is rounded to what is multiplied.
            return None

        def operand(value: Value, kind: OperandKind) -> View:
            if kind == "column" and value.shape[-1:] != node.output.shape[-1:]:
                return placement.row_of(value, node.output.shape[-1])
            # A matrix is of the dtype that is multiplied; a number for each column may be wider.
            return placement.rows(value, dtype if kind == "matrix" else value.dtype)

        grown = extended(self.epilogue, node, position, self.flat, operand, self.of_levels)
        if grown is None or len(grown.operands) > MAX_OPERANDS:
            return None
        if len(flatten(grown.expr)) > MAX_EPILOGUE_STEPS:
            return None
        return replace(self, epilogue=grown, title=f"{self.title} + {node.op}")

    def _rounded(self, node: Node) -> PendingRows | None:
        """Numbers are stored as what they are rounded to: levels of 8 bits only if limits keep
        them within these."""
        to = node.output.dtype
        if self.result.dtype != FLOAT32 or to not in STORED.get(self.multiplied, ()):
            return None
        found = replace(self, result=node.output, title=f"{self.title} + cast")
        if to.kind == "float":
            return found
        match self.epilogue.expr:
            case Apply("minimum", (Apply("maximum", (_, Constant(low))), Constant(high))):
                limits = np.iinfo(to.name)
                return found if limits.min <= low and high <= limits.max else None
        return None

    def reshaped(self, old: Shape, new: Shape, read_once: bool) -> PendingRows | None:
        """The rows in another shape, whose epilogue may still grow."""
        if not (read_once and self.flat) or len(new) < 2 or old[-1] != new[-1]:
            return None
        result = replace(self.result, type=TensorType(self.result.dtype, new))
        return _Reshaped(result, True, self.epilogue, self.title, self)


@dataclass(frozen=True)
class _Reshaped(PendingRows):
    rows: PendingRows
    """The rows in the shape in which they are computed."""

    @property
    def multiplied(self) -> DType:
        return self.rows.multiplied

    def store(self, target: View, placement: Placement) -> None:
        view = reshaped(target, self.rows.result.shape)
        if view is None:
            placement.store_by_copy(self, self.stored, target)
            return
        result = replace(self.rows.result, type=TensorType(self.result.dtype, view.shape))
        rows = replace(self.rows, result=result, epilogue=self.epilogue, title=self.title)
        rows.store(view, placement)


def extended(
    epilogue: Epilogue,
    node: Node,
    position: int,
    flat: bool,
    view: Callable[[Value, OperandKind], View],
    by_row: bool = False,
) -> Epilogue | None:
    """The epilogue followed by a node whose operand at `position` is the product. None if the
    operator cannot be in an epilogue, or if its other operand is broadcast in a way that uKernels
    do not read. `by_row`: whether they read a number for each row."""
    row = SCALAR_FUNCTIONS.get(node.op)
    if row is None or not row.epilogue:
        return None
    if row.arity == 1:
        return Epilogue(applied(node.op, epilogue.expr), epilogue.operands)
    other = node.inputs[1 - position]
    read = epilogue.operands
    value: Expr
    if other.constant is not None and other.constant.size == 1 and other.rank <= node.output.rank:
        number = float(other.constant.reshape(()))
        if np.isnan(number):
            return None
        width = node.output.shape[-1] if node.output.rank else 1
        literal = _is_structural(number) or len(read) == MAX_OPERANDS
        if node.op in ("divide", "multiply") and not literal and not isinstance(width, int):
            # A scale of quantised scores: the nest that rounds them scales, too.
            return None
        if literal or not isinstance(width, int):
            value = Constant(number)
        else:
            columns = constant(f"{other.name}_columns", other.dtype, np.full(width, number))
            read = (*read, view(columns, "column"))
            value = Operand(f"x{len(read)}", "column")
    else:
        kind = _kind(other, node.output, flat, by_row)
        if kind is None:
            return None
        given = view(other, kind)
        read = (*read, given)
        value = Operand(f"x{len(read)}", kind)
    sides = (epilogue.expr, value) if position == 0 else (value, epilogue.expr)
    return Epilogue(applied(node.op, *sides), read)


def _is_structural(number: float) -> bool:
    """Whether a number is likely to be the same in many models: zero, an infinity, one or three
    times a power of two, or one less than a power of two. Kernels have others, such as the scales
    of quantised layers, as operands: each literal is a kernel to compile."""
    significand = abs(math.frexp(number)[0])
    return significand in (0.0, 0.5, 0.75, math.inf) or math.frexp(abs(number) + 1)[0] == 0.5


def _kind(value: Value, result: Value, flat: bool, by_row: bool) -> OperandKind | None:
    """How an operand is broadcast over the product; None if in a way that uKernels do not read."""
    if all(n == 1 for n in value.shape) and value.rank <= result.rank:
        return "column"
    if value.rank >= 1 and value.shape[-1] == result.shape[-1] and value.shape[-1] != 1:
        if all(n == 1 for n in value.shape[:-1]):
            return "column"
        if flat and value.shape == result.shape:
            return "matrix"
    if flat and by_row and value.shape == (*result.shape[:-1], 1):
        return "row"
    return None
