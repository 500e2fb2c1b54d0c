"""What tuning prints: the funnel, from every enumerated tile to the kept ones, and what a
calibration found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ftuner.core.units import count, duration
from ftuner.hardware.intake_tuning import Intake
from ftuner.report.tables import table
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
    *filters, kept = funnel_rows(library)
    head = ("step", ">pruned", ">left", "reason")
    return table(f"uKernels for {types} on {where}", head, [*filters, None, kept])


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
    """The rows of `funnel_rows` for one funnel; `enumerated` and `kept` say what these tiles
    are."""
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
    rows = [
        (name, _text(getattr(calibration.before, name)), _text(fitted.value),
         f"{calibration.tuning.confidence[name]:.2f}")
        for name, fitted in calibration.found.items()
    ]  # fmt: skip
    return table(title, ("constant", "before", "now", ">confidence"), rows)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, Intake) else f"{value:.4g}"
