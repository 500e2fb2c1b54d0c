"""The section of the hardware model and of the constants that differ from the defaults."""

from __future__ import annotations

from ftuner.core.units import count, optional
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import nearest, recorded_cpus
from ftuner.report.hardware import hardware_values, tuned_values
from ftuner.report.html import Html, element, html, table
from ftuner_tools.report.section import Section, Subject, panels, paragraphs

TITLE = "Hardware"


def section(subject: Subject) -> Section:
    """The values of the hardware model, each with its provenance; then the tuning."""
    parts: dict[str, list[tuple[str, str, str]]] = {}
    for part, *row in hardware_values(subject.hardware):
        quantity, value, provenance = row
        parts.setdefault(part, []).append((quantity, value, provenance))
    said = (
        "system: read from the operating system or the processor. probed: measured by a short "
        "run on the machine. datasheet, fitted, assumed: see each value."
    )
    head = ("quantity", "value", "provenance")
    values = panels(*((part, table(head, rows, ("value",))) for part, rows in parts.items()))
    return Section(TITLE, html(paragraphs(said), values, _tuning(subject)))


def _tuning(subject: Subject) -> Html:
    """The constants that differ from the defaults, then all of them, folded."""
    tuned = list(tuned_values(subject.hardware.tuning))
    own = [t for t in tuned if t.own]
    parts = [element("h3", "Tuning")]
    hardware = subject.hardware
    near = nearest(hardware, recorded_cpus()) if isinstance(hardware, CpuHardware) else None
    if near is not None and near.machine.name != hardware.name:
        away = f"{near.distance:.2f} octaves away"
        parts.append(paragraphs(f"The nearest recorded machine is {near.machine.name}, {away}."))
    if own:
        said = (
            f"{len(own)} of {count(len(tuned), 'constant')} have values of this machine, or taken "
            "over for it. prior: from the nearest recorded machine; given: from a file of another "
            "one; fitted: measured here by calibration."
        )
        sure = "{:.2f}".format
        changed = [
            (t.name, t.value, t.default, t.provenance, optional(t.confidence, sure), t.meaning)
            for t in own
        ]
        head = ("constant", "value", "default", "provenance", "confidence", "meaning")
        parts += [paragraphs(said), table(head, changed, ("confidence",))]
    else:
        said = (
            f"All {count(len(tuned), 'constant')} have their defaults: nothing was calibrated. "
            "ftuner tune calibrates the machine."
        )
        parts.append(paragraphs(said))
    rows = [(t.name, t.value, t.provenance, t.meaning) for t in tuned]
    every = table(("constant", "value", "provenance", "meaning"), rows, ("value",))
    parts.append(element("details", element("summary", "all constants"), every))
    return html(*parts)
