"""The report of GPU benchmarks, from results as a run on a chip would leave them."""

from benchmarks import recorded, report, results


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
        "compiled": int(m == 1),
        "case": {"set": "llama-8b", "multiply": "bfloat16", "m": m},
        "ratio_median": theirs_s / ours_s,
        "engines": {
            "ftuner": {"median_s": ours_s, "host_s": 1e-5, "fraction_of_peak": 0.5},
            "torch": {"median_s": theirs_s, "host_s": 5e-6},
            "torch-max-autotune": {"median_s": 2 * theirs_s, "host_s": 5e-6},
            "torch, padded to multiples of 64": {"median_s": 4 * theirs_s, "host_s": 5e-6},
        },
    }


def attention_case() -> dict:
    """As `benchmarks.gpu_attention` leaves one: no extents by the names that products have."""
    return {
        "label": "decode bfloat16 32/8x128 1*1x333",
        "case": {"set": "decode", "multiply": "bfloat16", "rows": [1], "keys": [333]},
        "compiled": 3,
        "ratio_median": 1.25,
        "engines": {
            "ftuner": {"median_s": 2e-5, "host_s": 1e-5, "fraction_of_peak": 0.25},
            "torch": {"median_s": 3e-5, "host_s": 5e-6},
            "torch, FlashAttention": {"median_s": 2.5e-5, "host_s": 9e-6},
            "torch, cuDNN": {"refused": "RuntimeError: No available kernel.\nWhy"},
        },
    }


def encoder_cases() -> list[dict]:
    graph = ", CUDA graph"
    first = {"first_s": 0.7, "second_s": 0.04, "third_s": 3e-3, "last_s": 2e-3, "compiled": 1}
    both = {"model": "MiniLM", "dtype": "tf32", "first_calls": {"torch.compile": first}}
    own = {"ftuner, launches": {"median_s": 1e-3}, "ftuner": {"median_s": 5e-4}}
    return [
        {
            "label": "MiniLM 1x8", "shape": [1, 8], "number": 0, **both,
            "engines": {
                **own, "torch": {"median_s": 1.5e-3}, "torch.compile": {"median_s": 1.6e-3},
                f"torch{graph}": {"median_s": 6.25e-4},
                f"torch, padded to powers of two{graph}": {"median_s": 1.5e-3},
            },
        },
        {
            "label": "MiniLM 1x9", "shape": [1, 9], "number": 1, **both,
            "engines": {
                "ftuner, launches": {"median_s": 1e-3}, "torch": {"median_s": 2e-3},
                "ftuner": {"refused": "it waits\nat line 3"},
            },
        },
        {
            "label": "MiniLM 1x8, bucket", "shape": [1, 8], "model": "MiniLM", "dtype": "tf32",
            "bucket": 16, "compile_s": 21.0,
            "engines": {**own, f"torch.compile for a bucket{graph}": {"median_s": 2e-3}},
        },
    ]  # fmt: skip


def calibration_cases():
    """A prior whose constants are found, and a shape."""
    share = {"before": 0.85, "value": 0.7, "error": 0.02, "settled": True, "trials": 5}
    kept = {"before": 0.5, "value": 0.5, "error": 0.8, "settled": False, "trials": 0}
    constants = {"sustained_matrix_share": share, "l2_share": kept}
    regrets = {"default, before": 0.1, "default, after": 0.02}
    return [
        {"label": "default", "seconds": 8.0, "condition": "steady", "constants": constants},
        {"label": "llama-8b 7x8x8", "regrets": regrets},
    ]


def test_report_of_a_gpu(tmp_path):
    folder = tmp_path / "results"
    products = [product(1, 1e-5, 2e-5), product(7, 2e-5, 1e-5)]
    layer = {"label": "8x8", "shapes": products, "compile_s": 30.0, "recompilations": 0}
    seconds = {"regret": 0.03, "search_s": 2.0, "plan_s": 1e-5}
    documents = [
        made("gemm", products, left=3),
        made("compiled", [layer]),
        made("attention", [attention_case()]),
        made("regret", [{"label": "llama-8b 7x8x8", **seconds}]),
        made("calibration", calibration_cases()),
        made("models", encoder_cases(), error="NotImplementedError: something"),
        made("correct", [{"label": "a check", "right": False, "raised": "ValueError: why"}]),
        made("tuning", [{"label": "compile, empty cache", "seconds": 9.0, "kernels": 28}]),
    ]
    for document in documents:
        results.save(document, folder / "some-gpu" / f"gpu-{document['set']}.json")
    (machine,) = recorded.read_recorded(folder)
    text = report.page(machine)
    for expected in (
        "# Performance on Some GPU",
        "driver 580.1, CUDA 13.0",
        "## gemm against the best peer of each case",
        "| llama-8b | bfloat16 | 2 | 1.00 | 0.50 (7x8x8) | 1 | 1 | 1.00 | 0.50 |",
        "| 1 | 2.00 | 0.50 |",
        "| 8x8 | 2 | 2.00 | 1.00 | 30.0 s | 0 |",
        "Kernels were compiled for 1 of 2 cases",
        "## attention against the best peer of each case",
        "Peers: torch; torch, FlashAttention; torch, cuDNN.",
        "| decode | bfloat16 | 1 | 1.25 | 1.25 (1*1x333) | 0 | 1 | 1.50 | 0.25 |",
        "- refused: torch, cuDNN on decode bfloat16 32/8x128 1*1x333: RuntimeError: No available "
        "kernel.\n",
        "Kernels were compiled for 1 of 1 cases",
        "| multiples of 64 | 2 | 4.00 | 4.00 |",
        "| default | 8.0 s | steady | 1/2 | 10.0% | 10.0% | 2.0% | 2.0% |",
        "| sustained_matrix_share | 0.7 +- 2% |",
        "| l2_share |  |",
        "| 1 | 3.0% | 3.0% (7x8x8) | 2.00 s | 10.0 us | 200000 |",
        "| MiniLM, tf32 | 2 | 1.73 (1.50) | 1.25 (1.25) | 3.00 (3.00) |",
        "| MiniLM, tf32 | torch.compile | 1 | 700.00 | 700.00 | 40.00 | 3.00 | 2.00 | 1 |",
        "| MiniLM 1x8 | 1.00 | 1.50 | 0.50 | 1.25 | 3.00 |",
        "| MiniLM 1x9 | 1.00 | 2.00 | – | – | – |",
        "| MiniLM 1x8 | 16 | 21.0 s | 4.00 | 2.00 |",
        "- refused: ftuner on MiniLM 1x9: it waits",
        "- wrong: a check: ValueError: why",
        "| compile, empty cache: 28 kernels | 9.00 s |",
        "- gemm: 3 cases, for lack of time",
        "- models: NotImplementedError: something",
    ):
        assert expected in text
