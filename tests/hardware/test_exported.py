"""Exported machines: what is written is read, and nothing else is."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.hardware.test_correction import document as correction_document
from tests.hardware.test_priors import machine

from ftuner.errors import ConfigurationError, HardwareError
from ftuner.hardware.correction import from_document
from ftuner.hardware.exported import (
    MAX_BYTES,
    exported_document,
    from_exported_document,
    read_exported,
    write_exported,
)
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded, to_document
from ftuner.hardware.tuning import CpuTuning

TUNED = machine(tile_cycles=25.0, synchronise_s=4e-6)


def learned(hardware: CpuHardware) -> CpuHardware:
    """A machine with a correction that was learned on it."""
    found = {**correction_document(), "fingerprint": hardware.fingerprint}
    return replace(hardware, correction=from_document(found))


def test_round_trip(tmp_path: Path, recorded: CpuHardware) -> None:
    path = tmp_path / "machine.json"
    for hardware in (recorded, learned(TUNED), TUNED):
        write_exported(path, hardware)
        again = read_exported(path)
        assert again == hardware
        assert again.tuning.provenance == hardware.tuning.provenance
        assert again.correction == hardware.correction
    assert [entry.name for entry in tmp_path.iterdir()] == ["machine.json"]


def test_loans_are_not_exported() -> None:
    """Nor is a correction that was learned with them."""
    tuning = CpuTuning(
        tile_cycles=25.0, steps_per_short_round=4,
        provenance={"tile_cycles": "prior: epyc-zen9", "steps_per_short_round": "given: other"},
    )  # fmt: skip
    found = exported_document(learned(replace(TUNED, tuning=tuning)))
    assert found["hardware"]["tuning"] == {
        "steps_per_short_round": 4, "provenance": {"steps_per_short_round": "given: other"}
    }  # fmt: skip
    assert "correction" not in found
    assert "correction" in exported_document(learned(TUNED))


def document(**changes: Any) -> dict[str, Any]:
    return {**exported_document(TUNED), **changes}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "not a machine that ftuner exported"),
        ({}, "not a machine that ftuner exported"),
        (to_document(TUNED), "not a machine that ftuner exported"),
        (document(kind="ftuner-samples"), "not a machine that ftuner exported"),
        (document(schema=2), "schema is 2; expected 1: export the machine again"),
        (document(schema=None), "schema is None"),
        (document(hardware=None), "hardware document is None"),
        (document(hardware={"kind": "cpu"}), "hardware lacks 'name'"),
        (document(hardware=to_document(load_recorded("h200"))), "a model of a GPU"),
        (document(fingerprint="0" * 16), "fingerprint is '0000"),
        (document(fingerprint=[1] * 9999), "fingerprint is "),
        (document(correction=None), "correction is None; expected an object"),
        (document(correction={}), "correction has the entries"),
        (
            document(correction={**correction_document(), "fingerprint": "aa"}),
            "correction is of the machine 'aa'",
        ),
        (document(command="rm"), r"unknown entries \['command'\]"),
    ],
)
def test_other_documents(found: Any, message: str) -> None:
    with pytest.raises(HardwareError, match=message) as error:
        from_exported_document(found)
    assert len(str(error.value)) < 500


def with_tuning(**tuning: Any) -> dict[str, Any]:
    found = document()
    found["hardware"]["tuning"].update(tuning)
    return found


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        ({"tile_cycles": -1.0}, "tile_cycles is -1.0"),
        ({"chunks_per_worker": 10**9}, "chunks_per_worker is 1000000000; expected at most 255"),
        ({"tile_cycels": 1.0}, "unknown entries"),
        ({"provenance": {"tile_cycles": "prior: [red]x"}}, "provenance says"),
    ],
)
def test_damaged_tunings(tmp_path: Path, tuning: dict[str, Any], message: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(with_tuning(**tuning)))
    with pytest.raises(HardwareError, match=rf"machine\.json .*{message}"):
        read_exported(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe\x00", "codec"),
        (b"kind = 'cpu'", "Expecting value"),
        (b"[" * 100_000, "recursion"),
        (b'{"schema": NaN}', "NaN is not a number in JSON"),
        (b'{"kind": ' + b"1" * 10_000 + b"}", "integer string|not a machine"),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
        (json.dumps(document()).encode()[:-40], "Expecting|delimiter|Unterminated"),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(data)
    with pytest.raises(HardwareError, match=rf"machine\.json .*({message})"):
        read_exported(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match=r"cannot read .*missing.json: No such file"):
        read_exported(tmp_path / "missing.json")
    with pytest.raises(HardwareError, match="not a regular file"):
        read_exported(tmp_path)
    with pytest.raises(HardwareError, match="null"):
        read_exported("a\0b.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(HardwareError, match="not a regular file"):
        read_exported(tmp_path / "pipe.json")


@pytest.mark.parametrize("name", ["machine.toml", "machine", ".json.txt"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="ends in"):
        write_exported(tmp_path / name, TUNED)


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_folders_that_cannot_be_written(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_exported(tmp_path / folder / "machine.json", TUNED)


def test_a_link_is_read(tmp_path: Path) -> None:
    write_exported(tmp_path / "machine.json", TUNED)
    (tmp_path / "link.json").symlink_to(tmp_path / "machine.json")
    assert read_exported(tmp_path / "link.json") == TUNED


def test_reading_calls_nothing_that_a_file_names(tmp_path: Path) -> None:
    """Names of classes and modules are text."""
    found: Callable[[], dict[str, Any]] = document
    changed = found()
    changed["hardware"]["__class__"] = "os.system"
    (tmp_path / "machine.json").write_text(json.dumps(changed))
    with pytest.raises(HardwareError, match="unknown entries"):
        read_exported(tmp_path / "machine.json")
