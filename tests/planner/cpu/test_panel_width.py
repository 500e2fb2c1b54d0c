"""Which width a weight is packed in, on recorded machines."""

import pytest

from ftuner.core.cpu.tile import ROW
from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.planner.cpu.planner import (
    REFERENCE_ROWS,
    Planner,
    best_width,
    panel_problem,
    planner_for,
)
from ftuner.ukernels.cpu.library import build_library


def planner(name: str) -> Planner:
    machine = load_recorded(name)
    assert isinstance(machine, CpuHardware)
    return planner_for(build_library(machine, machine.widest.name, product_types(FLOAT32)))


@pytest.mark.parametrize(
    ("machine", "n", "k", "columns"),
    [("epyc-milan-2", 768, 768, 16), ("epyc-milan-2", 16, 768, 16), ("xeon-8375c", 768, 768, 64)],
)
def test_known_widths(machine: str, n: int, k: int, columns: int) -> None:
    found = planner(machine)
    assert best_width(found, n, k, 1) * found.library.lanes == columns


def test_no_other_width_is_cheaper_for_all_rows(recorded: CpuHardware) -> None:
    found = planner_for(build_library(recorded, recorded.widest.name, product_types(FLOAT32)))
    for n, k in ((768, 768), (33, 64), (3072, 768)):
        chosen = best_width(found, n, k, 1)
        for other in set(found.library.widths) - {chosen}:
            seconds = [
                [
                    found.estimate(found.plan(panel_problem(n, k, width, m, 1, ROW, False))).seconds
                    for m in REFERENCE_ROWS
                ]
                for width in (chosen, other)
            ]
            assert any(mine <= theirs for mine, theirs in zip(*seconds, strict=True))
