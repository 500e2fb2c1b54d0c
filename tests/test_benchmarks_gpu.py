"""The GPU benchmarks: the script from end to end in Triton's interpreter, and its report."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import typer
from benchmarks import gpu, report, report_gpu, results

from ftuner.hardware.recorded import from_document

pytestmark = [pytest.mark.full, pytest.mark.long, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parent.parent
PADDED = {"torch, padded to powers of two", "torch, padded to multiples of 64"}
SECTIONS = tuple(gpu.SHARES)
FAULTS = {"tuning": "1:hang", "gemm": "0:peer-abort", "bmm": "0:peer-raise", "compiled": "0:raise"}
"""One of each end, of ours and of peers, in sections that take seconds: the number of a case, and
what happens in it. A process that hangs is killed and ends as one that aborts."""
HUNG_S = 15


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
    assert set(priors) == {"default", "rates of half"}
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
    for page in report.PAGES:
        (tmp_path / page).write_text(f"{report.BEGIN}\n{report.END}\n")
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


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a dry run of few cases of some sections, with a fault in each."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("faulty")
    faults = [f"--fault={section}:{fault}" for section, fault in FAULTS.items()]
    of = ["--dry", "--most=2", "--only", ",".join(FAULTS), f"--case-s={HUNG_S}"]
    done = run(*of, "--out", str(folder), *faults)
    assert done.returncode == 1, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("section", FAULTS)
def test_a_fault_loses_one_case_and_a_fault_of_a_peer_none(dry, faulty, section):
    whole = results.load(dry / f"gpu-dry-{section}.json")
    found = results.load(faulty / f"gpu-dry-{section}.json")
    assert "error" not in found
    fault = gpu.Fault.read(f"{section}:{FAULTS[section]}")
    labels = [case["label"] for case in whole["cases"]]
    lost = [] if fault.kind.startswith("peer-") else [labels[fault.number]]
    assert list(found["lost"]) == lost
    kept = [label for label in labels if label not in lost][:2]
    assert [case["label"] for case in found["cases"]] == kept
    counted = [label for label in labels if not label.endswith(", bucket")]
    assert len(counted) == len(kept) + len(lost) + found["left"]
    if fault.kind.startswith("peer-"):
        engines = found["cases"][fault.number]["engines"]
        refused = [entry["refused"] for entry in engines.values() if "refused" in entry]
        assert len(refused) == 1
        assert "min_s" in engines["ftuner"]


def test_a_run_resumes_where_it_was_cut_off(faulty, dry):
    """Lost cases are tried again, and what was measured stays."""
    path = faulty / "gpu-dry-tuning.json"
    document = results.load(path)
    kept = document["cases"][0] | {"seconds": -1}
    results.save(document | {"complete": False, "cases": [kept]}, path)
    done = run("--dry", "--only", "tuning", "--out", str(faulty), "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    cases = results.load(path)["cases"]
    wanted = [case["label"] for case in results.load(dry / path.name)["cases"]]
    assert cases[0] == kept
    assert [case["label"] for case in cases] == wanted


def test_the_calls_have_all_sections_once_and_fit_ten_minutes():
    assert sorted(SECTIONS) == sorted(section for call in gpu.CALLS.values() for section in call)
    for call in gpu.CALLS.values():
        assert sum(share.seconds for share in call.values()) < 540


def test_plans_have_their_terms(dry):
    for section in ("gemm", "attention"):
        for case in results.load(dry / f"gpu-dry-{section}.json")["cases"]:
            (plan,) = case["plans"]
            assert plan["programs"] > 0
            assert plan["terms"]["dram_s"] > 0
            assert "resources" in plan


def test_an_archive_carries_kernels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "triton_cache_dir" / "key"
    cache.mkdir(parents=True)
    for name in ("kernel.cubin", "kernel.json", "kernel.ttir", "kernel.ptx"):
        (cache / name).write_text(name)
    gpu.pack(tmp_path / "kernels.tar.xz", tmp_path)
    with tarfile.open(tmp_path / "kernels.tar.xz") as archive:
        sizes = {Path(x.name).name: x.size for x in archive.getmembers() if x.isfile()}
    assert sizes == {"kernel.cubin": 12, "kernel.json": 11, "kernel.ttir": 0, "kernel.ptx": 0}


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(typer.BadParameter, match=tmp_path.name):
        report_gpu.main(tmp_path)


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
