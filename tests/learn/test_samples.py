"""Datasets are read as they were written; damage, strangers and interruptions are named errors."""

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftuner.cost.step import Estimate
from ftuner.errors import DatasetError, DatasetWarning
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.learn import samples as learn_samples
from ftuner.learn.samples import Header, Sample, SamplePlan, SampleProblem, append, read


def machine(name: str = "xeon-8375c") -> CpuHardware:
    hardware = load_recorded(name)
    assert isinstance(hardware, CpuHardware)
    return hardware


HEADER = Header(machine(), {"numpy": "2.0"}, "2026-01-01")
SAMPLE = Sample(
    isa="avx512",
    dtype="float32",
    workers=2,
    level="L3",
    problem=SampleProblem(8, 768, 512),
    plan=SamplePlan((1, 1, 2, 1), 4, 512, ((6, 1), (2, 1))),
    chosen=True,
    terms=Estimate(issue_s=1e-5, stall_s=3e-6, synchronise_s=2e-6),
    seconds=1.7e-5,
    spread=0.01,
    rounds=12,
)


def document(**changes: Any) -> dict[str, Any]:
    return {**learn_samples._sample_document(SAMPLE), **changes}


def written(path: Path, *lines: bytes) -> Path:
    """A dataset of a valid header and these lines."""
    append(path, HEADER, [])
    with path.open("ab") as file:
        file.write(b"".join(lines))
    return path


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    second = replace(SAMPLE, chosen=False, seconds=2e-5)
    append(path, HEADER, [SAMPLE])
    append(path, HEADER, [second, SAMPLE])
    found = read(path)
    assert found.header == HEADER
    assert found.header.versions == {"numpy": "2.0"}
    assert found.samples == (SAMPLE, second, SAMPLE)
    assert found.hardware.tuning == HEADER.hardware.tuning


def test_the_estimate_of_a_sample_is_composed_of_its_terms() -> None:
    assert SAMPLE.terms.seconds == pytest.approx(1.5e-5)
    assert SAMPLE.log_ratio == pytest.approx(0.12516, rel=1e-4)


def test_terms_that_did_not_exist_then_are_zero(tmp_path: Path) -> None:
    line = json.dumps(document(terms={"issue_s": 1e-5})).encode() + b"\n"
    path = written(tmp_path / "samples.jsonl", line)
    assert read(path).samples[0].terms == Estimate(issue_s=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"isa": "neon"}, "isa is 'neon'; expected one of sse2, avx2, avx512"),
        ({"dtype": "float12"}, "dtype is 'float12'"),
        ({"level": "L9"}, "level is 'L9'"),
        ({"workers": 1}, "has more than 1 workers"),
        ({"workers": 0}, "workers is 0; expected an integer"),
        ({"workers": 1 << 20}, "workers is 1048576; expected an integer of 1 to 4096"),
        ({"workers": True}, "workers is True; expected an integer"),
        ({"problem": {"m": 8, "n": 768}}, "problem has the entries"),
        ({"problem": {"m": 8, "n": 768, "k": 1 << 60}}, "problem.k is"),
        ({"problem": {"m": 9, "n": 768, "k": 512}}, "segments have 8 rows, the problem 9"),
        ({"plan": []}, "plan is \\[\\]; expected an object"),
        ({"seconds": 0}, "seconds is 0.0; expected it finite and positive"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"seconds": 10**400}, "seconds is inf"),
        ({"seconds": "1"}, "seconds is '1'; expected a number"),
        ({"spread": -0.1}, "spread is -0.1; expected it finite and not negative"),
        ({"terms": {"speed": 1.0}}, "terms has the unknown entries \\['speed'\\]"),
        ({"terms": {}}, "terms are 0.0 s together"),
        ({"terms": {"issue_s": 1.5e308, "pack_s": 1.5e308}}, "terms are inf s together"),
        ({"chosen": 1}, "chosen is 1; expected a boolean"),
        ({"colour": "red"}, "has the entries"),
        ({"rounds": 1.5}, "rounds is 1.5"),
    ],
)
def test_values_are_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "samples.jsonl", json.dumps(document(**changes)).encode() + b"\n")
    with pytest.raises(DatasetError, match=message) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2")


