"""Blocks of attention, on recorded machines."""

from __future__ import annotations

import pytest
from tests.recorded_cpus import planner_of

from ftuner.schedules.attention.cpu_cost import AttentionProblem
from ftuner.schedules.attention.cpu_plan import attention_blocks


def plain(
    elements: int, rows: int, depth: int, steps: int, columns: int, workers: int
) -> AttentionProblem:
    """Every head has keys of its own, and every row sees all of them."""
    return AttentionProblem(elements, elements, rows, depth, steps, columns, None, workers)


@pytest.mark.parametrize(
    ("machine", "problem", "rows", "splits"),
    [
        # Heads divide evenly by workers: a block is eight tiles of six rows.
        ("epyc-milan-2", (12, 77, 64, 77, 64, 2), 48, 1),
        ("epyc-milan-2", (12, 5, 64, 77, 64, 2), 5, 1),
        # One head for two workers is cut, into whole tiles: at most 3 of 16 for 95 rows.
        ("epyc-milan-2", (1, 77, 64, 77, 64, 2), 18, 6),
        ("epyc-milan-2", (3, 512, 64, 512, 64, 2), 48, 2),
        # Scores of a block fill a quarter of L2 at most.
        ("epyc-milan-2", (12, 4096, 64, 4096, 64, 2), 6, 1),
    ],
)
def test_blocks(machine: str, problem: tuple[int, ...], rows: int, splits: int) -> None:
    found = attention_blocks(planner_of(machine), plain(*problem))
    assert found[::2] == (rows, splits)
    assert found.runs == problem[0] * splits


def test_blocks_of_causal_attention() -> None:
    """Enough of them that little beside the triangle is computed."""
    square, planner = plain(12, 480, 64, 480, 64, 2), planner_of("epyc-milan-2")
    assert attention_blocks(planner, square).rows == 48
    assert attention_blocks(planner, square._replace(rows=240, offset=0)).rows == 24
    assert attention_blocks(planner, square._replace(rows=20, offset=0)).rows == 6


def test_heads_that_share_keys_stay_together() -> None:
    grouped = plain(12, 77, 64, 77, 64, 2)._replace(groups=4)
    assert attention_blocks(planner_of("epyc-milan-2"), grouped).runs == 4
    # Three groups for two workers: heads are dealt one by one.
    assert attention_blocks(planner_of("epyc-milan-2"), grouped._replace(groups=3)).runs == 12
