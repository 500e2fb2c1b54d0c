"""The one formula that composes the terms of an estimate."""

from ftuner.cost.step import Estimate


def test_seconds_are_the_largest_of_what_overlaps() -> None:
    terms = Estimate(1.0, 2.0, 7.0, 5.0, 3.0, 10.0, 20.0)
    assert terms.seconds == 7.0 + 10.0 + 20.0
    assert terms.bound == "l3"
    assert Estimate(issue_s=1.0, tile_s=1.5, dram_s=2.0).seconds == 2.5
    assert Estimate(issue_s=1.0, dram_s=2.0).bound == "dram"
    assert Estimate(issue_s=3.0, dram_s=2.0).bound == "compute"
    assert sum(terms.terms().values()) == 48.0
