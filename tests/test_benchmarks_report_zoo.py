"""The page of architectures tells ratios, losses, and what was not timed."""

from typing import Any

from benchmarks.report_zoo import page


def _case(own_s: float, peer_s: float, first_s: float) -> dict[str, Any]:
    engines = {"ftuner": {"min_s": own_s, "median_s": own_s}, "onnxruntime": {"min_s": peer_s}}
    return {"ratio": peer_s / own_s, "first_s": first_s, "share_around": 0.25, "engines": engines}


def _document(threads: int, ratio: float) -> dict[str, Any]:
    fast = {
        "label": "bert", "kind": "encoder", "verdict": "right", "why": "", "load_s": 0.5,
        "cases": [_case(1e-3, 1e-3 * ratio, 2e-3), _case(1e-3, 1e-3, 1.5e-3)],
    }  # fmt: skip
    others = [
        {"label": "xlnet", "kind": "encoder", "verdict": "not exported", "why": "a|b"},
        {"label": "odd", "kind": "decoder", "verdict": "refused", "why": "no kernel"},
    ]
    return {
        "kind": "zoo", "set": "small", "threads": threads, "date": "2026-01-02T03:04:05",
        "versions": {"torch": "2"}, "machine": {"cpu_model": "a CPU"}, "results": [fast, *others],
    }  # fmt: skip


def test_ratios_are_means_and_the_least() -> None:
    text = page([_document(2, 0.81), _document(1, 4.0)])
    assert "| bert | encoder | 2.00 (1.00) | 0.90 (0.81) | 25% | 1.0 ms | 0.50 s |" in text
    assert "1 thread: 1 of 2 are right at every shape" in text
    assert "0 of 1 architectures reach 1.15, and 1 of 2 shapes are below 0.95" in text


def test_what_has_no_times_is_named() -> None:
    text = page([_document(1, 1.0)])
    assert "| xlnet | not exported | a\\|b |" in text
    assert "| odd | refused | no kernel |" in text


def test_what_the_reference_cannot_run_is_right_without_times() -> None:
    document = _document(1, 1.0)
    large = document["results"][0] | {"label": "large", "why": "no memory", "cases": []}
    document["results"].append(large)
    text = page([document])
    assert "1 thread: 2 of 3 are right at every shape" in text
    assert "| large | right | no memory |" in text


def test_without_results_there_is_only_the_introduction() -> None:
    assert page([]).startswith("# Architectures")
    assert "###" not in page([])


def test_what_is_held_out_has_a_section_of_its_own() -> None:
    document = _document(1, 4.0)
    (fast, *_) = document["results"]
    new = fast | {"label": "newer", "held_out": True}
    refused = {"label": "newest", "kind": "decoder", "verdict": "refused", "why": "no kernel",
               "held_out": True}  # fmt: skip
    document["results"] += [new, refused]
    tuned, held_out = page([document]).split("#### small: held out")
    assert "1 thread: 1 of 2 are right" in tuned
    assert "newer" not in tuned
    assert "1 thread: 1 of 2 are right" in held_out
    assert "| newer | encoder | 2.00 (1.00) |" in held_out
    assert "| newest | refused | no kernel |" in held_out
    assert "bert" not in held_out
    assert "held out" not in page([_document(1, 4.0)])


def _check(kind: str, *results: tuple[str, str, int]) -> dict[str, Any]:
    found = [
        {"label": label, "kind": "encoder", "verdict": verdict, "why": "a|b",
         "recognised": {"attention": attentions}}
        for label, verdict, attentions in results
    ]  # fmt: skip
    return _document(1, 1.0) | {"kind": kind, "results": found}


def test_variants_are_compared_with_the_default_files() -> None:
    plain = _check("zoo-check", ("bert", "right", 2), ("t5", "right", 6))
    variant = _check("zoo-check-traced", ("bert", "right", 2), ("t5", "right", 4),
                     ("vit", "wrong", 0), ("xlnet", "not exported", 0))  # fmt: skip
    text = page([plain, variant])
    assert "| torch's older exporter | 2 of 3 | t5 | 1 |" in text
    assert "| torch's older exporter | vit | wrong | a\\|b |" in text
    assert "Other files" not in page([plain])
    assert "###" not in text
