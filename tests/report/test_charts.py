"""Charts: rectangles have the sizes of what they stand for."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import pytest
from tests.report.test_explain_model import target

from ftuner.core.cpu.tile import ROW
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.hardware.recorded import load_recorded
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import planner_for
from ftuner.report.charts import LEFT, MOST_TILES, Bar, arena_chart, plan_chart, timeline
from ftuner.report.explain import BlockExplanation, explain
from ftuner.report.model import ArenaMap, Place
from ftuner.report.svg import WIDTH
from ftuner.ukernels.cpu.library import build_library


def boxes_of(chart: str) -> Iterator[tuple[str, float, float, float, float]]:
    """The title, place and size of each rectangle that has a title."""
    for found in ElementTree.fromstring(f"<div>{chart}</div>").iter("rect"):
        title = found.find("title")
        if title is not None:
            x, y, width, height = (float(found.attrib[n]) for n in ("x", "y", "width", "height"))
            yield title.text or "", x, y, width, height


def test_timeline() -> None:
    bars = [Bar(f"step {n}", f"step-{n}", n * 1e-3, "red") for n in (1, 2, 5)]
    found = list(boxes_of(timeline(bars)))
    assert [title for title, *_ in found] == ["step 1", "step 2", "step 5"]
    for (_, x, _, width, _), begin, seconds in zip(found, (0, 1, 3), (1, 2, 5), strict=True):
        assert (x, width) == pytest.approx((begin * WIDTH / 8, seconds * WIDTH / 8), abs=0.01)


@pytest.mark.parametrize(("m", "n"), [(77, 768), (1, 5), (1920, 24)])
def test_patches_cover_c(m: int, n: int) -> None:
    machine = target(2)
    library = build_library(machine.hardware, machine.isa.name, product_types(FLOAT32))
    plan = planner_for(library).plan(
        Problem(m=m, n=n, k=64, batch=1, a_layout=ROW, a_must_pack=False, b_source="panels",
                width=library.widths[0], b_k_bytes=0, workers=2)
    )  # fmt: skip
    found = list(boxes_of(plan_chart(plan)))
    area = sum(width * height for *_, width, height in found)
    top, bottom = min(y for _, _, y, _, _ in found), max(y + h for _, _, y, _, h in found)
    assert area == pytest.approx((WIDTH - LEFT) * (bottom - top), rel=1e-3)
    assert all(LEFT <= x <= x + width <= WIDTH + 0.01 for _, x, _, width, _ in found)


def test_arena() -> None:
    """The second result is above the first, and kept for one step of three."""
    arena = ArenaMap((Place(0, 100, 4, 6), Place(128, 50, 5, 5)), 256, 4, 6)
    bars = {n: Bar(f"step {n}", f"step-{n}", 0.0, "red") for n in (4, 5)}
    (_, x0, y0, width0, height0), (title, x1, y1, width1, height1) = boxes_of(
        arena_chart(arena, bars)
    )
    assert title == "50 B for 1 step, written by step 5"
    assert (x0, width0) == (LEFT, WIDTH - LEFT)
    assert (x1 - LEFT, width1) == pytest.approx(((WIDTH - LEFT) / 3,) * 2)
    assert height0 == pytest.approx(2 * height1, abs=0.02)
    assert y1 + height1 < y0


def test_tiles_of_a_gpu_cover_c() -> None:
    """Tiles one by one, or bands where there are too many."""
    hardware = load_recorded("h100-sxm")
    for m, n in ((77, 768), (1000, 4096), (30_000, 40_000)):
        found = explain(m, n, 512, 1, "float16", None, hardware)
        assert isinstance(found, BlockExplanation)
        shown = list(boxes_of(plan_chart(found.plan)))
        area = sum(width * height for *_, width, height in shown)
        top, bottom = min(y for _, _, y, _, _ in shown), max(y + h for _, _, y, _, h in shown)
        assert area == pytest.approx((WIDTH - LEFT) * (bottom - top), rel=1e-2)
        tiles = found.plan.tiles
        assert len(shown) == (tiles if tiles <= MOST_TILES else len(found.plan.bands))
