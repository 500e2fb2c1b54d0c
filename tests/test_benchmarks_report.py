"""What is made of results: summaries, and the page."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from benchmarks import measure, report, results
from benchmarks.cases import Gemm
from benchmarks.machine import Machine


def document(ratios, *, kind="gemm", threads=1):
    """A document whose subject has these ratios to the peer `a`, and half of them to `b`."""
    cases = []
    for m, ratio in enumerate(ratios, start=1):
        case = Gemm("made-up", m, 8, 8)
        engines = {
            name: {"min_s": s, "median_s": 2 * s, "rounds": 5, "calls_per_burst": 3}
            | {"fraction_of_peak": 0.5, "fraction_of_bound": 0.75, "paired": s / 1e-6}
            | {"fraction_of_peak_paired": 0.25, "fraction_of_bound_paired": 0.375}
            for name, s in (("ftuner", 1e-6), ("a", ratio * 1e-6), ("b", 2 * ratio * 1e-6))
        }
        entry = {"case": asdict(case), "label": case.label, "flops": case.flops}
        cases.append(entry | {"engines": engines} | results.compare(engines, "ftuner"))
    here = Machine("Some CPU", "x86_64", "Linux", 2, {"L1": 1 << 15})
    return measure.header(kind, "made-up", threads, here) | {"cases": cases, "settings": {}}


def test_geomean():
    assert results.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(results.geomean([]))


def test_ratio_is_to_the_best_peer():
    engines = {
        "ftuner": {"min_s": 2.0, "median_s": 4.0, "paired": 1.0},
        "a": {"min_s": 3.0, "median_s": 9.0, "paired": 1.4},
        "b": {"min_s": 5.0, "median_s": 6.0, "paired": 1.25},
        "c": {"refused": "wrong"},
    }
    expected = {"best_peer": "a", "ratio": 1.5, "ratio_median": 1.5, "ratio_paired": 1.25}
    assert results.compare(engines, "ftuner") == expected
    assert results.compare({"a": engines["a"]}, "ftuner")["ratio"] is None
    assert results.compare({"ftuner": engines["ftuner"]}, "ftuner")["best_peer"] is None


def test_convolutions_are_shown_by_layer_and_first_calls_by_picture():
    convs = document([2.0, 8.0], kind="conv")
    for case, label in zip(convs["cases"], ("3x3 8>8 7x7", "3x3 8>8 9x9"), strict=True):
        case["label"] = label
    first = {k: v for k, v in convs.items() if k not in ("cases", "settings")} | {"kind": "first"}
    first["cases"] = [{"label": "1x96x96", "first_s": 3e-3, "tenth_s": 2e-3}]
    generated = report.render([convs, first])
    assert "| 3x3 8>8 | 4.00 |" in generated
    assert "| made-up, 1 thread | 1x96x96 | 1.50 | 1.00 ms |" in generated


def test_summary_counts_and_sorts():
    summary = results.summarise(document([2.0, 0.5, 0.8]))
    assert (summary.cases, summary.wins) == (3, 1)
    assert [label for label, _, _ in summary.losses] == ["2x8x8", "3x8x8"]
    assert summary.worst == summary.losses[0]
    assert summary.geomean == pytest.approx(0.8 ** (1 / 3))
    assert summary.geomean_paired == pytest.approx(0.8 ** (1 / 3))
    assert summary.least_paired == ("2x8x8", pytest.approx(0.5))
    assert summary.per_peer["b"] == pytest.approx(2 * summary.per_peer["a"])
    assert summary.fraction_of_peak == pytest.approx(0.5)


def test_a_foreign_schema_is_refused(tmp_path):
    path = tmp_path / "old.json"
    results.save({"schema": 0}, path)
    with pytest.raises(ValueError, match="schema"):
        results.load(path)


def test_report_is_idempotent_and_lists_losses(tmp_path):
    folder, page = tmp_path / "results", tmp_path / "page.md"
    results.save(document([2.0, 0.5]), folder / "a" / "one.json")
    results.save(document([1.5], kind="bmm", threads=2), folder / "b" / "two.json")
    results.save({"kind": "something else"}, folder / "a" / "other.json")
    page.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    report.main(folder, page)
    once = page.read_text()
    report.main(folder, page, tmp_path / "plot.png")
    assert page.read_text() == once
    assert once.startswith("before\n")
    assert once.endswith("\n\nafter\n")
    assert "old" not in once
    assert "| 2x8x8 | a | 0.50 |" in once
    assert "bmm made-up, 2 threads" in once
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_report_by_rows():
    generated = report.render([document([2.0, 3.0]) | {"set": "mlp"}])
    assert (
        "| m | ratio, 1 thread | share of peak, 1 thread | share of bound, 1 thread |" in generated
    )
    assert "| 2 | 3.00 | 0.50 / 0.25 | 0.75 / 0.38 |" in generated


def test_report_of_shares_that_were_not_paired():
    made = document([2.0]) | {"set": "mlp"}
    own = made["cases"][0]["engines"]["ftuner"]
    del own["fraction_of_peak_paired"], own["fraction_of_bound_paired"]
    assert "| 1 | 2.00 | 0.50 | 0.75 |" in report.render([made])


def test_report_of_searches():
    made = document([1.0], kind="metaschedule")
    made["cases"][0]["engines"]["metaschedule"] = {"min_s": 3e-6, "median_s": 3e-6}
    made["cases"][0]["tuning_s"] = 120.0
    made |= {"ftuner_tuning_s": 2.0, "settings": {"trials": 64}}
    assert "| 1x8x8 | 60.00 | 3.00 |" in report.render([made])


def test_report_of_int8_weights():
    made = document([1.0], kind="int8")
    seconds = {"ftuner, int8": 2e-6, "ftuner, float32": 6e-6, "other": 3e-6}
    timings = {name: {"min_s": s, "median_s": s} for name, s in seconds.items()}
    made["cases"] = [{"rows": 4, "engines": timings}]
    assert "| 4 | 3.00 | 1.50 |" in report.render([made])


def test_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        report.replace_between_markers("no markers here", "generated")


def test_the_page_is_what_the_results_say():
    generated = report.render(report.read_results(report.RESULTS))
    page = report.PAGE.read_text()
    assert report.replace_between_markers(page, generated) == page
