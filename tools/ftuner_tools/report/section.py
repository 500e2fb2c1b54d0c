"""What sections of the page of a machine are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.model import CpuHardware
from ftuner.report.html import Html, element, html
from ftuner.ukernels.cpu.library import Library
from ftuner.ukernels.gpu.library import GpuLibrary

MEASURE = "python -m benchmarks.machines"
"""The command that measures plans on a machine, and what is learned from them."""


@dataclass(frozen=True)
class Subject:
    """The machine of a page, with the library and the workers of its estimates."""

    hardware: CpuHardware | GpuHardware
    library: Library | GpuLibrary
    workers: int
    """Threads of a CPU; 1 for a GPU."""


class Section(NamedTuple):
    """A part of the page."""

    title: str
    body: Html
    missing: str | None = None
    """The command that makes what the section would show, if that is not there."""


def missing(title: str, what: str, command: str) -> Section:
    """A section without data: one line that says which command makes it."""
    body = element(
        "p", f"No {what} given: run ", element("code", command), ", then ",
        element("code", "ftuner report --results FOLDER"), ".", class_="missing",
    )  # fmt: skip
    return Section(title, body, command)


def unavailable(title: str, why: str) -> Section:
    """A section that does not apply to the machine."""
    return Section(title, element("p", why, class_="missing"))


def paragraphs(*texts: str) -> Html:
    """Texts, each a paragraph."""
    return html(*(element("p", text) for text in texts))


def panels(*drawn: tuple[str, Html]) -> Html:
    """Charts with titles, two side by side where the screen is wide enough."""
    return element(
        "div",
        *(element("div", element("h3", title), content) for title, content in drawn),
        class_="panels",
    )
