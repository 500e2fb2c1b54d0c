"""What tuning prints: the funnel, from every enumerated tile to the kept ones, and what a
calibration found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ftuner.core.units import count, duration
from ftuner.hardware.intake_tuning import Intake
from ftuner.ukernels.cpu.filters import RegisterFunnel
from ftuner.ukernels.cpu.library import Library
from ftuner.ukernels.funnel import Funnel
from ftuner.ukernels.gpu.library import GpuLibrary

if TYPE_CHECKING:
    from ftuner.hardware.constants import Calibration


def funnel_table(library: Library | GpuLibrary) -> Table:
    """A row for each filter: how many tiles it took out, how many are left, and why."""
    types, where = (library.types, library.isa.name) if isinstance(library, Library) else (
        library.dtype, f"{library.hardware.name}, multiplied as {library.multiply}"
    )  # fmt: skip
    table = Table(title=f"uKernels for {types} on {where}", title_justify="left")
    table.add_column("step")
    table.add_column("pruned", justify="right")
    table.add_column("left", justify="right")
    table.add_column("reason", overflow="fold")
    *filters, kept = funnel_rows(library)
    for row in filters:
        table.add_row(*row)
    table.add_section()
    table.add_row(*kept)
    return table


def funnel_rows(library: Library | GpuLibrary) -> list[tuple[str, str, str, str]]:
    """Step, tiles that it took out, tiles left, and the reason: what was enumerated, each filter,
    then what is kept."""
    if isinstance(library, GpuLibrary):
        enumerated = "every block tile of powers of two"
        kept = f"{count(len(library.pairs), 'pair')} of them patch one output together"
    else:
        enumerated = "every register tile that the ISA could hold"
        widths = (f"{v * library.lanes} columns ({count(v, 'vector')})" for v in library.widths)
        kept = f"full panels of {', '.join(widths)}; narrower tiles serve tails"
    return filter_rows(library.funnel, enumerated, kept)


def filter_rows(
    funnel: Funnel[Any], enumerated: str = "", kept: str = ""
) -> list[tuple[str, str, str, str]]:
    """As `funnel_rows`, of a funnel; `enumerated` and `kept` say what these tiles are."""
    left = funnel.enumerated
    rows = [("enumerated", "", str(left), enumerated)]
    for pruned in funnel.pruned:
        left -= len(pruned.tiles)
        rows.append((pruned.name, str(len(pruned.tiles)), str(left), pruned.reason))
    rows.append(("kept", str(funnel.enumerated - len(funnel.kept)), str(len(funnel.kept)), kept))
    return rows


def funnel_document(funnel: Funnel[Any]) -> dict[str, Any]:
    """The funnel as nested dicts and lists, which JSON can hold; widths are in vectors."""
    found: dict[str, Any] = {
        "enumerated": funnel.enumerated,
        "pruned": [
            {"name": p.name, "reason": p.reason, "tiles": len(p.tiles)} for p in funnel.pruned
        ],
        "kept": [str(tile) for tile in funnel.kept],
    }
    if isinstance(funnel, RegisterFunnel):
        found["widths"] = list(funnel.widths)
    return found


def calibration_table(calibration: Calibration) -> Table:
    """A row for each constant that was measured: what it was before, what it is, how sure that
    is."""
    noise = ", beside other load" if calibration.noisy else ""
    title = f"measured on this machine in {duration(calibration.seconds)}{noise}"
    table = Table(title=title, title_justify="left")
    table.add_column("constant")
    table.add_column("before")
    table.add_column("now")
    table.add_column("confidence", justify="right")
    for name, fitted in calibration.found.items():
        before = getattr(calibration.before, name)
        sure = calibration.tuning.confidence[name]
        table.add_row(name, _text(before), _text(fitted.value), f"{sure:.2f}")
    return table


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Intake) else f"{value:.4g}"
