"""What is read from a folder, and from files that are given."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.report.files import findings, machine, samples_of, write, write_all

from ftuner.errors import ConfigurationError, DatasetError
from ftuner.hardware.recorded import load_recorded
from ftuner.learn.samples import Header, append
from ftuner_tools.report.measured import Measured, read_measured


def test_nothing() -> None:
    assert read_measured(machine()) == Measured()


def test_a_folder_has_all(tmp_path: Path) -> None:
    found = read_measured(machine(), write_all(tmp_path, machine()))
    assert len(found.samples) == len(found.chosen) == 32
    assert found.findings.rank
    assert len(found.results) == 2


def test_files_replace_those_of_the_folder(tmp_path: Path) -> None:
    hardware = machine()
    folder = tmp_path / "folder"
    folder.mkdir()
    write_all(folder, hardware)
    append(tmp_path / "s.jsonl", Header(hardware), samples_of(hardware)[:3])
    own = write(tmp_path / "m.json", {**findings(), "rank": {"analytic": 0.5}})
    found = read_measured(hardware, folder, tmp_path / "s.jsonl", own)
    assert len(found.samples) == 3
    assert found.findings.rank == {"analytic": 0.5}


def test_of_another_machine(tmp_path: Path) -> None:
    other = machine("core-i7-8700")
    append(tmp_path / "s.jsonl", Header(other), samples_of(other)[:1])
    with pytest.raises(DatasetError, match="another machine, core-i7-8700"):
        read_measured(machine(), samples=tmp_path / "s.jsonl")


def test_times_that_no_chart_can_draw(tmp_path: Path) -> None:
    hardware = machine()
    good, *_ = samples_of(hardware)
    append(tmp_path / "s.jsonl", Header(hardware), [good, replace(good, seconds=1e-300)])
    with pytest.raises(DatasetError, match="sample 2 is 1e-300 s"):
        read_measured(hardware, samples=tmp_path / "s.jsonl")


def test_files_that_are_named_must_be_there(tmp_path: Path) -> None:
    for option in ("samples", "machines"):
        with pytest.raises(DatasetError, match="cannot read"):
            read_measured(machine(), **{option: tmp_path / "missing"})


def test_a_gpu_has_no_samples(tmp_path: Path) -> None:
    gpu = load_recorded("h100-sxm")
    assert read_measured(gpu, write_all(tmp_path, machine())) == Measured()
    with pytest.raises(ConfigurationError, match="are of a CPU"):
        read_measured(gpu, samples=tmp_path / "samples.jsonl")
