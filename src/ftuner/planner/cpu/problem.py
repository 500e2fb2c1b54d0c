"""The problem that the planner solves: one matrix product at run-time extents."""

from __future__ import annotations

from typing import NamedTuple

from ftuner.core.product import ReadWindow
from ftuner.ukernels.cpu.library import BSource


class Problem(NamedTuple):
    """What is planned: extents, layouts of operands, and the number of workers.

    Made on the path of a call whose shape is new, hence a named tuple.
    """

    m: int
    n: int
    k: int
    batch: int
    a_layout: str
    """`row`, `column` or `window`; an A that is none of them is packed and counts as `column`."""
    a_must_pack: bool
    b_source: BSource
    width: int
    """Vectors of a packed panel; 0 if B is not in panels."""
    b_k_bytes: int
    """Bytes between two k steps of a B that is not in panels; 0 if it is."""
    workers: int
    window: ReadWindow | None = None
    """Of an A of layout `window`."""
    b_footprint_bytes: int = 0
    """Of a packed weight: bytes of weights that are read between two uses of it, if that is more
    than itself. They decide which level it comes from."""

    @property
    def in_panels(self) -> bool:
        """Whether B is a packed weight."""
        return self.width > 0
