"""`python -m tests.plan_picture`: draws docs/plan.svg, the tiles of a plan for a known machine."""

from collections.abc import Iterator
from pathlib import Path

import ftuner
from ftuner.report.explain import Explanation

PATH = Path(__file__).parent.parent / "docs" / "plan.svg"
M, N, K, WORKERS, MACHINE = 77, 768, 768, 2, "xeon-8375c"
WIDTH, HEIGHT = 680, 330
LEFT, TOP, PER_COLUMN, PER_ROW = 60, 50, 0.65, 3.0
FILLS = ("#4c78a8", "#f58518")
"""Of tiles by height."""


def picture() -> str:
    found = ftuner.explain(M, N, K, workers=WORKERS, hardware=MACHINE)
    assert isinstance(found, Explanation)
    title = f"{M} x {N} x {K} on {MACHINE} ({found.isa.name}), {WORKERS} threads"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    heading = f'<text x="{LEFT}" y="20" font-size="15">{title}</text>'
    return "\n".join([head, background, heading, *_tiles(found), *_marks(found), "</svg>", ""])


def _tiles(found: Explanation) -> Iterator[str]:
    """Each tile of the result, filled by its height."""
    for region in found.regions():
        tile = region.kernel
        fill = FILLS[0 if tile.mr == max(r.kernel.mr for r in found.regions()) else 1]
        for top in range(*region.rows, tile.mr):
            for left in range(*region.columns, tile.nr):
                yield (
                    f'<rect x="{_x(left):g}" y="{_y(top):g}" width="{tile.nr * PER_COLUMN:g}" '
                    f'height="{tile.mr * PER_ROW:g}" fill="{fill}" stroke="white"/>'
                )


def _marks(found: Explanation) -> Iterator[str]:
    """The share of each thread, and the heights of tiles."""
    regions = found.regions()
    for region in regions:
        left, right = region.columns
        if region.rows[0] == 0:
            (worker,) = region.workers
            label = f"thread {worker}: columns {left} to {right}"
            yield _text((_x(left) + _x(right)) / 2, TOP - 8, label, "middle")
            yield (
                f'<rect x="{_x(left):g}" y="{TOP}" width="{(right - left) * PER_COLUMN:g}" '
                f'height="{M * PER_ROW:g}" fill="none" stroke="black" stroke-width="2"/>'
            )
        if right == N:
            top, bottom = region.rows
            tile = region.kernel
            count = -(-(bottom - top) // tile.mr)
            label = f"{count} x {tile.mr} rows"
            yield _text(_x(N) + 10, (_y(top) + _y(bottom)) / 2 + 4, label, "start")
    yield _text(LEFT - 8, _y(0) + 10, "row 0", "end")
    yield _text(LEFT - 8, _y(M), f"{M}", "end")
    tile = regions[0].kernel
    note = f"Each cell is one tile of {tile.nr} columns, summed over k = {K} in registers."
    yield _text(LEFT, _y(M) + 28, note, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def _x(column: int) -> float:
    return LEFT + column * PER_COLUMN


def _y(row: int) -> float:
    return TOP + row * PER_ROW


if __name__ == "__main__":
    PATH.write_text(picture(), encoding="utf-8")
