"""The funnel and the hardware model, as tables and as documents."""

import json
from dataclasses import asdict, replace
from io import StringIO

import pytest
from rich.console import Console

from ftuner.core.dtype import FLOAT32
from ftuner.core.product import product_types
from ftuner.core.units import capacity, count, duration, rate
from ftuner.hardware.constants import constants
from ftuner.hardware.intake_tuning import Intake
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import from_document, load_recorded, recorded_names
from ftuner.hardware.tuning import CpuTuning
from ftuner.report.hardware import hardware_document, hardware_table
from ftuner.report.tuning import funnel_document, funnel_table
from ftuner.ukernels.cpu.library import build_library


def _text(table: object) -> str:
    out = StringIO()
    Console(width=160, file=out).print(table)
    return out.getvalue()


@pytest.mark.parametrize("name", recorded_names())
def test_hardware(name: str) -> None:
    hardware = load_recorded(name)
    text = _text(hardware_table(hardware))
    assert name in text
    assert "datasheet" in text
    document = json.loads(json.dumps(hardware_document(hardware), allow_nan=False))
    fingerprint = document.pop("fingerprint", None)
    assert (fingerprint is not None) == isinstance(hardware, CpuHardware)
    document.pop("constants", None)
    assert from_document(document) == hardware


def test_hardware_values_carry_units() -> None:
    text = _text(hardware_table(load_recorded("xeon-8375c")))
    for value in ("2.9 GHz", "48 KiB", "20 us", "4 cycles", "204.8 GB/s", "4 KiB"):
        assert value in text


def test_every_constant_is_shown_with_its_provenance() -> None:
    hardware = load_recorded("epyc-milan-2")
    assert isinstance(hardware, CpuHardware)
    hardware = replace(hardware, tuning=CpuTuning(tile_cycles=24.0))
    document = hardware_document(hardware)
    text = _text(hardware_table(hardware))
    for name, known in constants(CpuTuning).items():
        assert name in text
        assert document["constants"][name]["provenance"] == known.provenance
        value = getattr(hardware.tuning, name)
        told = asdict(value) if isinstance(value, Intake) else value
        assert document["tuning"][name] == told
    assert "24 cycles" in text
    assert "fitted on AMD Zen 3" in text


def test_confidence_is_shown_with_the_provenance() -> None:
    hardware = load_recorded("epyc-milan-2")
    assert isinstance(hardware, CpuHardware)
    tuning = CpuTuning(provenance={"tile_cycles": "fitted"}, confidence={"tile_cycles": 0.5})
    text = _text(hardware_table(replace(hardware, tuning=tuning)))
    assert "fitted, confidence 0.50" in text


def test_funnel() -> None:
    hardware = load_recorded("epyc-milan-2")
    assert isinstance(hardware, CpuHardware)
    library = build_library(hardware, "avx2", product_types(FLOAT32))
    funnel = library.funnel
    text = _text(funnel_table(library))
    for pruned in funnel.pruned:
        assert pruned.name in text
        assert pruned.reason.split(",")[0][:40] in text
    document = json.loads(json.dumps(funnel_document(funnel)))
    assert document["enumerated"] - sum(p["tiles"] for p in document["pruned"]) == len(
        document["kept"]
    )
    assert document["widths"] == list(funnel.widths)


def test_units() -> None:
    assert rate(3.2e9, "Hz") == "3.2 GHz"
    assert rate(12.0, "B/s") == "12 B/s"
    assert capacity(32768) == "32 KiB"
    assert capacity(3) == "3 B"
    assert [duration(s) for s in (2.0, 2e-6, 5e-10, 0.0)] == ["2 s", "2 us", "0.5 ns", "0"]
    assert [count(1, "tile"), count(2, "entry", "entries")] == ["1 tile", "2 entries"]
