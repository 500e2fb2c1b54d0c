"""The step of a nest of loops: what computes all that no other schedule does."""

from __future__ import annotations

from typing import ClassVar

from ftuner.core.access import Access, Kernel
from ftuner.core.cpu.schedule import operand_numbers
from ftuner.core.dim import Dim
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer
from ftuner.graph.ragged import Rows
from ftuner.graph.steps import DimText, shape_text


@dataclass(frozen=True)
class NestStep:
    """Loops over a kernel, whose buffers are those it reads and then those it writes."""

    kind: ClassVar[str] = "nest"
    title: str
    kernel: Kernel
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(self.kernel.parameters())

    def described(self, text: DimText) -> str:
        kept = shape_text(self.kernel.kept, text)
        reduced = self.kernel.reduced
        return f"{kept} over {shape_text(reduced, text)}" if reduced else kept

    def row_wise(self, rows: Rows) -> str:
        """See `graph.ragged.RowWise`: all results are stored, and all operands loaded, at the row
        of one kept axis; constants are loaded at indices that do not depend on it."""
        kernel = self.kernel
        found = [i for i, extent in enumerate(kernel.axes) if rows.each(extent)]
        if len(found) != 1 or found[0] >= len(kernel.kept):
            return "no axis counts rows alone"
        (axis,) = found
        each = rows.each(kernel.axes[axis])
        others = [(i, n) for i, n in enumerate(kernel.axes) if i != axis]
        assert each
        if not all(isinstance(n, int) for _, n in others):
            return "an extent differs from request to request"
        if any(s.op == "dim" or (s.op, s.payload) == ("index", axis) for s in kernel.steps):
            return "positions or extents decide elements"

        def stays(buffer: Buffer, access: Access) -> bool:
            loops = [(access.coefficients[i], n) for i, n in others]
            if buffer.is_constant:
                dims = (access.constant, *access.coefficients, *(m for _, m in access.rest))
                return access.coefficients[axis] == 0 and all(isinstance(n, int) for n in dims)
            stride = access.coefficients[axis]
            return not access.rest and rows.stays(buffer, access.constant, stride, each, loops)

        buffers = dict(zip(operand_numbers(kernel), self.reads, strict=True))
        loads = [
            (buffers[int(step.payload)], access)  # type: ignore[arg-type]
            for step, access in zip(kernel.steps, kernel.accesses, strict=True)
            if access is not None
        ]
        if not all(stays(*load) for load in loads):
            return "it reads elements of other rows"
        stores = zip(self.writes, kernel.targets, strict=True)
        return "" if all(stays(*store) for store in stores) else "it writes elements of other rows"
