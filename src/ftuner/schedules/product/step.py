"""The step of a matrix product, and what is lowered to it."""

from __future__ import annotations

from typing import ClassVar

from ftuner.core.dtype import UINT8, DType, block_of_bytes, block_of_floats
from ftuner.core.expr import Expr
from ftuner.core.frozen import dataclass
from ftuner.core.product import WORD_PRODUCTS, ReadWindow
from ftuner.graph.buffers import View, as_rows, contiguous_rows, in_words, permuted
from ftuner.graph.epilogue import NO_EPILOGUE, PendingRows
from ftuner.graph.ir import Node, Value
from ftuner.graph.placement import Placement
from ftuner.graph.ragged import Rows
from ftuner.graph.steps import DimText, ViewStep, shape_text


@dataclass(frozen=True)
class ProductStep(ViewStep):
    """A matrix product: `c = epilogue(a @ b, *operands)`. Where B has two axes, so do A and C.
    Operands always have two: a matrix as C, or one row for all of C."""

    kind: ClassVar[str] = "product"
    results: ClassVar[tuple[str, ...]] = ("c",)
    title: str
    a: View
    b: View
    c: View
    epilogue: Expr
    operands: tuple[View, ...]

    @property
    def read_window(self) -> ReadWindow | None:
        """How A is read through a window; None if it is in memory."""
        return None

    @property
    def by_weight(self) -> bool:
        """Whether B is a constant matrix, as it is stored or transposed, which is packed once. Its
        extents may be known at run time alone, where a caller gives those it is reshaped to."""
        b = self.b
        known = len(b.shape) == 2 and all(isinstance(n, int) and n for n in b.shape)
        if not known or not b.buffer.is_constant or b.layout.offset != 0:
            return False
        return b.contiguous or permuted(b, (1, 0)).contiguous

    def described(self, text: DimText) -> str:
        a, b, c = (shape_text(view.shape, text) for view in (self.a, self.b, self.c))
        return f"{a} @ {b} -> {c}"

    def row_wise(self, rows: Rows) -> str:
        """See `graph.ragged.RowWise`: the rows of A and C are rows, and B is a weight."""
        if self.read_window is not None:
            return "a window reads several rows"
        if not self.by_weight:
            return "both matrices belong to the request"
        shared = [x for x in self.operands if x.buffer.is_constant and _of_all_rows(x)]
        others = [x for x in self.operands if x not in shared]
        stays = all(rows.keeps(view, 0) for view in (self.a, self.c, *others))
        return "" if stays else "its rows are not those of the requests"


def _of_all_rows(operand: View) -> bool:
    """Whether an operand of an epilogue is one row for all of C."""
    return operand.shape[0] == 1 or operand.layout.strides[0] == 0


@dataclass(frozen=True)
class PendingProduct(PendingRows):
    """A matrix product whose epilogue may still grow. If it is flat, A has two axes."""

    a: View
    b: View

    @property
    def multiplied(self) -> DType:
        return self.a.layout.dtype

    @property
    def strided_rows(self) -> bool:
        return not self.flat

    def store(self, target: View, placement: Placement) -> None:
        # All rows are walked as one axis, and written in the dtype that is multiplied.
        rows = contiguous_rows(target)
        if not self.flat and target.layout.strides[-1] == 1:
            rows = target
        if target.layout.dtype != self.stored or rows is None:
            placement.store_by_copy(self, self.stored, target)
            return
        expr, operands = self.epilogue.expr, self.ordered_operands()
        placement.add(ProductStep(self.title, self.a, self.b, rows, expr, operands))


def lower(node: Node, placement: Placement) -> tuple[PendingProduct] | None:
    a, b = node.inputs
    if node.op in ("word_matmul", "block_matmul"):
        if b.dtype.kind == "block":
            block_of = block_of_bytes if a.dtype == UINT8 else block_of_floats
            words = block_of(b.dtype.numbers)
        else:
            words = WORD_PRODUCTS[a.dtype].a
        left, right = _words(a, words, placement), placement.view(b, b.dtype)
        return (PendingProduct(node.output, True, NO_EPILOGUE, node.op, left, right),)
    if a.dtype.kind != "float":
        return None
    dtype = placement.type_of(node.output).dtype
    left, right = placement.view(a, dtype), placement.view(b)
    if node.op != "narrow_matmul":
        right = placement.converted(right, dtype)
    flat = b.rank == 2
    if flat:
        # All rows are one product, so one stride must separate them.
        in_place = as_rows(left) if node.op == "matmul" else None
        left = in_place or placement.rows(a, dtype)
    return (PendingProduct(node.output, flat, NO_EPILOGUE, node.op, left, right),)


def _words(a: Value, words: DType, placement: Placement) -> View:
    """Rows of numbers as rows of words. They are copied unless each begins with a word."""
    rows = in_words(placement.rows(a, a.dtype), words)
    if rows is None:
        whole = as_rows(placement.contiguous(a, a.dtype))
        rows = whole and in_words(whole, words)
    assert rows is not None
    return rows
