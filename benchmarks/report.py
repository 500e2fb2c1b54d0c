"""`python -m benchmarks.report`: write docs/performance and its summaries from saved results."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import (
    report_batches,
    report_cpu,
    report_gpu,
    report_pictures,
    report_summary,
    report_zoo,
)
from benchmarks.markdown import paragraphs
from benchmarks.recorded import Recorded, read_recorded
from benchmarks.run import RESULTS

ROOT = Path(__file__).parent.parent
BEGIN = "<!-- benchmarks:begin (written by python -m benchmarks.report) -->"
END = "<!-- benchmarks:end -->"
PAGES = ("docs/performance.md", "docs/batches.md", "README.md")
"""Those with markers."""
WRITTEN = "<!-- Written by python -m benchmarks.report. -->"


def page(machine: Recorded) -> str:
    """The page of one machine, in Markdown."""
    return "\n".join(_page(machine)) + "\n"


def _page(machine: Recorded) -> Iterator[str]:
    yield from paragraphs(f"# Performance on {machine.title}", WRITTEN)
    if machine.state:
        yield from paragraphs(
            f"**These are results of an earlier version of ftuner.** {machine.state}"
        )
    yield from paragraphs(
        "A ratio is a peer's time divided by ftuner's, both measured in one run: above one, ftuner "
        "is faster. [How it is measured](../method.md) explains the columns."
    )
    gpu = machine.of_kind(report_gpu.KIND)
    yield from report_gpu.chapter(gpu) if gpu else report_cpu.chapter(machine.documents)


def replace_between_markers(text: str, lines: Iterator[str]) -> str:
    """`text` with what stands between the markers replaced; raises ValueError without them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks its markers {BEGIN!r} and {END!r}")
    generated = "\n".join(lines)
    return f"{before}{BEGIN}\n\n{generated}\n{END}{after}"


def write_pages(machines: Sequence[Recorded], folder: Path) -> None:
    """Write a page for each machine into `folder`, and remove pages of others."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.md"):
        path.unlink()
    for machine in machines:
        (folder / f"{machine.page}.md").write_text(page(machine))


def write_pictures(machines: Sequence[Recorded], folder: Path) -> list[tuple[str, str]]:
    """Draw the results of recent versions into `folder`, and remove pictures of others; returns
    the name of each file, and its text."""
    for path in folder.glob("*.svg"):
        path.unlink()
    recent = (machine for machine in machines if not machine.state)
    return [drawn for machine in recent for drawn in report_pictures.draw(machine, folder)]


def write_summaries(
    machines: Sequence[Recorded], pictures: Sequence[tuple[str, str]], root: Path
) -> None:
    """Rewrite what stands between the markers of `PAGES`."""
    written = (
        report_summary.performance(machines, pictures), report_batches.speed(machines),
        report_summary.front(machines),
    )  # fmt: skip
    for page, lines in zip(PAGES, written, strict=True):
        path = root / page
        path.write_text(replace_between_markers(path.read_text(), lines))


def main(
    results: Annotated[Path, typer.Option(help="Folder of JSON results.")] = RESULTS,
    root: Annotated[Path, typer.Option(help="Folder with README.md and docs.")] = ROOT,
) -> None:
    """Write a page and pictures for each machine, the summaries of all, and the architectures."""
    machines = read_recorded(results)
    folder = root / "docs" / "performance"
    write_pages(machines, folder)
    write_summaries(machines, write_pictures(machines, folder), root)
    architectures = report_zoo.page(report_zoo.recorded(results))
    (root / "docs" / "zoo.md").write_text(f"{WRITTEN}\n{architectures}")


if __name__ == "__main__":
    typer.run(main)
