"""Tuning: every constant says what it is, and a document may override single ones."""

import dataclasses
import json
from typing import Any

import pytest

from ftuner.codegen.llvm.native.work_stealing import MAX_CHUNKS_A_WORKER
from ftuner.errors import HardwareError
from ftuner.hardware.constants import constants, part_of
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.hardware.intake_tuning import Intake
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import from_document, load_recorded, to_document
from ftuner.hardware.tuning import CpuTuning, KLoopTuning

UNITS = {
    "bytes": ("_bytes", "_bytes_per_cycle"),
    "per cycle": ("_per_cycle",),
    "registers": ("_registers", "_per_accumulator", "_per_score", "_per_query_register",
                  "_per_address"),
    "bytes per cycle": ("_bytes_per_cycle",),
    "cycles": ("_cycles", "_cycles_per_vector", "_cycles_per_row", "_cycles_per_round",
               "_cycles_per_lane", "_cycles_per_16_bytes"),
    "k steps": ("steps", "_per_round", "_per_short_round", "_per_prefetch"),
    "s": ("_s",),
    "Hz": ("_hz",),
    "us": ("_us",),
}  # fmt: skip
"""Endings of names by unit."""


def document(**tuning: Any) -> dict[str, Any]:
    return {**to_document(load_recorded("epyc-milan-2")), "tuning": {**MILAN, **tuning}}


MILAN: dict[str, Any] = {"synchronise_s": 5e-6, "provenance": {"synchronise_s": "assumed"}}
"""What `epyc-milan-2` has besides the defaults."""
TUNINGS = (CpuTuning, GpuTuning)
INTAKE = {"k_streams": 2, "prefetch_bytes": 1024, "share": 0.5, "overlap": 2.0}


@pytest.mark.parametrize("kind", TUNINGS)
def test_every_field_is_a_constant(kind: type[CpuTuning | GpuTuning]) -> None:
    named = {field.name for field in dataclasses.fields(kind)}
    assert named - {"confidence"} == {*constants(kind), "provenance"}


@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in TUNINGS for name in constants(k)])
def test_constant(kind: type[CpuTuning | GpuTuning], name: str) -> None:
    known = constants(kind)[name]
    value = getattr(kind(), name)
    if isinstance(value, Intake):
        assert all(getattr(value, part) > 0 for part in constants(Intake))
    else:
        assert value > 0
    assert known.expectation(value) is None
    assert known.meaning
    assert known.provenance
    assert name.endswith(UNITS.get(known.unit, ""))
    # In a document, an integer is a number, but a fraction is no integer.
    hint = {field.name: field.type for field in dataclasses.fields(kind)}[name]
    assert type(value).__name__ == hint


def test_a_worker_has_room_for_its_chunks() -> None:
    assert constants(CpuTuning)["chunks_per_worker"].most == MAX_CHUNKS_A_WORKER


def test_a_part_has_its_values() -> None:
    tuning = CpuTuning(steps_per_round=8, tile_cycles=1.0)
    assert part_of(tuning, KLoopTuning) == KLoopTuning(steps_per_round=8)


def test_documents_hold_what_differs_from_the_defaults() -> None:
    hardware = load_recorded("epyc-milan-2")
    assert isinstance(hardware, CpuHardware)
    assert hardware.tuning == CpuTuning(synchronise_s=5e-6)
    assert to_document(hardware)["tuning"] == MILAN
    tuned = dataclasses.replace(
        hardware, tuning=CpuTuning(tile_cycles=24.0, provenance={"tile_cycles": "fitted"})
    )
    found = json.loads(json.dumps(to_document(tuned)))
    assert found["tuning"] == {"tile_cycles": 24.0, "provenance": {"tile_cycles": "fitted"}}
    again = from_document(found)
    assert again == tuned != hardware
    assert isinstance(again, CpuHardware)
    assert again.tuning.provenance == {"tile_cycles": "fitted"}
    assert again.fingerprint == hardware.fingerprint


def test_an_intake_is_a_table_of_a_document() -> None:
    hardware = load_recorded("epyc-milan-2")
    tuned = dataclasses.replace(hardware, tuning=CpuTuning(low_l3=Intake(**INTAKE)))  # type: ignore[arg-type]
    found = json.loads(json.dumps(to_document(tuned)))
    assert found["tuning"]["low_l3"] == INTAKE
    assert "low_dram" not in found["tuning"]
    assert from_document(found) == tuned


