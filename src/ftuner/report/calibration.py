"""What a calibration found, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from ftuner.core.units import duration
from ftuner.hardware.intake_tuning import Intake

if TYPE_CHECKING:
    from ftuner.hardware.constants import Calibration


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
