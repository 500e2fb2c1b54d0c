"""`ftuner report`, with and without measured data."""

from pathlib import Path

import pytest
from tests.cli.invoking import document, run
from tests.tools.report.files import write_all

from ftuner.cli.main import EXIT_FAILURE, EXIT_USAGE
from ftuner.runtime.cpu.backend import default_backend
from ftuner_tools.report.command import PAGE


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report")
    assert result.exit_code == 0, result.stderr
    assert f"written to {PAGE}" in result.stdout
    assert "Roofline: without measured data; python -m benchmarks.machines" in result.stdout
    page = PAGE.read_text(encoding="utf-8")
    hardware = default_backend().hardware
    assert hardware.name in page
    assert default_backend().kernels.isa.name in page
    assert [path.name for path in tmp_path.iterdir()] == [PAGE.name]


def test_report_of_measured_data(tmp_path: Path) -> None:
    folder, out = tmp_path / "results", tmp_path / "page.html"
    folder.mkdir()
    write_all(folder, default_backend().hardware)
    found = document("report", "--results", str(folder), "--out", str(out))
    assert found["page"] == str(out)
    assert found["machine"] == default_backend().hardware.name
    assert len(found["sections"]) == 9
    assert {section["missing"] for section in found["sections"]} == {None}
    assert "weight from L3: measured" in out.read_text(encoding="utf-8")


def test_errors_are_named_and_write_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{\n")
    out = tmp_path / "page.html"
    for options, said, code in (
        (("--machines", str(bad)), "DatasetError", EXIT_FAILURE),
        (("--samples", str(bad)), "DatasetError", EXIT_FAILURE),
        (("--samples", str(tmp_path)), "cannot read", EXIT_FAILURE),
        (("--results", str(bad)), "ConfigurationError", EXIT_USAGE),
        (("--device", "nowhere"), "ftuner: ", EXIT_USAGE),
    ):
        result = run("report", "--out", str(out), *options)
        assert result.exit_code == code, options
        assert said in result.stderr
        assert not out.exists()
    for place, said in ((tmp_path, r"ends in .html"), (tmp_path / "x.html" / "y.html", "cannot")):
        result = run("report", "--out", str(place))
        assert result.exit_code == EXIT_USAGE
        assert said in result.stderr
