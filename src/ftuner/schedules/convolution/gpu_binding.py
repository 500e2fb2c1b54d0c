"""Convolutions on a GPU as products whose A is read through a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ftuner.core.dtype import GPU_DTYPES, DType
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import View, permuted, row_major
from ftuner.graph.ir import TensorType
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.operands import Product, bound_window, matrix_of
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.step_kind import BoundOperand, Operands, Setting, StepKind
from ftuner.runtime.step_kinds import MatrixKind
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.product.gpu_binding import BoundProduct, CompiledProduct


class BoundConvolution(BoundProduct):
    """A convolution at known extents. Groups are batch elements: A, C and the epilogue's matrices
    have the channels of all groups side by side."""

    def __init__(
        self, products: Products, tf32: bool, operands: Sequence[BoundOperand],
        step: ConvolutionStep, begin: Sequence[int], positions: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(products, step.epilogue, tf32, operands)
        self._step = step
        self._begin = begin
        self._positions = positions

    def _product(self, arrays: Sequence[Tensor]) -> Product:
        product = super()._product(arrays)
        x, b = product.a, product.b
        window, read = self._step.window, self._step.read_window
        bound = bound_window(
            x, read, window.kernel, window.strides, window.dilations, self._begin, self._positions
        )
        if b.dim() == 2:
            return product._replace(a=matrix_of(x, 1, read.run)[0], window=bound)
        groups = b.shape[0]
        pairs = product.given.items()
        given = {name: _apart(y, groups) if y.dim() > 1 else y for name, y in pairs}
        a, c = matrix_of(x, groups, read.run), _apart(product.c, groups)
        return product._replace(a=a, c=c, given=given, window=bound)


def _apart(rows: Tensor, groups: int) -> Tensor:
    """Returns rows with the channels of all groups as a matrix for each group."""
    return rows.view(rows.shape[0], groups, -1).transpose(0, 1)


@dataclass(frozen=True)
class CompiledConvolution(CompiledProduct):
    """A convolution whose dims and layouts have numbers."""

    step: ConvolutionStep
    begin: tuple[int, ...]
    """The numbers of the dims of the padding before x."""
    positions: tuple[int, ...]
    """The numbers of the dims of the result's spatial extents."""

    def bound(self, values: Sequence[int], operands: Sequence[BoundOperand]) -> BoundConvolution:
        begin, positions = ([values[n] for n in ns] for ns in (self.begin, self.positions))
        return BoundConvolution(self.products, self.tf32, operands, self.step, begin, positions)


class ConvolutionKind(MatrixKind, StepKind[ConvolutionStep]):
    """A convolution launches a plan of kernels that read A through a window."""

    def supports(self, dtype: DType) -> bool:
        return dtype.name in GPU_DTYPES

    def arranged(self, step: ConvolutionStep) -> ConvolutionStep:
        """The step with a weight that is contiguous along k."""
        return replace(step, b=_along_k(step.b))

    def compiled(self, step: ConvolutionStep, setting: Setting) -> CompiledConvolution:
        operands = Operands.of(step.views, setting.layouts)
        window, numbers = step.window, setting.dims.numbers
        return CompiledConvolution(
            setting.session.products, step.epilogue, setting.tf32, operands, step,
            numbers(window.begin), numbers(window.extents),
        )  # fmt: skip


def _along_k(weight: View) -> View:
    """Constant matrices (..., k, columns) with the same elements, contiguous along k."""
    assert weight.contiguous
    array = weight.buffer.array
    assert array is not None
    *axes, k, n = weight.shape
    found = np.ascontiguousarray(np.swapaxes(array.reshape(weight.shape), -1, -2))
    buffer = replace(weight.buffer, array=found)
    whole = row_major(TensorType(weight.layout.dtype, (*axes, n, k)))
    order = (*range(len(axes)), len(axes) + 1, len(axes))
    return permuted(View(buffer, whole), order)


KIND = ConvolutionKind()
