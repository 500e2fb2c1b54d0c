"""The tables of tiles by chip: the published data, and how far the estimate ranks it."""

import json
from math import isnan

import pytest
from benchmarks.gpu_transfer import (
    PUBLISHED,
    choices,
    correlated,
    gpu,
    own_launches,
    parsed,
    published_launches,
    rank_correlation,
    summary,
)

from ftuner.core.gpu.tile import BlockTile

DOCUMENT = json.loads(PUBLISHED.read_text(encoding="utf-8"))


def test_names_of_tiles() -> None:
    tile = BlockTile(64, 32, 128, 4, 6)
    assert parsed(str(tile)) == (tile, 1)
    assert parsed(f"{tile}, split-k 12") == (tile, 12)


def test_rank_correlation() -> None:
    assert rank_correlation([1.0, 2.0, 5.0], [3.0, 30.0, 31.0]) == pytest.approx(1.0)
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4 beside 1, 2, 3, 4.
    tied = rank_correlation([1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0])
    assert tied == pytest.approx(0.9487, rel=1e-4)
    assert isnan(rank_correlation([1.0, 1.0], [1.0, 2.0]))


def test_the_estimate_ranks_what_was_measured() -> None:
    """The chip that constants were fitted on, and one that ftuner never ran on."""
    count, correlation, picked = summary(list(correlated(gpu("h200"), own_launches(), True)))
    assert count == 302
    assert correlation > 0.9
    assert picked < 1.05
    for entry in DOCUMENT["timings"]:
        found = list(correlated(gpu(entry["chip"]), published_launches(entry), False))
        count, correlation, picked = summary(found)
        assert count == sum(len(product["ms"]) for product in entry["products"])
        assert correlation > 0.4
        assert picked < 1.05


def test_tuned_tiles_are_nearly_the_best_by_the_estimate() -> None:
    """Of a chip that ftuner never ran on: A100."""
    (entry,) = (entry for entry in DOCUMENT["choices"] if entry["chip"] == "a100-sxm-80gb")
    some = {tokens: entry["tiles"][tokens] for tokens in ("2", "128", "4096")}
    found = list(choices({**entry, "tiles": some}))
    assert [tokens for tokens, *_ in found] == [2, 128, 4096]
    assert all(ratio is not None and 1.0 <= ratio < 1.05 for *_, ratio in found)
