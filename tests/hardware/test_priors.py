"""Constants that a machine takes over from others: which, from whom, and what is stronger."""

from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import recorded_cpus
from tests.hardware.test_correction import document as correction_document

from ftuner.hardware import priors
from ftuner.hardware.constants import GIVEN, PRIOR, is_taken, taken_from
from ftuner.hardware.correction import from_document as from_correction
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import own_tuning, portable, with_given, with_nearest
from ftuner.hardware.recorded import from_document, load_recorded, to_document
from ftuner.hardware.tuning import CpuTuning

DEFAULT = CpuTuning()


def machine(name: str = "epyc-milan-2", **tuning: Any) -> CpuHardware:
    """A recorded machine with a tuning of its own: values, each measured."""
    found = load_recorded(name)
    assert isinstance(found, CpuHardware)
    provenance = dict.fromkeys(tuning, "probed")
    return replace(found, tuning=CpuTuning(**tuning, provenance=provenance))


@pytest.fixture
def lender(monkeypatch: pytest.MonkeyPatch) -> CpuHardware:
    """The only recorded machine, which has a tuned constant in cycles, one in seconds, a ratio, and
    one of the probe."""
    found = machine(tile_cycles=25.0, synchronise_s=4e-6, cache_share=0.7, issue_rate_tolerance=0.1)
    found = replace(found, name="epyc-zen9")
    monkeypatch.setattr(priors, "recorded_cpus", lambda: (found,))
    return found


def test_portable(lender: CpuHardware) -> None:
    assert portable(lender.tuning) == {"tile_cycles": 25.0, "cache_share": 0.7}
    for provenance in ("assumed", "prior: other", "given: other"):
        tuning = CpuTuning(tile_cycles=25.0, provenance={"tile_cycles": provenance})
        assert portable(tuning) == {}
    assert portable(CpuTuning(tile_cycles=25.0)) == {}


def test_a_new_machine_starts_from_the_nearest(lender: CpuHardware) -> None:
    found = with_nearest(machine())
    assert found.tuning == replace(DEFAULT, tile_cycles=25.0, cache_share=0.7)
    assert found.tuning.provenance == dict.fromkeys(
        ("tile_cycles", "cache_share"), "prior: epyc-zen9"
    )
    assert replace(found, tuning=DEFAULT) == machine()
    assert from_document(to_document(found)) == found
    assert own_tuning(found.tuning) == DEFAULT
    assert own_tuning(found.tuning).provenance == {}


@pytest.mark.usefixtures("lender")
def test_a_machine_far_away_lends_nothing() -> None:
    assert with_nearest(machine("xeon-8375c")) == machine("xeon-8375c")
    assert with_nearest(machine("graviton2")) == machine("graviton2")


@pytest.mark.usefixtures("lender")
def test_what_was_measured_here_stays() -> None:
    found = with_nearest(machine(tile_cycles=30.0))
    assert (found.tuning.tile_cycles, found.tuning.cache_share) == (30.0, 0.7)
    assert found.tuning.provenance["tile_cycles"] == "probed"
    # Also where the measurement confirmed the default.
    confirmed = machine(tile_cycles=DEFAULT.tile_cycles)
    assert with_nearest(confirmed).tuning.tile_cycles == DEFAULT.tile_cycles


def test_a_loan_ends_with_its_lender(lender: CpuHardware, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded later replaces it, whether it is another value, none, or another machine."""
    before = with_nearest(machine(steps_per_short_round=4))
    other = replace(machine(tile_cycles=28.0), name="epyc-zen10")
    for recorded, cycles in (((other,), 28.0), ((), DEFAULT.tile_cycles), ((lender,), 25.0)):
        monkeypatch.setattr(priors, "recorded_cpus", lambda r=recorded: r)
        after = with_nearest(before)
        assert after.tuning.tile_cycles == cycles
        assert after.tuning.steps_per_short_round == 4
        origins = set(after.tuning.provenance.values())
        assert origins == {"probed", *(taken_from(PRIOR, each.name) for each in recorded)}


@pytest.mark.usefixtures("lender")
def test_the_same_machine_takes_all_over() -> None:
    source = with_nearest(machine(steps_per_short_round=4, synchronise_s=3e-6))
    here = replace(machine(tile_cycles=30.0), clock_hz=3.0e9)
    found = with_given(here, source)
    assert found.tuning == replace(
        DEFAULT, steps_per_short_round=4, synchronise_s=3e-6, tile_cycles=25.0, cache_share=0.7
    )
    assert found.tuning.provenance["steps_per_short_round"] == "probed"
    assert found.tuning.provenance["tile_cycles"] == "prior: epyc-zen9"
    assert found.clock_hz == 3.0e9


def test_the_correction_comes_with_its_tuning(lender: CpuHardware) -> None:
    """It is one of the errors of an estimate with this very tuning."""
    found = from_correction({**correction_document(), "fingerprint": machine().fingerprint})
    whole = dict.fromkeys(("tile_cycles", "cache_share"), 1.0)
    for own, taken in ((whole, found), ({"tile_cycles": 1.0}, None)):
        source = replace(machine(**own), correction=found)
        assert with_given(machine(), source).correction == taken, "the nearest lends cache_share"
    assert portable(lender.tuning).keys() == whole.keys()
    # Neither is that of another machine, nor one learned with the tuning before, of use.
    here = replace(machine(tile_cycles=30.0), correction=found)
    for other in (machine("xeon-8375c", tile_cycles=40.0), machine(tile_cycles=20.0)):
        assert with_given(here, other).correction is None


@pytest.mark.usefixtures("lender")
def test_another_machine_gives_what_is_portable() -> None:
    source = machine("xeon-8375c", steps_per_short_round=4, synchronise_s=3e-6, tile_cycles=40.0)
    found = with_given(with_nearest(machine(tile_cycles=30.0)), source)
    assert found.tuning == replace(
        DEFAULT, steps_per_short_round=4, tile_cycles=30.0, cache_share=0.7
    )
    assert found.tuning.provenance == {
        "tile_cycles": "probed", "steps_per_short_round": "given: xeon-8375c",
        "cache_share": "prior: epyc-zen9",
    }  # fmt: skip
    assert replace(found, tuning=DEFAULT) == machine()
    # What is given is stronger than what is lent, and the next file replaces it.
    again = with_given(with_nearest(machine()), source)
    assert again.tuning.tile_cycles == 40.0
    third = with_given(again, machine("core-i7-8700", same_loads_ratio=1.1))
    assert third.tuning == replace(DEFAULT, same_loads_ratio=1.1, tile_cycles=25.0, cache_share=0.7)


def test_provenances() -> None:
    assert taken_from(PRIOR, "epyc-zen4") == "prior: epyc-zen4"
    for name in ("a\n[red]b", "", "-", "ä" * 200, "x y"):
        assert is_taken(taken_from(GIVEN, name))
    for wrong in (
        "prior",
        "prior: ",
        "prior: a b",
        "prior: [red]",
        f"given: {'x' * 65}",
        "lent: a",
    ):
        assert not is_taken(wrong)


def test_all_recorded_cpus_lend_portable_constants() -> None:
    for recorded in recorded_cpus():
        for name, value in portable(recorded.tuning).items():
            assert getattr(recorded.tuning, name) == value
            assert recorded.tuning.provenance[name] != "assumed"
