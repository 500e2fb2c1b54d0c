"""Enumeration: every register tile that an ISA could hold, before any filter; dot tiles."""

from __future__ import annotations

from math import ceil

from ftuner.core.cpu.tile import RegisterTile
from ftuner.core.product import ProductTypes
from ftuner.hardware.model import Isa
from ftuner.hardware.tuning import CpuTuning

MAX_VECTORS = 8
MAX_CHAINS = 8
MAX_PARTS = 2
"""Of more, each would read too narrow a strip of a panel: cache lines are fetched in pairs."""


def register_tiles(isa: Isa) -> list[RegisterTile]:
    """All tiles with no more accumulators than registers, smallest first."""
    return [
        RegisterTile(mr, vectors, chains, parts)
        for parts in range(1, MAX_PARTS + 1)
        for vectors in range(1, MAX_VECTORS + 1)
        for mr in range(1, isa.vector_registers // vectors + 1)
        for chains in range(1, MAX_CHAINS + 1)
        if mr * vectors * chains <= isa.vector_registers
    ]


def dot_tiles(isa: Isa, types: ProductTypes, tuning: CpuTuning) -> list[RegisterTile]:
    """Dot tiles (`tile.DOT`), one for each height and number of columns that the registers hold
    together with the operands of the shorter side and one of the other; as many chains as hide the
    latency of a multiply-add, if there is room."""
    rate = isa.multiply_add(types)
    needed = rate.latency_cycles * rate.per_cycle
    found = []
    for columns in range(1, tuning.max_dot_columns + 1):
        for mr in range(1, max(tuning.max_dot_rows, columns) + 1):
            room = isa.vector_registers - min(mr, columns) - (1 if rate.fused else 2)
            if mr * columns <= room:
                chains = min(ceil(needed / (mr * columns)), room // (mr * columns))
                found.append(RegisterTile(mr, columns, max(chains, 1)))
    return found
