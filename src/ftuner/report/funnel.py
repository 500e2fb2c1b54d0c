"""The tuning funnel: from every enumerated register tile to the kept ones, filter by filter."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ftuner.core.dtype import DType
from ftuner.hardware.model import Isa
from ftuner.ukernels.filters import Funnel


def funnel_table(funnel: Funnel, isa: Isa, dtype: DType) -> Table:
    """One row a filter: how many tiles it took out, how many it left, and why."""
    table = Table(title=f"uKernels for {dtype} on {isa.name}", title_justify="left")
    table.add_column("step")
    table.add_column("pruned", justify="right")
    table.add_column("left", justify="right")
    table.add_column("reason", overflow="fold")
    left = funnel.enumerated
    table.add_row("enumerated", "", str(left), "every register tile that the ISA could hold")
    for pruned in funnel.pruned:
        left -= len(pruned.tiles)
        table.add_row(pruned.name, str(len(pruned.tiles)), str(left), pruned.reason)
    lanes = isa.lanes(dtype)
    widths = ", ".join(f"{v * lanes} columns ({_vectors(v)})" for v in funnel.widths)
    table.add_section()
    table.add_row(
        "kept",
        str(funnel.enumerated - len(funnel.kept)),
        str(len(funnel.kept)),
        f"full panels of {widths}; narrower tiles serve tails",
    )
    return table


def funnel_document(funnel: Funnel) -> dict[str, Any]:
    """The funnel as nested dicts and lists, which JSON can hold; widths are in vectors."""
    return {
        "enumerated": funnel.enumerated,
        "pruned": [
            {"name": p.name, "reason": p.reason, "tiles": len(p.tiles)} for p in funnel.pruned
        ],
        "kept": [str(tile) for tile in funnel.kept],
        "widths": list(funnel.widths),
    }


def _vectors(count: int) -> str:
    return "1 vector" if count == 1 else f"{count} vectors"
