"""Steps that repeat share a row of the tables."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from ftuner.report.model import FusedGroup, ModelExplanation
from ftuner.report.model_tables import model_table, rows_of, work_table

PRODUCT = FusedGroup(
    1, "product", "matmul + add", "[5, 8] @ [8, 6] -> [5, 6]", "1 x 5x8", 480, 300, 172, 1e-6,
    "compute", 2e-6,
)  # fmt: skip
NORM = FusedGroup(
    2, "nest", "norm", "[5] over [6]", "8 lanes", 100, 40, 60, 5e-7, "dram", 1e-6
)  # fmt: skip


def explanation(*groups: FusedGroup) -> ModelExplanation:
    numbered = tuple(replace(group, number=n) for n, group in enumerate(groups, 1))
    return ModelExplanation(numbered, {}, None, 0, None, None, {}, ())


def text_of(table: Table, width: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def test_alike_steps_share_a_row() -> None:
    found = explanation(PRODUCT, NORM, replace(PRODUCT, measured_s=4e-6, bound="l3"), NORM, NORM)
    rows = rows_of(found)
    assert [(row.first.number, len(row.groups)) for row in rows] == [(1, 2), (2, 3)]
    assert rows[0].bounds == "compute, l3"
    sums = {"measured_s": 6e-6, "estimate_s": 2e-6, "flops": 960, "bytes_moved": 944}
    for what, own in sums.items():
        assert rows[0].sum(what) == pytest.approx(own)
        assert sum(row.sum(what) for row in rows) == pytest.approx(getattr(found, what))
    text = text_of(model_table(found, rows, "title"))
    for part in ("times", "product: matmul + add", "[5, 8] @ [8, 6] -> [5, 6]", "6 us", "3.00"):
        assert part in text
    assert text.count("product: matmul + add") == 1
    assert "960" in text_of(work_table(found, rows))
    assert max(map(len, text.splitlines())) <= 80


def test_every_step() -> None:
    found = explanation(PRODUCT, NORM, PRODUCT)
    rows = rows_of(found, every_step=True)
    assert [row.groups for row in rows] == [(group,) for group in found.groups]
    text = text_of(model_table(found, rows, "title"))
    assert text.count("product: matmul + add") == 2
    assert "times" not in text


@pytest.mark.parametrize(
    "change", [{"kind": "nest"}, {"title": "matmul"}, {"shapes": "[1]"}, {"plan": "1 x 5x16"}]
)
def test_what_differs_does_not_share_a_row(change: dict[str, str]) -> None:
    assert len(rows_of(explanation(PRODUCT, replace(PRODUCT, **change)))) == 2


def test_unknown_times_and_work() -> None:
    bare = replace(PRODUCT, flops=None, reads_bytes=None, estimate_s=None, bound=None,
                   measured_s=None)  # fmt: skip
    (row,) = rows_of(explanation(bare, bare))
    names = ("flops", "bytes_moved", "estimate_s", "measured_s")
    assert [row.sum(name) for name in names] == [None] * 4
    found = explanation(bare, bare)
    assert "estimate" not in text_of(model_table(found, rows_of(found), "title"))
