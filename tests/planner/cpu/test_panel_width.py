"""Which width a weight is packed in, on recorded machines."""

import pytest
from tests.recorded_cpus import planner_of

from ftuner.core.cpu.tile import ROW
from ftuner.hardware.model import CpuHardware
from ftuner.planner.cpu.planner import REFERENCE_ROWS, best_width, panel_problem


@pytest.mark.parametrize(
    ("machine", "n", "k", "columns"),
    [("epyc-milan-2", 768, 768, 16), ("epyc-milan-2", 16, 768, 16), ("xeon-8375c", 768, 768, 64)],
)
def test_known_widths(machine: str, n: int, k: int, columns: int) -> None:
    found = planner_of(machine)
    assert best_width(found, n, k, 1) * found.library.lanes == columns


def test_no_other_width_is_cheaper_for_all_rows(recorded: CpuHardware) -> None:
    found = planner_of(recorded)
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