def test_a_model_without_a_tuning_has_the_defaults() -> None:
    found, bare = from_document(document()), document()
    del bare["tuning"]
    assert isinstance(found, CpuHardware)
    assert found == load_recorded("epyc-milan-2")
    assert from_document(bare) == dataclasses.replace(found, tuning=CpuTuning())


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"tile_cycels": 1.0}, r"hardware\.tuning has the unknown entries \['tile_cycels'\]"),
        ({"tile_cycles": 0.0}, r"hardware\.tuning\.tile_cycles is 0\.0"),
        ({"tile_cycles": "many"}, r"hardware\.tuning\.tile_cycles"),
        ({"low_l3": {**INTAKE, "k_streams": 2.5}}, r"tuning\.low_l3\.k_streams is 2\.5 \(float\)"),
        ({"low_l3": {**INTAKE, "k_streams": 3}}, r"k_streams is 3; expected a power of two"),
        ({"low_l3": {**INTAKE, "overlap": 0.5}}, r"low_l3\.overlap is 0\.5; expected at least 1"),
        ({"low_l3": {"k_streams": 2}}, r"hardware\.tuning\.low_l3 lacks 'prefetch_bytes'"),
        ({"low_l3": 4}, r"hardware\.tuning\.low_l3 is 4 \(int\)"),
        ({"cache_share": 1.5}, r"hardware\.tuning\.cache_share is 1\.5; expected at most 1"),
        ({"chunks_per_worker": 256}, r"chunks_per_worker is 256; expected at most 255"),
        ({"chunks_per_worker": 0}, r"chunks_per_worker is 0\.0; expected it finite and positive"),
        ({"synchronise_s": -1e-6}, r"synchronise_s is -1e-06; expected it finite and positive"),
        ({"same_loads_ratio": 0.5}, r"same_loads_ratio is 0\.5; expected at least 1"),
        ({"issue_rate_tolerance": 0.15}, r"issue_rate_tolerance is 0\.15; expected at most 0\.14"),
        ({"nap_us": 10**6}, r"nap_us is 1000000; expected at most 999999"),
        ({"steps_per_round": 1 << 40}, r"steps_per_round is 1099511627776; expected at most 64"),
        ({"provenance": {"tile_cycels": "fitted"}}, "tile_cycels"),
        ({"provenance": {"tile_cycles": "guessed"}}, "guessed"),
    ],
)
def test_damaged_tuning(tuning: dict[str, Any], message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        from_document(document(**tuning))


def test_the_blocks_of_a_chip_are_powers_of_two() -> None:
    told = {**to_document(load_recorded("h200")), "tuning": {"strip_elements": 48}}
    message = r"hardware\.tuning\.strip_elements is 48; expected a power of two"
    with pytest.raises(HardwareError, match=message):
        from_document(told)


def test_a_chip_may_override_single_constants() -> None:
    """What is compiled and planned for it follows, and nothing kept for another chip is used."""
    hardware = load_recorded("a100-sxm-80gb")
    assert isinstance(hardware, GpuHardware)
    assert hardware.tuning == GpuTuning()
    told = {**to_document(hardware), "tuning": {"epilogue_values_per_thread": 64}}
    tuned = from_document(told)
    assert isinstance(tuned, GpuHardware)
    assert tuned != hardware
    assert hash(tuned) != hash(hardware) == hash(from_document(to_document(hardware)))
    assert tuned.tuning.slicing.values_per_thread == 64
    assert to_document(tuned)["tuning"] == {**told["tuning"], "provenance": {}}


def test_calibrated_constants_keep_their_confidence() -> None:
    told = to_document(load_recorded("h200"))
    told["tuning"] = {"step_cycles": 55, "provenance": {"step_cycles": "fitted"},
                      "confidence": {"step_cycles": 0.04}}  # fmt: skip
    found = from_document(json.loads(json.dumps(told)))
    assert isinstance(found, GpuHardware)
    assert found.tuning.confidence == {"step_cycles": 0.04}
    assert to_document(found)["tuning"] == told["tuning"]
    told["tuning"]["confidence"] = {"step_cycels": 0.04}
    with pytest.raises(HardwareError, match="confidence has 'step_cycels'"):
        from_document(told)
