"""Operands of products that are copied to an aligned pitch."""

from __future__ import annotations

from collections.abc import Callable

from ftuner.core.caching import RecentlyUsed
from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import ALIGNMENT_BYTES, Multiply
from ftuner.cost.gpu.product import chip_of
from ftuner.planner.gpu.plan import ProductProblem
from ftuner.planner.gpu.planner import product_planner_for
from ftuner.runtime.gpu.arrays import Tensor, matrix_dtype
from ftuner.runtime.gpu.call_cache import MAX_CALLS
from ftuner.runtime.gpu.operands import ProductOperands, order_of
from ftuner.ukernels.gpu.library import GpuLibrary


class Packing:
    """Copies operands where copying and multiplying the copies takes less time by the estimate."""

    def __init__(self, library: Callable[[DType, Multiply], GpuLibrary]) -> None:
        self._library = library
        self._copied: RecentlyUsed[tuple[object, ...], tuple[bool, bool]] = RecentlyUsed(MAX_CALLS)
        """Whether A, and B, are copied, by problem, layout and alignment."""

    def __call__(self, operands: ProductOperands, problem: ProductProblem) -> ProductOperands:
        """Returns the operands of a problem that is aligned to less than 16 bytes."""
        a, b = operands.a, operands.b
        key = (a.shape, a.stride(), b.shape, b.stride(), a.dtype, operands.multiply,
               operands.alignments, problem)  # fmt: skip
        copied = self._copied.get(key)
        if copied is None:
            copied = self.worth_copying(operands, problem)
            self._copied.add(key, copied)
        if not any(copied):
            return operands
        kept = zip(operands.alignments, copied, strict=True)
        assert all(is_copied or own == ALIGNMENT_BYTES for own, is_copied in kept)
        # Descriptors need no whole granules of k.
        whole_k = self._of(operands).loads(ALIGNMENT_BYTES) != "descriptors"
        if copied[0]:
            a = packed(a, -1, whole_k)
        if copied[1]:
            b = packed(b, -2, whole_k)
        return operands._replace(a=a, b=b, alignments=(ALIGNMENT_BYTES, ALIGNMENT_BYTES))

    def worth_copying(
        self, operands: ProductOperands, problem: ProductProblem
    ) -> tuple[bool, bool]:
        """Returns whether A, and B, are copied: both or those that are not aligned, or none."""
        library = self._of(operands)
        copied = True, True
        if library.loads(ALIGNMENT_BYTES) == "descriptors":
            of_a, of_b = operands.alignments
            copied = of_a < ALIGNMENT_BYTES, of_b < ALIGNMENT_BYTES
        chip, planner = chip_of(library.hardware, library.dtype), product_planner_for(library)

        def seconds(problem: ProductProblem) -> float:
            return planner.estimate(planner.plan(problem)).seconds

        pairs = zip((operands.a, operands.b), copied, strict=True)
        elements = sum(x.numel() for x, is_copied in pairs if is_copied)
        # Read and written.
        copies_s = 2 * elements * chip.itemsize / chip.dram_bytes_per_s
        copies_s += sum(copied) * chip.launch_s
        gains = seconds(problem._replace(alignment=ALIGNMENT_BYTES)) + copies_s < seconds(problem)
        return copied if gains else (False, False)

    def _of(self, operands: ProductOperands) -> GpuLibrary:
        return self._library(matrix_dtype(operands.a, "a"), operands.multiply)


def packed(x: Tensor, k_axis: int, whole_k: bool) -> Tensor:
    """Returns a copy of a matrix in its order, whose pitch is a multiple of `ALIGNMENT_BYTES`;
    `whole_k`: with zeros behind k, up to such a multiple."""
    along_k = order_of(x, k_axis) == "k"
    turned = along_k == (k_axis == -2)
    stored = x.mT if turned else x
    granule = ALIGNMENT_BYTES // x.element_size()
    outer, inner = stored.shape[-2:]
    pitch = -(-inner // granule) * granule
    rows = -(-outer // granule) * granule if whole_k and not along_k else outer
    make = x.new_zeros if whole_k else x.new_empty
    room = make((*stored.shape[:-2], rows, pitch))
    room[..., :outer, :inner].copy_(stored)
    found = room if whole_k and along_k else room[..., :inner]
    return found.mT if turned else found
