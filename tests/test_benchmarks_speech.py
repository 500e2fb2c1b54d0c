"""The benchmark of speech detectors, with small models in the place of silero-vad's files."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from benchmarks import report, results, speech
from benchmarks.agreeing import difference
from tests.frontends.onnx_models import parsed

ROOT = Path(__file__).parent.parent


def of_windows() -> onnx.ModelProto:
    """A model of a mean of the sound and of each state."""
    return parsed(
        """(float[batch, 576] input, float[2, batch, 128] state, int64 sr)
            => (float[batch, 1] output, float[2, batch, 128] stateN) {
        output = ReduceMean<axes=[1]>(input)
        stateN = Tanh(state)
    }""",
        17,
    )


def of_sounds() -> onnx.ModelProto:
    return parsed(
        """(float[windows, 576] input, float[1, 1, 128] h, float[1, 1, 128] c)
            => (float[windows] speech_probs, float[1, 1, 128] hn, float[1, 1, 128] cn) {
        speech_probs = ReduceMean<axes=[1], keepdims=0>(input)
        hn = Tanh(h)
        cn = Sigmoid(c)
    }""",
        17,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a distribution called silero-vad has small files."""
    folder = tmp_path_factory.mktemp("installed")
    data, info = folder / "silero_vad" / "data", folder / "silero_vad-6.2.3.dist-info"
    data.mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: silero-vad\nVersion: 6.2.3\n")
    names = {case.file for case in speech.cases()}
    for name in names:
        onnx.save(of_sounds() if name == speech.WHOLE else of_windows(), data / name)
    record = "".join(f"silero_vad/data/{name},,\n" for name in sorted(names))
    (info / "RECORD").write_text(record)
    return folder


@pytest.fixture(scope="module")
def measured(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a short run of some cases."""
    folder = tmp_path_factory.mktemp("results") / "here"
    only = ["silero_vad 1x1", "silero_vad 3x1", "silero_vad_16k_sequence 1x7"]
    path = os.pathsep.join([str(installed), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speech", "--threads", "1", "--budget", "0.001",
         "--peers", "onnxruntime", "--results", str(folder), "--only", ",".join(only)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_run(measured: Path) -> None:
    document = results.load(measured / "speech-silero-vad-t1.json")
    assert (document["kind"], document["threads"]) == ("speech", 1)
    assert {case["label"] for case in document["cases"]} == {
        "silero_vad 1x1", "silero_vad 3x1", "silero_vad_16k_sequence 1x7",
    }  # fmt: skip
    for case in document["cases"]:
        assert set(case["engines"]) == {"ftuner", "onnxruntime"}
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())
        assert case["ratio"] > 0
    assert document["unprepared"] == {}


def test_its_table(measured: Path, tmp_path: Path) -> None:
    document = results.load(measured / "speech-silero-vad-t1.json")
    why = {"openvino": "RuntimeError: an operator"}
    document["unprepared"] = {"silero_vad": why, "silero_vad_half": why}
    folder = tmp_path / "results"
    results.save(document, folder / "machine" / "speech-silero-vad-t1.json")
    two = document | {"threads": 2, "cases": document["cases"][1:]}
    results.save(two, folder / "machine" / "speech-silero-vad-t2.json")
    (tmp_path / "docs").mkdir()
    for page in report.PAGES:
        (tmp_path / page).write_text(f"{report.BEGIN}\n{report.END}\n")
    report.main(folder, tmp_path)
    text = (tmp_path / "docs" / "performance" / "machine.md").read_text()
    assert "| speech silero-vad | 1 | 3 |" in text
    assert "### Speech detectors, by sounds and windows" in text
    assert "| file, sounds x windows | ratio, 1 thread | best peer |" in text
    row = next(line for line in text.splitlines() if line.startswith("| silero_vad 3x1 |"))
    assert row.count("onnxruntime") == 2
    assert (
        "- openvino cannot prepare silero_vad, silero_vad_half: RuntimeError: an operator" in text
    )


def test_every_case_has_inputs_of_its_file() -> None:
    rng = np.random.default_rng(0)
    for case in speech.cases():
        names = ("input", "h", "c") if case.file == speech.WHOLE else ("input", "state", "sr")
        found = speech.inputs(case, names, rng)
        assert tuple(found) == names
        assert found["input"].shape == (case.batch * case.windows, 576)
        assert found["input"].dtype == np.float32
        assert 0.01 < np.abs(found["input"]).max() <= 1.0
    assert len({case.label for case in speech.cases()}) == len(speech.cases())


def test_a_window_hears_the_end_of_the_one_before() -> None:
    rows = speech.voiced(np.random.default_rng(0), 3)
    # But for the noise, which is drawn anew.
    np.testing.assert_allclose(rows[1:, :64], rows[:-1, -64:], atol=0.1)


def test_outputs_that_differ_are_told() -> None:
    wanted = np.array([0.5, 1.0], np.float32)
    assert difference(wanted + 5e-5, wanted, speech.RTOL) == ""
    assert "differs by" in difference(wanted + 2e-4, wanted, speech.RTOL)
    assert difference(wanted + 2e-4, wanted) == ""
    assert "[1] instead of" in difference(wanted[:1], wanted)


def test_wrong_arguments_are_named(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(typer.BadParameter, match="unknown"):
        speech.SUITE.main("1", only="silero_vad 5x5")
    with pytest.raises(typer.BadParameter, match="onnxruntime"):
        speech.SUITE.main("1", peers="openvino")
    monkeypatch.setattr("ftuner_tools.demo.speech.files", lambda name: [])
    with pytest.raises(typer.BadParameter, match="silero-vad"):
        speech.SUITE.main("1")
