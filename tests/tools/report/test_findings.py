"""Findings from files: read whole, or refused with the place of what is wrong."""

from pathlib import Path
from typing import Any

import pytest
from tests.tools.report.files import findings, write

from ftuner.errors import DatasetError
from ftuner_tools.report import findings as module
from ftuner_tools.report.findings import (
    Cliffs,
    Findings,
    Transfer,
    read_document,
    read_findings,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_whole(tmp_path: Path) -> None:
    found = read_findings(write(tmp_path / "f.json", findings("a name")), "print")
    assert list(found.regret) == ["prior", "calibrated", "thorough"]
    assert list(found.regret["prior"]) == [1, 2]
    assert found.regret["calibrated"][1].mean == 0.017
    assert found.regret["prior"][2].cases[0].best == "a name"
    assert found.rank == {"analytic": 0.71, "corrected": 0.83, "a name": -1}
    assert found.transfer[1] == Transfer("a name", "a name", 8, 1 / 9)
    assert found.cliffs == (Cliffs(96, 64, "a name", (1, 2, 64), (1e-6,) * 3),)


def test_parts_may_be_absent(tmp_path: Path) -> None:
    found = read_findings(write(tmp_path / "f.json", {"rank": {"analytic": 0.5}}), "print")
    assert found == Findings(rank={"analytic": 0.5})


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("schema",), 2, "schema is 2"),
        (("fingerprint",), "other", "another machine"),
        (("regret",), [], "regret is"),
        (("regret", "best"), {}, "expected one of prior"),
        (("regret", "prior", "threads"), {}, "expected t1"),
        (("regret", "prior", "t1", "mean"), -1, "mean is -1"),
        (("regret", "prior", "t1", "cases"), {}, "cases is"),
        (("regret", "prior", "t1", "cases", 0, "case"), 5, "case is 5"),
        (("regret", "prior", "t1", "cases", 0, "chosen_s"), 0, "chosen_s is 0"),
        (("regret", "prior", "t1", "cases", 0), {}, "case is None"),
        (("rank", "analytic"), 1.5, "from -1 to 1"),
        (("rank", "analytic"), None, "from -1 to 1"),
        (("transfer", 0, "measurements"), -1, "measurements is -1"),
        (("transfer", 0, "measurements"), False, "measurements is False"),
        (("transfer", 0, "picked"), 1, "picked is 1"),
        (("transfer", 0, "error"), "0.1", "error is '0.1'"),
        (("transfer", 0, "error"), 1e300, "error is 1e.300"),
        (("cliffs", 0, "seconds", 1), 1e308, r"seconds\[1\] is 1e.308 s"),
        (("cliffs", 0, "seconds", 1), 1e-300, r"seconds\[1\] is 1e-300 s"),
        (("cliffs", 0, "m"), [1], "1 values of m and 3 of seconds"),
        (("cliffs", 0, "n"), 1 << 60, "n is 1152921504606846976"),
    ],
)
def test_refused(tmp_path: Path, place: tuple[str | int, ...], value: object, said: str) -> None:
    document = findings()
    inner: Any = document
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    with pytest.raises(DatasetError, match=said) as raised:
        read_findings(write(tmp_path / "f.json", document), "print")
    assert "f.json" in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ('{"rank": {"analytic": NaN}}', "NaN is not a finite number"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "none of regret"),
        ('{"hardware": {}}', "none of regret"),
    ],
)
def test_other_files(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "f.json").write_text(content)
    with pytest.raises(DatasetError, match=said):
        read_findings(tmp_path / "f.json", "print")


def test_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(DatasetError, match="more than 100 bytes"):
        read_findings(write(tmp_path / "f.json", findings()), "print")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/machines.json")), ids=str)
def test_what_benchmarks_have_written_is_read(path: Path) -> None:
    fingerprint = read_document(path, module.MAX_BYTES).at("fingerprint").value
    assert set(read_findings(path, fingerprint).regret) == set(module.STAGES)
