"""Networks with holes in their declarations, versions, constants and feeds: each is as onnxruntime
says, or refused with a named error. `python -m tests.holes` makes more."""

from pathlib import Path

from tests.holes.bases import BASES
from tests.holes.judging import BESIDES, MODEL_HOLES, REFUSED
from tests.holes.sweeping import sweep


def test_no_hole_makes_an_answer_wrong(cache_folder: Path) -> None:
    found = sweep([*BASES], range(1), 1, cache_folder)
    assert not found.findings, "\n".join(found.findings[:20])
    assert {*MODEL_HOLES, *BESIDES} - found.loaded == REFUSED
    assert found.answers > 500
    assert found.refusals["IndexRangeError"] > 10
