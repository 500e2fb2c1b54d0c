"""The section of the library: what each filter takes out, and how fast the kept tiles are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftuner.core.units import count
from ftuner.cost.cpu.tile import efficiency
from ftuner.cost.gpu.tile import peak_flops_per_s
from ftuner.report.html import Html, element, html, scrolled, table
from ftuner.report.tuning import funnel_rows
from ftuner.ukernels.cpu.library import Library
from ftuner.ukernels.gpu.filters import tile_rate
from ftuner.ukernels.gpu.library import GpuLibrary
from ftuner_tools.report.section import Section, Subject, paragraphs

TITLE = "Library"


class Cell(NamedTuple):
    """A tile of the library."""

    name: str
    share: float
    """Share of the peak that the tile reaches."""


def section(subject: Subject) -> Section:
    """The funnel of filters, then a table of the kept tiles by height and width."""
    library = subject.library
    numbers = ("pruned", "left")
    funnel = table(("step", *numbers, "reason"), funnel_rows(library), numbers)
    tiles = _gpu_tiles(library) if isinstance(library, GpuLibrary) else _tiles(library)
    return Section(TITLE, html(_title(library), funnel, tiles))


def _title(library: Library | GpuLibrary) -> Html:
    if isinstance(library, GpuLibrary):
        return paragraphs(f"Block tiles for {library.dtype}, multiplied as {library.multiply}.")
    return paragraphs(f"Register tiles for {library.types} on {library.isa.name}.")


def _tiles(library: Library) -> Html:
    funnel, isa, types = library.funnel, library.isa, library.types
    cells: dict[tuple[int, str], Cell] = {}
    names: dict[int, str] = {}
    for tile in sorted(funnel.kept, key=lambda t: (t.width not in funnel.widths, t.width, t.mr)):
        use = "" if tile.width in funnel.widths else ", tails"
        names[tile.width] = f"{tile.width * library.lanes} columns{use}"
        share = efficiency(tile, isa, types)
        cells[tile.mr, names[tile.width]] = Cell(str(tile), share)
    said = (
        f"The {count(len(funnel.kept), 'tile')} of the library, and the share of the peak that "
        "each reaches with its operands in L1: 1 minus what latency and load ports cost. Tiles of "
        "narrower widths compute the last columns alone. Point at a tile to see its vectors, "
        "parts and chains."
    )
    return html(paragraphs(said), _grid("rows", list(names.values()), cells))


def _gpu_tiles(library: GpuLibrary) -> Html:
    hardware, size = library.hardware, library.dtype.itemsize
    peak = peak_flops_per_s(hardware, library.multiply) / hardware.multiprocessors
    cells: dict[tuple[int, str], Cell] = {}
    names: dict[int, str] = {}
    for tile in sorted(library.tiles, key=lambda t: (t.bn, t.bm)):
        names[tile.bn] = f"{tile.bn} columns"
        share = tile_rate(hardware, library.cost(tile), size) / peak
        place = tile.bm, names[tile.bn]
        if place not in cells or cells[place].share < share:
            cells[place] = Cell(str(tile), share)
    steps = hardware.tuning.reference_k_bytes // size
    said = (
        f"The {count(len(library.tiles), 'tile')} of the library, and the rate that filters "
        f"compare them by, as a share of the peak: at {steps} k steps, while all multiprocessors "
        "read from L2. Where several tiles have one size, the fastest is shown."
    )
    return html(paragraphs(said), _grid("rows", list(names.values()), cells))


def _grid(corner: str, columns: Sequence[str], cells: Mapping[tuple[int, str], Cell]) -> Html:
    """A table of shares by height and width, the stronger the colour the closer to the best."""
    best = max(cell.share for cell in cells.values())
    head = [element("th", corner), *(element("th", name) for name in columns)]
    rows = []
    for height in sorted({height for height, _ in cells}):
        row = [element("th", str(height))]
        for name in columns:
            cell = cells.get((height, name))
            if cell is None:
                row.append(element("td"))
                continue
            style = f"background:rgba(76,120,168,{0.75 * (cell.share / best) ** 3:.2f})"
            row.append(element("td", f"{cell.share:.0%}", title=cell.name, style=style))
        rows.append(element("tr", *row))
    shown = element("table", element("thead", element("tr", *head)), element("tbody", *rows),
                    class_="tiles")  # fmt: skip
    return scrolled(shown)
