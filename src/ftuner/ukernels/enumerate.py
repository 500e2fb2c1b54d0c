"""Enumeration: every register tile that an ISA could hold, before any filter."""

from __future__ import annotations

from ftuner.core.ukernel import RegisterTile
from ftuner.hardware.model import Isa

MAX_VECTORS = 8
MAX_CHAINS = 8


def register_tiles(isa: Isa) -> list[RegisterTile]:
    """All tiles with no more accumulators than registers, smallest first."""
    return [
        RegisterTile(mr, vectors, chains)
        for vectors in range(1, MAX_VECTORS + 1)
        for mr in range(1, isa.vector_registers // vectors + 1)
        for chains in range(1, MAX_CHAINS + 1)
        if mr * vectors * chains <= isa.vector_registers
    ]
