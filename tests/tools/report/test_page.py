"""The page of a machine: whole with all data, whole without any, and never markup from a file."""

import re
from dataclasses import replace
from datetime import date
from html import unescape
from pathlib import Path

import pytest
from tests.report.test_page import Parsed
from tests.tools.report.files import findings, library_of, machine, samples_of, write, write_all

from ftuner.core.dtype import FLOAT16
from ftuner.hardware.constants import constants
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.hardware.tuning import CpuTuning
from ftuner.learn.samples import SampleProblem
from ftuner.ukernels.gpu.library import build_gpu_library
from ftuner_tools.report.findings import read_findings
from ftuner_tools.report.measured import Measured, read_measured
from ftuner_tools.report.page import MachinePage, machine_page
from ftuner_tools.report.section import MEASURE, Subject

TITLES = (
    "Hardware", "Library", "Roofline", "Time over rows", "Regret of the chosen plans",
    "Rank correlation", "Transfer from other machines", "Plans", "Benchmarks",
)  # fmt: skip
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x00\N{BELL}"


def made(subject: Subject, measured: Measured = Measured()) -> MachinePage:  # noqa: B008
    return machine_page(subject, measured, "1.2.3", date(2026, 2, 3))


def expect_complete(found: MachinePage) -> Parsed:
    """Parses a page; it has all sections and refers to nothing outside."""
    parsed = Parsed(found.content)
    assert tuple(section.title for section in found.sections) == TITLES
    targets = {value for _, values in parsed.found if (value := values.get("id"))}
    assert {link.removeprefix("#") for link in parsed.values("href")} == targets
    assert not parsed.values("src")
    assert {tag for tag, _ in parsed.found} & {"script", "link", "img", "iframe"} == set()
    assert not [name for _, values in parsed.found for name in values if name.startswith("on")]
    assert not re.search(r"https?:|url\(|@import", found.content)
    assert "1.2.3 on 2026-02-03" in found.content
    for number in re.findall(r'(?:x|y|cx|cy|width|height|points)="([^"]*)"', found.content):
        assert not re.search("nan|inf", number)
    return parsed


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject(machine(), library_of(machine()), 2)


def test_without_data(subject: Subject) -> None:
    found = made(subject)
    expect_complete(found)
    commands = {section.title: section.missing for section in found.sections}
    assert [title for title in TITLES if commands[title] is None] == [
        "Hardware",
        "Library",
        "Plans",
    ]
    for title in ("Roofline", "Regret of the chosen plans", "Rank correlation"):
        assert commands[title] == MEASURE
    assert found.content.count(MEASURE) == 5
    assert "python -m benchmarks.run" in found.content
    # Estimates alone: one roofline, four weights, four plans.
    assert found.content.count('role="img"') == 9


def test_with_all_data(tmp_path: Path, subject: Subject) -> None:
    measured = read_measured(subject.hardware, write_all(tmp_path, machine(), "a <name>"))
    found = made(subject, measured)
    expect_complete(found)
    assert [section.title for section in found.sections if section.missing] == []
    text = unescape(found.content)
    for part in (
        "float32 on avx2, 1 worker", "float32 on avx2, 2 workers", "measured, weight from L3",
        "n = 96, k = 64, 1 worker", "12.3%", "1.7%", "0.4%", "0.830", "a <name>, 8 measurements",
        "77 x 770 x 768", "1.59", "Without ratios to peers", "32measured plans",
    ):  # fmt: skip
        assert part in re.sub("</b>", "", text) if part[0] == "3" else part in text, part


def test_samples_are_the_times_over_rows_without_others(tmp_path: Path, subject: Subject) -> None:
    """Findings of cliffs come first; without them chosen samples are drawn."""
    measured = read_measured(subject.hardware, write_all(tmp_path, machine()))
    alone = Measured(samples=measured.samples)
    content = made(subject, alone).content
    for workers in ("1 worker", "2 workers"):
        assert f"n = 96, k = 64, {workers}" in content
    assert content.count("rows: measured, weight from L3") == 32
    # Plans that the planner does not take are not drawn.
    others = Measured(samples=tuple(replace(s, chosen=False) for s in measured.samples))
    assert "rows: measured, weight from L3" not in made(subject, others).content


def test_names_in_files_are_text(tmp_path: Path, subject: Subject) -> None:
    measured = read_measured(subject.hardware, write_all(tmp_path, machine(), HOSTILE))
    found = made(subject, measured)
    expect_complete(found)
    assert "<script" not in found.content
    assert "<img" not in found.content
    assert "&lt;script&gt;" in found.content
    assert "\x00" not in found.content


def test_ways_to_pick_plans_are_lines_of_their_own(tmp_path: Path, subject: Subject) -> None:
    transfer = [
        {"target": "t", "method": "tuned", "measurements": n, "error": 0.1, "picked": picked}
        for picked in ("random", "close")
        for n in (0, 8)
    ]
    path = write(tmp_path / "m.json", {"transfer": transfer})
    content = made(subject, Measured(findings=read_findings(path, None))).content
    for picked in ("random", "close"):
        assert content.count(f"<title>tuned, {picked} plans, 8 measurements: error 0.1") == 1


def test_extreme_numbers(tmp_path: Path, subject: Subject) -> None:
    """The largest extents and times that files may have make a page without NaN."""
    document = findings()
    for extent, seconds in ((1 << 40, 1e6), (1, 1e-10)):
        document["cliffs"] = [
            {"n": extent, "k": extent, "level": "L3", "m": [1, 2], "seconds": [seconds] * 2}
        ]
        for found in document["transfer"]:
            found.update(error=1e6, measurements=extent)
        path = write(tmp_path / "m.json", document)
        sample = samples_of(machine())[0]
        problem = SampleProblem(extent, extent, extent)
        sample = replace(sample, problem=problem, seconds=seconds)
        measured = Measured((sample,), read_findings(path, None))
        expect_complete(made(subject, measured))


def test_long_names_are_cut(tmp_path: Path, subject: Subject) -> None:
    measured = read_measured(subject.hardware, write_all(tmp_path, machine(), "x" * 100_000))
    found = made(subject, measured)
    expect_complete(found)
    assert "x" * 100 not in found.content


def test_the_tuning_of_the_machine() -> None:
    """A constant that was fitted to its default is shown, too."""
    fitted = {"tile_cycles": "fitted", "cache_share": "fitted"}
    sure = {"tile_cycles": 0.876, "cache_share": 1.0}
    tuning = CpuTuning(tile_cycles=24.0, provenance=fitted, confidence=sure)
    hardware = replace(machine(), tuning=tuning)
    content = made(Subject(hardware, library_of(hardware), 1)).content
    assert f"2 of {len(constants(CpuTuning))} constants have values of this" in content
    assert '<td class="number">0.88</td>' in content
    hardware = replace(machine(), tuning=CpuTuning())
    content = made(Subject(hardware, library_of(hardware), 1)).content
    assert "nothing was calibrated" in content


@pytest.mark.each_value
@pytest.mark.parametrize("name", recorded_names())
def test_recorded_machines(name: str) -> None:
    hardware = load_recorded(name)
    if isinstance(hardware, GpuHardware):
        found = made(Subject(hardware, build_gpu_library(hardware, FLOAT16), 1))
        assert {section.missing for section in found.sections} == {None, "python -m benchmarks.gpu"}
        assert found.content.count("Measured on CPUs only.") == 3
    else:
        found = made(Subject(hardware, library_of(hardware), hardware.cores))
    expect_complete(found)
    assert name in found.content
