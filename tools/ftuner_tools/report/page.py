"""The page of a machine: what it is, what its library and plans are, how good the choices are."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from ftuner.core.units import count, rate
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.report.html import Html, element, facts, html, linked, page
from ftuner_tools.report import (
    benchmarks,
    hardware,
    library,
    plans,
    regret,
    roofline,
    rows,
    transfer,
)
from ftuner_tools.report.measured import Measured
from ftuner_tools.report.plans import explained
from ftuner_tools.report.section import Section, Subject, unavailable


class MachinePage(NamedTuple):
    """A page and its sections."""

    content: Html
    sections: tuple[Section, ...]


def machine_page(
    subject: Subject, measured: Measured, version: str, date: datetime.date
) -> MachinePage:
    """The page of a machine. A section without data says which command makes it.

    Args:
        subject: the machine, its library and its workers.
        measured: what files say of the machine.
        version: of ftuner, whose estimates these are.
        date: when the page was made.
    """
    on_gpu = isinstance(subject.hardware, GpuHardware)
    only_cpu = "Measured on CPUs only."
    sections = (
        hardware.section(subject),
        library.section(subject),
        roofline.section(subject, measured),
        rows.section(subject, measured),
        *(
            (unavailable(title, only_cpu) for title in (regret.REGRET, regret.RANK, transfer.TITLE))
            if on_gpu
            else (
                regret.regret_section(measured),
                regret.rank_section(measured),
                transfer.section(measured),
            )
        ),
        plans.section(subject),
        benchmarks.section(measured, on_gpu),
    )
    title = f"ftuner on {subject.hardware.name}"
    contents = (linked(_anchor(n), s.title) for n, s in enumerate(sections))
    body = (html(element("h2", s.title, id=_anchor(n)), s.body) for n, s in enumerate(sections))
    head = (element("h1", title), facts(_facts(subject, measured)),
            element("div", *contents, class_="keys"))  # fmt: skip
    said = element("p", element("small", f"Made by ftuner {version} on {date.isoformat()}."))
    return MachinePage(page(title, [*head, *body, said]), sections)


def _anchor(number: int) -> str:
    return f"section-{number + 1}"


def _facts(subject: Subject, measured: Measured) -> dict[str, str]:
    machine = subject.hardware
    line = explained(subject, 1, 1, 1).roofline
    found = {f"peak, {count(subject.workers, 'worker')}": rate(line.peak_flops_per_s, "flop/s")}
    if isinstance(machine, GpuHardware):
        found = {
            "multiprocessors": str(machine.multiprocessors),
            "peak": rate(line.peak_flops_per_s, "flop/s"),
        }
    else:
        found["processor"] = machine.model_name
        found["cores"] = str(machine.cores)
        found["instruction sets"] = ", ".join(isa.name for isa in machine.isas)
    found[f"from {line.roofs[-1].level}"] = rate(line.roofs[-1].bandwidth_bytes_per_s, "B/s")
    found["tiles kept"] = str(len(subject.library.funnel.kept))
    if measured.samples:
        found["measured plans"] = str(len(measured.samples))
    return found
