"""`ftuner hardware --export` and `ftuner tune --from`, with caches of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.invoking import document, run

import ftuner
from ftuner import api
from ftuner.cli.main import EXIT_FAILURE, EXIT_INTERRUPTED
from ftuner.errors import ConfigurationError, HardwareError
from ftuner.hardware.exported import read_exported, write_exported
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.hardware.tuning import CpuTuning
from ftuner.runtime.cpu.backend import default_backend

TUNED = {"tile_cycles": 25.0, "synchronise_s": 4e-6}
"""A constant that is portable, and one that is not."""


@pytest.fixture
def folder(warm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that knows this machine, without a tuning of its own."""
    document("tune", "--no-calibration")
    default_backend.cache_clear()
    own = tmp_path / "cache"
    shutil.copytree(warm_folder, own)
    own.chmod(0o700)
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(own))
    return own


def exported(path: Path, hardware: CpuHardware) -> str:
    """A file that a machine with `TUNED` exported."""
    tuning = CpuTuning(**TUNED, provenance=dict.fromkeys(TUNED, "probed"))  # type: ignore[arg-type]
    write_exported(path, replace(hardware, tuning=tuning))
    return str(path)


def here() -> CpuHardware:
    found = default_backend().hardware
    default_backend.cache_clear()
    return found


def other() -> CpuHardware:
    found = load_recorded("xeon-8375c")
    assert isinstance(found, CpuHardware)
    return found


@pytest.mark.usefixtures("folder")
def test_export_and_back(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    assert "written to" in run("hardware", "--export", str(path)).stdout
    assert read_exported(path).fingerprint == here().fingerprint
    assert document("tune", "--no-calibration", "--from", str(path))["prior"] == {
        "machine": here().name, "same_machine": True, "constants": []
    }  # fmt: skip
    document("hardware", "--name", "xeon-8375c", "--export", str(path))
    assert read_exported(path) == other()


@pytest.mark.usefixtures("folder")
def test_the_same_machine(tmp_path: Path) -> None:
    path = exported(tmp_path / "here.json", here())
    before = here()
    found = document("tune", "--no-calibration", "--from", path)
    assert found["prior"]["same_machine"]
    assert set(found["prior"]["constants"]) == set(TUNED)
    default_backend.cache_clear()
    after = here()
    assert (after.tuning.tile_cycles, after.tuning.synchronise_s) == (25.0, 4e-6)
    assert replace(after, tuning=before.tuning) == before


@pytest.mark.usefixtures("folder")
def test_another_machine(tmp_path: Path) -> None:
    before = here()
    result = run("tune", "--no-calibration", "--from", exported(tmp_path / "other.json", other()))
    assert "took over 1 constant of xeon-8375c, which is another machine" in result.stdout
    default_backend.cache_clear()
    after = here()
    assert (after.tuning.tile_cycles, after.tuning.synchronise_s) == (25.0, 2e-6)
    assert replace(after, tuning=before.tuning) == before
    shown = document("hardware")
    assert shown["constants"]["tile_cycles"]["provenance"] == "given: xeon-8375c"
    assert set(shown["nearest"]) == {"machine", "distance"}


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[" * 10**6, b"\0" * 9_000_000])
def test_bad_files_change_nothing(folder: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    result = run("tune", "--no-calibration", "--from", str(path))
    assert result.exit_code == EXIT_FAILURE
    assert result.stderr.startswith(("ftuner: HardwareError: ", "ftuner: MissingMachineError: "))
    assert len(result.stderr.splitlines()) == 1
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_options() -> None:
    assert "--export is of a CPU" in run("hardware", "--name", "h200", "--export", "x.json").stderr
    assert "ends in .json" in run("hardware", "--export", "machine.toml").stderr
    assert (
        "options of the CPU"
        in run("tune", "--no-calibration", "--from", "x.json", "--device", "cuda").stderr
    )


@pytest.mark.usefixtures("folder")
def test_in_python(tmp_path: Path) -> None:
    ftuner.export_hardware(tmp_path / "here.json")
    report = ftuner.tune(calibrate="none", prior=tmp_path / "here.json")
    assert report.prior == api.Prior(here().name, True, ())
    default_backend.cache_clear()
    report = ftuner.tune(calibrate="none", prior=exported(tmp_path / "other.json", other()))
    assert report.prior == api.Prior("xeon-8375c", False, ("tile_cycles",))
    # Tuning more than one dtype from one file is well.
    assert (
        ftuner.tune("float64", calibrate="none", prior=tmp_path / "other.json").prior
        == report.prior
    )
    exported(tmp_path / "here.json", default_backend().hardware)
    with pytest.raises(ConfigurationError, match="computed with another tuning"):
        ftuner.tune(calibrate="none", prior=tmp_path / "here.json")
    assert ftuner.tune(calibrate="none").prior is None
    with pytest.raises(HardwareError, match="cannot read"):
        ftuner.tune(calibrate="none", prior=tmp_path / "missing.json")


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "ftuner", *arguments]
    return subprocess.Popen(
        command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.usefixtures("folder")
def test_several_at_once(tmp_path: Path) -> None:
    """Each sees whole models, and the last one written stays."""
    files = [exported(tmp_path / f"{m.name}.json", m) for m in (here(), other())]
    running = [start("tune", "--no-calibration", "--from", file, "--json") for file in files]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)["prior"]["machine"] in (here().name, "xeon-8375c")
    assert here().tuning.tile_cycles == 25.0


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT of another process")
@pytest.mark.usefixtures("interruptible")
def test_interrupted(folder: Path, tmp_path: Path) -> None:
    """What was taken over and compiled before the interrupt is whole; the next process goes on."""
    for entry in (folder / "objects").iterdir():
        entry.unlink()
    process = start("tune", "--no-calibration", "--from", exported(tmp_path / "here.json", here()))
    assert process.stdout is not None
    # It prints what it took over before it compiles.
    assert "took over the tuning" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (EXIT_INTERRUPTED, "ftuner: interrupted\n")
    assert here().tuning.tile_cycles == 25.0
    assert not any(path.name.startswith(".writing") for path in folder.rglob("*"))
    with_rest = start("tune", "--no-calibration", "--json")
    out, err = with_rest.communicate(timeout=120)
    assert (with_rest.returncode, err) == (0, "")
    assert json.loads(out)["compiled"] > 0