@pytest.mark.parametrize(
    "plan",
    [
        {"grid": [1, 1, 2]},
        {"grid": [1, 1, 2, "1"]},
        {"width": None},
        {"kc": 0},
        {"segments": []},
        {"segments": [[6, 1], [2]]},
        {"segments": [[6, 0], [8, 1]]},
        {"segments": [[2, 1], [3, 1], [1, 1], [1, 1], [1, 1]]},
    ],
)
def test_plans_are_checked(tmp_path: Path, plan: dict[str, Any]) -> None:
    whole = {**SAMPLE.plan._asdict(), **plan}
    path = written(tmp_path / "samples.jsonl", json.dumps(document(plan=whole)).encode() + b"\n")
    with pytest.raises(DatasetError, match=r":2: plan\."):
        read(path)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    line = json.dumps(document(seconds=float("nan"))).encode() + b"\n"
    path = written(tmp_path / "samples.jsonl", line, line)
    with pytest.raises(DatasetError, match="NaN is not a finite number"):
        read(path)


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe", b"", b"null", b"9" * 10_000])
def test_lines_that_are_no_sample(tmp_path: Path, line: bytes) -> None:
    whole = json.dumps(document()).encode() + b"\n"
    path = written(tmp_path / "samples.jsonl", line + b"\n", whole)
    with pytest.raises(DatasetError, match=":2"):
        read(path)


def test_lines_and_files_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "samples.jsonl", b" " * (learn_samples.MAX_LINE_BYTES + 1))
    with pytest.raises(DatasetError, match=":2 has more than"):
        read(path)
    monkeypatch.setattr(learn_samples, "MAX_BYTES", 1000)
    with pytest.raises(DatasetError, match="has more than 1000 bytes"):
        read(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "other"}, "kind is 'other'"),
        ({"schema": 2}, "schema is 2; expected 1, which this version reads"),
        ({"fingerprint": "0"}, "fingerprint is '0'"),
        ({"hardware": {"kind": "cpu"}}, "hardware lacks"),
        ({"versions": {"numpy": 2}}, "versions.numpy is 2"),
        ({"versions": [1]}, "versions is \\[1\\]"),
        ({"date": 1}, "date is 1"),
        ({"more": 1}, "has the entries"),
    ],
)
def test_headers_are_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "samples.jsonl"
    header = {**learn_samples._header_document(HEADER), **changes}
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(DatasetError, match=message):
        read(path)
    with pytest.raises(DatasetError, match=message):
        append(path, HEADER, [SAMPLE])


def test_other_machines_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    append(path, HEADER, [SAMPLE])
    with pytest.raises(DatasetError, match="write to another file"):
        append(path, Header(machine("epyc-milan-2")), [])
    assert read(path).samples == (SAMPLE,)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DatasetError, match="has no header"):
        read(tmp_path / "empty.jsonl")
    with pytest.raises(DatasetError, match="cannot read"):
        read(tmp_path / "missing.jsonl")
    with pytest.raises(DatasetError, match="cannot read"):
        read(tmp_path)
    with pytest.raises(DatasetError, match="cannot write"):
        append(tmp_path / "empty.jsonl" / "samples.jsonl", HEADER, [SAMPLE])
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(DatasetError, match="is not a regular file"):
        read(tmp_path / "pipe.jsonl")
    with pytest.raises(DatasetError, match="is not a regular file"):
        append(tmp_path / "pipe.jsonl", HEADER, [SAMPLE])


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_an_interrupted_write_loses_the_last_line_at_most(tmp_path: Path, kept: int) -> None:
    line = json.dumps(document()).encode() + b"\n"
    path = written(tmp_path / "samples.jsonl", line, line[:kept])
    with pytest.warns(DatasetWarning, match=":3: the last line was not written whole"):
        assert read(path).samples == (SAMPLE,)
    second = replace(SAMPLE, rounds=3)
    with pytest.warns(DatasetWarning):
        append(path, HEADER, [second])
    assert read(path).samples == (SAMPLE, second)


def test_a_last_line_without_content_is_left_out(tmp_path: Path) -> None:
    line = json.dumps(document()).encode() + b"\n"
    path = written(tmp_path / "samples.jsonl", line, b"\0" * 100 + b"\n")
    with pytest.warns(DatasetWarning, match=":3"):
        assert read(path).samples == (SAMPLE,)


def test_an_interrupted_header_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b'{"kind": "ftuner-sam')
    with pytest.warns(DatasetWarning, match=":1"):
        append(path, HEADER, [SAMPLE])
    assert read(path).samples == (SAMPLE,)


def _append_many(path: Path, rounds: int, count: int) -> None:
    for _ in range(count):
        append(path, HEADER, [replace(SAMPLE, rounds=rounds)])


def test_processes_that_append_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_append_many, args=(path, r, 20)) for r in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    found = [sample.rounds for sample in read(path).samples]
    assert sorted(found) == [1] * 20 + [2] * 20
