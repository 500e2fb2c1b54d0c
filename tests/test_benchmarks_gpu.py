"""The GPU benchmarks: the script from end to end in Triton's interpreter, and its report."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import report, results

ROOT = Path(__file__).parent.parent
SECTIONS = ("tuning", "correct", "gemm", "regret", "bmm", "attention", "models", "compiled")


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
            assert set(case["engines"]) == {"ftuner", "torch"}
            assert all(entry["median_s"] > 0 for entry in case["engines"].values())


def test_every_attention_is_right(dry):
    cases = results.load(dry / "gpu-dry-attention.json")["cases"]
    engines = {"ftuner", "torch"}
    for case in cases:
        assert engines <= set(case["engines"])
        assert all(entry["median_s"] > 0 for entry in case["engines"].values())
        assert all(0 < error <= 1 for error in case["errors"].values())
    assert any(len(case["engines"]) == 3 for case in cases)


def test_regret_compares_plans_of_the_library(dry):
    (case,) = results.load(dry / "gpu-dry-regret.json")["cases"]
    assert case["wrong"] == []
    assert case["candidates"] > 1
    assert case["regret"] >= 0


def test_a_layer_is_compiled_once_for_all_rows(dry):
    (layer,) = results.load(dry / "gpu-dry-compiled.json")["cases"]
    assert len(layer["shapes"]) == 2
    assert layer["recompilations"] == 0


def test_dry_results_are_in_no_report(dry):
    assert report.read_results(dry.parent) == []


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


def test_bursts_are_interleaved_and_copies_rotate():
    pytest.importorskip("torch")
    from benchmarks.gpu_timing import Burst, Settings, measure

    log: list[str] = []

    class Meter:
        """Each burst takes a millisecond a call more than the last."""

        def __init__(self) -> None:
            self.seconds = 0.0

        def burst(self, calls, ahead, host_s):
            for call in calls:
                call()
            self.seconds += 1e-3
            return Burst(self.seconds, 1e-6)

    calls = {name: [lambda n=name, i=i: log.append(f"{n}{i}") for i in (0, 1)] for name in "ab"}
    settings = Settings(burst_s=0.0, burst_calls=1, rounds=3)
    timings = measure(calls, Meter(), settings, random.Random(0))
    # Three calls to warm up, then one a round.
    assert [x for x in log if x[0] == "a"] == ["a0", "a1", "a0", "a1", "a0", "a1"]
    rounds = log[6:]
    assert all({rounds[i][0], rounds[i + 1][0]} == {"a", "b"} for i in (0, 2, 4))
    for timing in timings.values():
        assert timing.rounds == 3
        assert timing.min_s < timing.median_s


def test_wrong_results_are_told_from_rounding():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_bench import ENDLESS, error_of

    torch.manual_seed(0)
    x, w = torch.randn(70, 4096).bfloat16(), torch.randn(4096, 24).bfloat16()
    y = (x.double() @ w.double()).bfloat16()
    assert error_of(y, x, w, "bfloat16") < 1.0
    short = (x[:, :-32].double() @ w[:-32].double()).bfloat16()
    assert error_of(short, x, w, "bfloat16") > 1.0
    y[-1, 3] = torch.nan
    assert error_of(y, x, w, "bfloat16") == ENDLESS


def made(name: str, cases: list[dict], **more: object) -> dict:
    """A document as a run on a chip would leave it."""
    return {
        "schema": 1,
        "kind": "gpu",
        "set": name,
        "threads": 1,
        "date": "2026-01-01T00:00:00+00:00",
        "machine": {
            "cpu_model": "Some GPU", "architecture": "sm_90", "system": "Linux", "cores": 132,
            "cache_bytes": {"L2": 50 << 20}, "driver": "580.1", "cuda": "13.0",
            "dram_bytes": 80 << 30,
        },
        "versions": {"torch": "2.11.0", "triton": "3.6.0"},
        "probe_s": 1.5,
        "complete": True,
        "cases": cases,
        **more,
    }  # fmt: skip


def product(m: int, ours_s: float, theirs_s: float) -> dict:
    return {
        "label": f"llama-8b bfloat16 nt {m}x8x8",
        "case": {"set": "llama-8b", "multiply": "bfloat16", "m": m},
        "engines": {
            "ftuner": {"median_s": ours_s, "host_s": 1e-5, "fraction_of_peak": 0.5},
            "torch": {"median_s": theirs_s, "host_s": 5e-6},
            "torch-max-autotune": {"median_s": 2 * theirs_s, "host_s": 5e-6},
        },
    }


def test_report_of_a_gpu(tmp_path):
    folder, page = tmp_path / "results", tmp_path / "page.md"
    products = [product(1, 1e-5, 2e-5), product(7, 2e-5, 1e-5)]
    layer = {"label": "8x8", "shapes": products, "compile_s": 30.0, "recompilations": 0}
    seconds = {"regret": 0.03, "search_s": 2.0, "plan_s": 1e-5}
    model = {
        "label": "MiniLM 1x8", "ratio_plain": 1.5, "ratio_graph": 1.25,
        "engines": {"ftuner": {"median_s": 1e-3}, "ftuner, CUDA graph": {"median_s": 5e-4}},
    }  # fmt: skip
    documents = [
        made("gemm", products, left=3),
        made("compiled", [layer]),
        made("regret", [{"label": "llama-8b 7x8x8", **seconds}]),
        made("models", [model], error="NotImplementedError: something"),
        made("correct", [{"label": "a check", "right": False, "raised": "ValueError: why"}]),
        made("tuning", [{"label": "compile, empty cache", "seconds": 9.0, "kernels": 28}]),
    ]
    for document in documents:
        results.save(document, folder / "some-gpu" / f"gpu-{document['set']}.json")
    page.write_text(f"{report.BEGIN}\n{report.END}\n")
    report.main(folder, page)
    text = page.read_text()
    for expected in (
        "## Some GPU",
        "driver 580.1, CUDA 13.0",
        "| llama-8b | bfloat16 | 2 | 1.00 | 0.50 (7x8x8) | 1 | 1 | 0.50 |",
        "| 1 | 2.00 | 0.50 |",
        "| 8x8 | 2 | 2.00 | 1.00 | 30.0 s | 0 |",
        "| 1 | 3.0% | 3.0% (7x8x8) | 2.00 s | 10.0 us |",
        "| MiniLM 1x8 | 1.00 | 1.50 | 0.50 | 1.25 |",
        "- wrong: a check: ValueError: why",
        "| compile, empty cache: 28 kernels | 9.00 s |",
        "- gemm: 3 cases, for lack of time",
        "- models: NotImplementedError: something",
    ):
        assert expected in text


def test_what_is_wrong_of_an_attention_is_told():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from benchmarks.gpu_attention import Attention, error_of

    case = Attention("", "bfloat16", 2, 1, 64, (70,), (200,), True)
    q, k, v = (torch.randn(h, n, 64).bfloat16() for h, n in ((2, 70), (1, 200), (1, 200)))
    scores = (q.double() @ k.double().mT / 8).masked_fill(
        ~torch.ones(70, 200, dtype=torch.bool).tril(130), -torch.inf
    )
    right = (scores.softmax(-1).bfloat16().double() @ v.double()).bfloat16()
    assert error_of(right, q, k, v, "bfloat16", True) < 1.0
    wrong = (scores.masked_fill(scores > 2, 2.0).softmax(-1) @ v.double()).bfloat16()
    assert error_of(wrong, q, k, v, "bfloat16", True) > 1.0
    # 70 rows see 131 to 200 of the keys.
    assert case.flops == 4 * 2 * 64 * sum(range(131, 201))


def test_the_workloads_fit_the_caches_they_should_not():
    pytest.importorskip("torch")
    from benchmarks.gpu_cases import MAX_COPIES, bmm_cases, gemm_cases

    l2_bytes = 50 << 20
    cases = [*gemm_cases(), *bmm_cases()]
    assert len(cases) > 300
    for case in cases:
        copies = case.copies(l2_bytes)
        assert copies >= 2
        assert copies == MAX_COPIES or copies * case.bytes > 3 * l2_bytes
    assert json.dumps([case.label for case in cases])
