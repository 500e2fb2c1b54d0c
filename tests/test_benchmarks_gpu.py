"""The GPU benchmarks: the script from end to end in Triton's interpreter, and its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from benchmarks import report, report_gpu, results

from ftuner.hardware.recorded import from_document

pytestmark = pytest.mark.full
ROOT = Path(__file__).parent.parent
PADDED = {"torch, padded to powers of two", "torch, padded to multiples of 64"}
SECTIONS = (
    "tuning", "correct", "gemm", "regret", "calibration", "bmm", "attention", "models",
    "convolutions", "networks", "recurrent", "compiled",
)  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments], cwd=ROOT, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a dry run, alone in its own."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("dry") / "machine"
    done = run("--dry", "--out", str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_section_of_a_dry_run_is_complete(dry):
    for name in SECTIONS:
        document = results.load(dry / f"gpu-dry-{name}.json")
        assert document["complete"], name
        assert document["cases"], name
        assert document["kind"] == "gpu-dry"


def test_every_check_and_every_engine_is_right(dry):
    checks = results.load(dry / "gpu-dry-correct.json")["cases"]
    assert [case["label"] for case in checks if not case["right"]] == []
    for name in ("gemm", "bmm"):
        for case in results.load(dry / f"gpu-dry-{name}.json")["cases"]:
            padded = PADDED if case["case"]["multiply"] == "float16" and name == "gemm" else set()
            vendor = "torch, one by one" if "groups" in case["case"] else "torch"
            assert set(case["engines"]) == {"ftuner", vendor} | padded
            assert all(entry["median_s"] > 0 for entry in case["engines"].values())


def test_models_are_right_in_every_engine(dry):
    document = results.load(dry / "gpu-dry-models.json")
    ours = {"ftuner", "ftuner, launches"}
    plain = ours | {"torch", "torch.compile"}
    bucket = ours | {"torch.compile for a bucket"}
    assert {case["model"] for case in document["cases"]} == {"a Llama", "a BERT"}
    for case in document["cases"]:
        assert set(case["engines"]) == (bucket if "bucket" in case else plain | PADDED)
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())
        assert case["best_peer"] not in ours


def test_vision_is_right_in_every_engine(dry):
    layers = results.load(dry / "gpu-dry-convolutions.json")["cases"]
    for case in layers:
        assert set(case["engines"]) == {"ftuner", "torch"}
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())
    networks = results.load(dry / "gpu-dry-networks.json")["cases"]
    assert {case["model"] for case in networks} == {"mobilenet-v2"}
    for case in networks:
        names = {"ftuner", "ftuner, launches", "torch", "torch.compile"}
        assert set(case["engines"]) == names
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())


def test_recurrent_layers_are_right_in_every_engine(dry):
    cases = results.load(dry / "gpu-dry-recurrent.json")["cases"]
    assert {case["model"].split()[0] for case in cases} == {"LSTM", "GRU", "RNN"}
    assert any("bidirectional" in case["model"] for case in cases)
    for case in cases:
        assert set(case["engines"]) == {"ftuner", "ftuner, launches", "torch"}
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())
        # Kernels were compiled when the model was loaded: a length is no part of them.
        assert case["first_calls"]["ftuner"]["compiled"] == 0


def test_new_shapes_have_nothing_compiled(dry):
    """Of ours, which is compiled when the model is loaded; PyTorch's compiler takes a batch of one
    for a constant."""
    cases = results.load(dry / "gpu-dry-models.json")["cases"]
    llama = [case for case in cases if case["model"] == "a Llama" and "bucket" not in case]
    first, second = (case["first_calls"] for case in llama)
    assert first["ftuner"]["compiled"] == second["ftuner"]["compiled"] == 0
    assert first["torch.compile"]["compiled"] == second["torch.compile"]["compiled"] == 1
    assert all(entry["second_s"] > 0 and entry["last_s"] > 0 for entry in second.values())
    products = results.load(dry / "gpu-dry-gemm.json")["cases"]
    # Two of each element type.
    assert [case["compiled"] for case in products][1::2] == [0, 0]


def test_every_attention_is_right(dry):
    cases = results.load(dry / "gpu-dry-attention.json")["cases"]
    for case in cases:
        ragged = len(set(case["case"]["rows"])) > 1
        peer = "torch, one by one" if ragged else "torch, FlashAttention"
        assert set(case["engines"]) == {"ftuner", "torch", peer}
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())
        assert all(0 < error <= 1 for error in case["errors"].values())
    assert any("torch, one by one" in case["engines"] for case in cases)
    assert cases[0]["compiled"] > 0


def test_regret_compares_plans_of_the_library(dry):
    (case,) = results.load(dry / "gpu-dry-regret.json")["cases"]
    assert case["wrong"] == []
    assert case["candidates"] > 1
    assert "chosen" in case["timings"]
    assert len(case["timings"]) == case["candidates"] + 1


def test_calibration_finds_the_same_from_every_prior(dry):
    cases = results.load(dry / "gpu-dry-calibration.json")["cases"]
    priors = {case["label"]: case for case in cases if "constants" in case}
    assert set(priors) == {"default", "rates of half", "latencies of double"}
    for case in priors.values():
        assert case["condition"] == "steady"
        share = case["constants"]["sustained_matrix_share"]
        assert share["settled"]
        assert share["value"] == pytest.approx(0.7, rel=0.05)
    (shape,) = (case for case in cases if "regrets" in case)
    assert shape["wrong"] == []
    assert set(shape["regrets"]) == {f"{x}, {y}" for x in priors for y in ("before", "after")}
    assert all(regret >= 0 for regret in shape["regrets"].values())
    header, *samples = map(json.loads, (dry / "gpu-samples.jsonl").read_text().splitlines())
    assert (header["kind"], header["schema"]) == ("ftuner-samples", 1)
    assert from_document(header["hardware"]).kind == "gpu"
    assert {sample["plan"]["kind"] for sample in samples} == {"product", "attention"}
    assert any(sample["chosen"] for sample in samples)
    for sample in samples:
        assert sample["seconds"] > 0
        assert sum(sample["terms"].values()) > 0
        assert sample["rounds"] >= 1


def test_a_layer_is_compiled_once_for_all_rows(dry):
    (layer,) = results.load(dry / "gpu-dry-compiled.json")["cases"]
    assert len(layer["shapes"]) == 2
    assert layer["recompilations"] == 0


def test_dry_results_are_on_no_page(dry, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in (docs / "performance.md", tmp_path / "README.md"):
        page.write_text(f"{report.BEGIN}\n{report.END}\n")
    report.main(dry.parent, tmp_path)
    assert list((docs / "performance").iterdir()) == []


def test_dry_results_can_be_printed(dry, capsys):
    report_gpu.main(dry)
    text = capsys.readouterr().out
    for expected in (
        "## gemm against the best peer", "## bmm against the best peer", "| powers of two | 2 |",
        "## Against torch.compile, max-autotune", "## Regret", "## Calibration",
        "## Models",
        "| a Llama, tf32 | 2 |", "| a BERT, tf32 | 1 |", "| a Llama, tf32 | torch.compile | 1 |",
        "## Recurrent layers", "| LSTM 6>5 bidirectional, tf32 | 2 |",
        "Compiled by PyTorch for one bucket alone", "## Tuning and launching",
    ):  # fmt: skip
        assert expected in text
    assert "## Not measured" not in text
    assert "refused" not in text


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(typer.BadParameter, match=tmp_path.name):
        report_gpu.main(tmp_path)


def test_a_run_resumes_where_it_was_cut_off(dry, tmp_path):
    document = results.load(dry / "gpu-dry-gemm.json")
    kept = document["cases"][0] | {"flops": -1}
    cut = document | {"complete": False, "cases": [kept]}
    results.save(cut, tmp_path / "gpu-dry-gemm.json")
    done = run("--dry", "--only", "gemm", "--out", str(tmp_path), "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = results.load(tmp_path / "gpu-dry-gemm.json")["cases"]
    assert cases[0] == kept
    assert [case["label"] for case in cases] == [case["label"] for case in document["cases"]]


def test_without_a_gpu_one_line_says_so():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    done = run()
    assert done.returncode == 2
    assert done.stderr.strip().count("\n") == 0
    assert "CUDA device" in done.stderr


def test_unknown_sections_are_named():
    done = run("--only", "gemm,nothing")
    assert done.returncode != 0
    assert "nothing" in done.stderr
