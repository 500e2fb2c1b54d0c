"""Results of benchmarks: summaries, and what is refused."""

from pathlib import Path

import pytest
from tests.tools.report.files import machine, results, write

from ftuner.errors import ConfigurationError, DatasetError
from ftuner.hardware.recorded import load_recorded
from ftuner_tools.report import results as module
from ftuner_tools.report.results import Compared, read_results


def test_summary(tmp_path: Path) -> None:
    hardware = machine()
    write(tmp_path / "b.json", results(hardware, "b"))
    write(tmp_path / "a.json", results(hardware, "a"))
    write(tmp_path / "machines.json", {})
    (tmp_path / "samples.jsonl").write_text("not read here")
    a, b = read_results(tmp_path, hardware)
    assert (a.kind, b.kind, a.threads) == ("a", "b", 2)
    assert len(a.cases) == 3
    assert a.geomean == pytest.approx(4 ** (1 / 3))
    assert a.worst == Compared("a", 0.5, "a")
    assert a.wins == 2


def test_the_name_of_a_processor_may_have_its_family(tmp_path: Path) -> None:
    hardware = machine()
    document = results(hardware)
    document["machine"]["cpu_model"] += " (family 25, model 1)"
    write(tmp_path / "a.json", document)
    assert len(read_results(tmp_path, hardware)) == 1


def test_results_of_a_gpu_are_for_a_gpu(tmp_path: Path) -> None:
    hardware, gpu = machine(), load_recorded("h100-sxm")
    write(tmp_path / "cpu.json", results(hardware))
    device = {"cpu_model": "a GPU", "architecture": gpu.architecture}
    write(tmp_path / "gpu.json", {**results(hardware), "kind": "gpu", "machine": device})
    assert [r.kind for r in read_results(tmp_path, hardware)] == ["x"]
    assert [r.kind for r in read_results(tmp_path, gpu)] == ["gpu"]
    with pytest.raises(DatasetError, match="another machine"):
        read_results(tmp_path, load_recorded("a100-sxm-80gb"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("schema", 2, "schema is 2"),
        ("schema", None, "schema is None"),
        ("kind", 1, "kind is 1"),
        ("threads", -1, "threads is -1"),
        ("machine", None, "machine is None"),
        ("machine", {"cpu_model": "other"}, "another machine"),
        ("cases", 5, "cases is 5"),
        ("cases", [5], r"cases\[0\] is 5"),
        ("cases", [{"label": "x", "ratio": 0, "best_peer": "y"}], "ratio is 0"),
        ("cases", [{"label": "x", "ratio": 1.0}], "best_peer is None"),
    ],
)
def test_refused(tmp_path: Path, name: str, value: object, said: str) -> None:
    write(tmp_path / "a.json", {**results(machine()), name: value})
    with pytest.raises(DatasetError, match=said):
        read_results(tmp_path, machine())


def test_another_cache_is_another_machine(tmp_path: Path) -> None:
    document = results(machine())
    document["machine"]["cache_bytes"]["L2"] *= 2
    write(tmp_path / "a.json", document)
    with pytest.raises(DatasetError, match="with another L2"):
        read_results(tmp_path, machine())


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_results(tmp_path / "missing", machine())
    file = write(tmp_path / "a.json", results(machine()))
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_results(file, machine())
    monkeypatch.setattr(module, "MAX_FILES", 0)
    with pytest.raises(ConfigurationError, match="at most 0"):
        read_results(tmp_path, machine())
