"""The hardware model as a table of values with units and provenance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, NamedTuple

from rich.table import Table

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.core.units import capacity, count, duration, rate
from ftuner.hardware.constants import PRIOR, Constant, constants, taken_from
from ftuner.hardware.gpu_model import GpuHardware, MatrixInstruction
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.model import CpuHardware, Isa, MemoryLevel
from ftuner.hardware.priors import MAX_DISTANCE, Nearest
from ftuner.hardware.recorded import to_document
from ftuner.hardware.tuning import CpuTuning
from ftuner.report.tables import table

_RATES = {"_bytes_per_s": "B/s", "_flops_per_s": "flop/s", "_hz": "Hz"}
_SCALES: Mapping[str, Callable[[Any], str]] = {"s": duration, "bytes": capacity}
"""The text of a value, by its unit."""


class Value(NamedTuple):
    """A value of the hardware model as text."""

    part: str
    quantity: str
    value: str
    """With its unit."""
    provenance: str


class Tuned(NamedTuple):
    """A constant of a tuning as text."""

    name: str
    value: str
    default: str
    own: bool
    """Whether the machine has a value of its own, or one that was taken over for it."""
    meaning: str
    provenance: str
    confidence: float | None
    """Of 1, how sure a value is that was fitted on the machine."""

    @property
    def origin(self) -> str:
        """The provenance, and how sure the value is."""
        if self.confidence is None:
            return self.provenance
        return f"{self.provenance}, confidence {self.confidence:.2f}"


def hardware_table(hardware: CpuHardware | GpuHardware, near: Nearest | None = None) -> Table:
    """A row for each value: part of the machine, quantity, value with unit, provenance.

    `near`: the nearest recorded machine, which is shown before the tuning.
    """
    last = ""
    rows = [*hardware_values(hardware)]
    if near is not None and near.machine.name != hardware.name:
        rows.append(_prior_value(near, hardware.tuning))
    rows += [Value("tuning", t.name, t.value, t.origin) for t in tuned_values(hardware.tuning)]
    shown: list[Sequence[str] | None] = []
    for row in rows:
        if last and row.part != last:
            shown.append(None)
        shown.append((row.part if row.part != last else "", *row[1:]))
        last = row.part
    title = f"{hardware.name} ({hardware.architecture})"
    return table(title, ("part", "quantity", ">value", "provenance"), shown)


def summary_table(hardware: CpuHardware) -> Table:
    """A row for each ISA and each memory level: what a core has, and its peak rate or bandwidth."""
    types, cores = product_types(FLOAT32), hardware.cores
    rows: list[Sequence[str] | None] = []
    for isa in hardware.isas:
        peaks = [hardware.peak_flops_per_s(isa, types, workers) for workers in (1, cores)]
        vectors = f"{count(isa.vector_registers, 'vector')} of {isa.vector_bytes} bytes"
        rows.append((isa.name, vectors, *(rate(peak, "flop/s") for peak in peaks)))
    rows.append(None)
    for level in hardware.levels:
        rates = level.bandwidth_bytes_per_s, level.bandwidth_all_bytes_per_s
        shared = level.shared_by_cores
        text = capacity(level.capacity_bytes) + (f", shared by {shared}" if shared > 1 else "")
        rows.append((level.name, text, *(rate(per_s, "B/s") for per_s in rates)))
    title = hardware.summary().partition(";")[0]
    return table(title, ("", "a core has", ">rate of a core", ">of all cores"), rows)


def meaning(hardware: CpuHardware) -> str:
    """What a hardware model means for products, in a sentence."""
    isa, slowest = hardware.widest, hardware.levels[-1]
    peak = hardware.peak_flops_per_s(isa, product_types(FLOAT32), hardware.cores)
    least = peak / slowest.bandwidth_all_bytes_per_s
    return (
        f"float32 products run on {isa.name}, at {rate(peak, 'flop/s')} at most; with less than "
        f"{least:.3g} flop for each byte from {slowest.name} they wait for it"
    )


def _prior_value(near: Nearest, tuning: CpuTuning | GpuTuning) -> Value:
    """The nearest recorded machine, and how many constants it lends at its distance."""
    text = f"{near.machine.name}, {near.distance:.2f} octaves"
    use = f"lends no constants: the limit is {MAX_DISTANCE:g} octaves"
    if near.distance <= MAX_DISTANCE:
        origin = taken_from(PRIOR, near.machine.name)
        lent = list(tuning.provenance.values()).count(origin)
        use = f"{origin}: lends {count(lent, 'constant')}"
    return Value("prior", "nearest recorded machine", text, use)


def hardware_values(hardware: CpuHardware | GpuHardware) -> Iterator[Value]:
    """All values but those of the tuning, part by part."""
    yield from _values("GPU" if isinstance(hardware, GpuHardware) else "CPU", hardware)
    for part in _parts(hardware):
        yield from _values(part.name, part)


def tuned_values(tuning: CpuTuning | GpuTuning) -> Iterator[Tuned]:
    """All constants of a tuning."""
    defaults = type(tuning)()
    for name, known in constants(tuning).items():
        value, default = getattr(tuning, name), getattr(defaults, name)
        yield Tuned(
            name, _constant_text(value, known), _constant_text(default, known),
            value != default or name in tuning.provenance,
            known.meaning, tuning.provenance.get(name, known.provenance),
            tuning.confidence.get(name),
        )  # fmt: skip


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


def _constant_text(value: Any, known: Constant) -> str:
    if is_dataclass(value):
        return str(value)
    scale = _SCALES.get(known.unit)
    return f"{value:g} {known.unit}".rstrip() if scale is None else scale(value)


def _values(
    name: str, part: CpuHardware | GpuHardware | Isa | MemoryLevel | MatrixInstruction
) -> Iterator[Value]:
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name in ("name", "provenance", "tuning", "correction") or isinstance(value, tuple):
            continue
        source = part.provenance.get(field.name, "")
        quantity = _quantity(field.name)
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield Value(name, f"{quantity}, {key}", _shown(field.name, item), source)
        else:
            yield Value(name, quantity, _shown(field.name, value), source)


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
