"""Matrix products on a GPU."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from ftuner.codegen.triton.source import Source
from ftuner.core.expr import Expr
from ftuner.core.expr import operands as operands_of
from ftuner.core.frozen import dataclass
from ftuner.runtime.gpu.arrays import Tensor, copied_bytes
from ftuner.runtime.gpu.kernels import BoundKernel
from ftuner.runtime.gpu.operands import Product
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.step_kind import (
    BoundOperand,
    CompiledStep,
    Operands,
    Places,
    Rehearsal,
    Setting,
    StepKind,
    are_read_in_place,
    nowhere,
    reversed_bytes,
)
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.product.step import ProductStep


class BoundProduct(Rehearsal):
    """A matrix product."""

    def __init__(
        self, products: Products, epilogue: Expr, tf32: bool, operands: Sequence[BoundOperand]
    ) -> None:
        """`operands`: A, B, C, and what the epilogue reads; `tf32`: whether float32 may be
        multiplied so."""
        super().__init__(operands)
        self._products, self._epilogue, self._tf32 = products, epilogue, tf32

    def launched(self, arrays: Sequence[Tensor]) -> Sequence[BoundKernel] | None:
        product = self._product(arrays)
        found = self._products.launch(product)
        given, read = [*product.given.values()], [x.tensor(arrays) for x in self._operands[3:]]
        in_place = are_read_in_place(self._operands) and not copied_bytes(given, read)
        return found if in_place else None

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        needed = self._products.workspace_bytes(self._product(arrays))
        return needed + reversed_bytes(self._operands, arrays)

    def wanted(self) -> list[Source]:
        """All that it may launch; its operands may be without data, but are in memory."""
        return self._products.wanted(self._product(()))

    def order_of_sums(self) -> Hashable:
        """What decides the order in which sums are taken; operands as of `wanted`."""
        return self._products.order_of_sums(self._product(()))

    def _product(self, arrays: Sequence[Tensor]) -> Product:
        a, b, c = (x.tensor(arrays) for x in self._operands[:3])
        return Product(a, b, c, self._epilogue, self._given(arrays), self._tf32)

    def _given(self, arrays: Sequence[Tensor]) -> Mapping[str, Tensor]:
        found = {}
        for operand, bound in zip(operands_of(self._epilogue), self._operands[3:], strict=True):
            x = bound.tensor(arrays)
            found[operand.name] = x if operand.kind == "matrix" else x.reshape(-1)
        return found


@dataclass(frozen=True)
class CompiledProduct(CompiledStep):
    """A product whose layouts have numbers."""

    products: Products
    epilogue: Expr
    tf32: bool
    operands: Operands

    def bind(
        self, values: Sequence[int], memory: Places, status: Tensor | None
    ) -> BoundProduct | None:
        return self.rehearsal(values, memory)

    def rehearsal(self, values: Sequence[int], memory: Places) -> BoundProduct | None:
        operands = self.operands.bound(values, memory)
        return None if 0 in operands[2].shape else self.bound(values, operands)

    def order_of_sums(self, values: Sequence[int]) -> Hashable:
        launch = self.rehearsal(values, nowhere)
        return None if launch is None else launch.order_of_sums()

    def bound(self, values: Sequence[int], operands: Sequence[BoundOperand]) -> BoundProduct:
        """The launch for values of the dims and operands of which C is not empty."""
        return BoundProduct(self.products, self.epilogue, self.tf32, operands)


class ProductKind(MatrixKind, StepKind[ProductStep]):
    """A product launches the plan of its extents, from the library of its dtype."""

    def compiled(self, step: ProductStep, setting: Setting) -> CompiledProduct:
        operands = Operands.of(step.views, setting.layouts)
        return CompiledProduct(setting.session.products, step.epilogue, setting.tf32, operands)


KIND = ProductKind()
