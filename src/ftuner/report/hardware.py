"""The hardware model as a table of values with units and provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from rich.table import Table

from ftuner.core.units import capacity, count, duration, rate
from ftuner.hardware.gpu_model import GpuHardware, MatrixInstruction
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.model import CpuHardware, Isa, MemoryLevel
from ftuner.hardware.nearest import MAX_DISTANCE, Nearest
from ftuner.hardware.provenance import PRIOR, taken_from
from ftuner.hardware.recorded import to_document
from ftuner.hardware.tuning import CpuTuning, Intake, constants

_RATES = {
    "_bytes_per_s": "B/s",
    "_flops_per_s": "flop/s",
    "_hz": "Hz",
}
_SCALES: Mapping[str, Callable[[Any], str]] = {"s": duration, "bytes": capacity}
"""The text of a value, by its unit."""


def hardware_table(hardware: CpuHardware | GpuHardware, near: Nearest | None = None) -> Table:
    """A row for each value: part of the machine, quantity, value with unit, provenance.

    `near`: the nearest recorded machine, which is shown before the tuning.
    """
    table = Table(title=f"{hardware.name} ({hardware.architecture})", title_justify="left")
    table.add_column("part")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    table.add_column("provenance")
    kind = "GPU" if isinstance(hardware, GpuHardware) else "CPU"
    _add_part(table, kind, hardware)
    for part in _parts(hardware):
        table.add_section()
        _add_part(table, part.name, part)
    table.add_section()
    if near is not None and near.machine.name != hardware.name:
        text = f"{near.machine.name}, {near.distance:.2f} octaves"
        table.add_row("prior", "nearest recorded machine", text, _use_of(near, hardware.tuning))
        table.add_section()
    _add_tuning(table, hardware.tuning)
    return table


def _use_of(near: Nearest, tuning: CpuTuning | GpuTuning) -> str:
    """How many constants a machine lends at its distance."""
    if near.distance > MAX_DISTANCE:
        return f"lends no constants: the limit is {MAX_DISTANCE:g} octaves"
    origin = taken_from(PRIOR, near.machine.name)
    return f"{origin}: lends {count(list(tuning.provenance.values()).count(origin), 'constant')}"


def _parts(
    hardware: CpuHardware | GpuHardware,
) -> tuple[Isa | MemoryLevel | MatrixInstruction, ...]:
    if isinstance(hardware, GpuHardware):
        return hardware.matrix_instructions
    return (*hardware.isas, *hardware.levels)


def hardware_document(
    hardware: CpuHardware | GpuHardware, near: Nearest | None = None
) -> dict[str, Any]:
    """The hardware as nested dicts and lists, its fingerprint where it has one, and under
    `constants` the unit, meaning and provenance of each value of its tuning. `near`: the nearest
    recorded machine, which is under `nearest` with its distance in octaves."""
    document = to_document(hardware)
    if isinstance(hardware, CpuHardware):
        document["fingerprint"] = hardware.fingerprint
    if near is not None:
        document["nearest"] = {"machine": near.machine.name, "distance": near.distance}
    document["tuning"] = asdict(hardware.tuning)
    document["constants"] = {
        name: {
            "unit": known.unit,
            "meaning": known.meaning,
            "provenance": hardware.tuning.provenance.get(name, known.provenance),
        }
        for name, known in constants(hardware.tuning).items()
    }
    return document


def _add_tuning(table: Table, tuning: CpuTuning | GpuTuning) -> None:
    shown = "tuning"
    for name, known in constants(tuning).items():
        value = getattr(tuning, name)
        scale = _SCALES.get(known.unit)
        if isinstance(value, Intake):
            text = str(value)
        else:
            text = f"{value:g} {known.unit}".rstrip() if scale is None else scale(value)
        table.add_row(shown, name, text, tuning.provenance.get(name, known.provenance))
        shown = ""


def _add_part(
    table: Table,
    name: str,
    part: CpuHardware | GpuHardware | Isa | MemoryLevel | MatrixInstruction,
) -> None:
    shown = name
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name in ("name", "provenance", "tuning") or isinstance(value, tuple):
            continue
        source = part.provenance.get(field.name, "")
        if isinstance(value, Mapping):
            for key, item in value.items():
                table.add_row(shown, f"{_quantity(field.name)}, {key}", _shown(field.name, item),
                              source)  # fmt: skip
                shown = ""
        else:
            table.add_row(shown, _quantity(field.name), _shown(field.name, value), source)
            shown = ""


def _quantity(field: str) -> str:
    for suffix in (*_RATES, "_bytes", "_cycles", "_s"):
        if field.endswith(suffix):
            return field[: -len(suffix)].replace("_", " ")
    return field.replace("_", " ")


def _shown(field: str, value: Any) -> str:
    """A value with its unit, which ends its field's name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    for suffix, unit in _RATES.items():
        if field.endswith(suffix):
            return rate(value, unit)
    if field.endswith("_bytes") or "_bytes_per_" in field:
        return capacity(value)
    if field.endswith("_s"):
        return duration(value)
    if field.endswith("_cycles"):
        return f"{value:g} cycles"
    if field == "associativity" and not value:
        return "-"
    return f"{value:g}"
