"""The benchmark harness, held to with engines that are made up."""

from __future__ import annotations

import json
import math
import random
import threading
from dataclasses import asdict
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from benchmarks import limits, measure, report, results
from benchmarks.cases import MAX_COPIES, MAX_ROTATED_BYTES, BatchMatmul, Gemm, rotation_copies
from benchmarks.cases import select as select_cases
from benchmarks.engines import Engine, NumPy
from benchmarks.machine import Machine
from benchmarks.measure import Request
from benchmarks.reference import WrongOutputError, check, sampled_rows
from benchmarks.run import environment, table
from benchmarks.timing import TASKS, Settings, Timing, other_threads_run, settle
from benchmarks.timing import measure as measure_calls


class Clock:
    """A clock that only calls move."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def taking(self, seconds_s, log, name):
        def call():
            self.now_s += seconds_s
            log.append(name)

        return call


class Fast(NumPy):
    """The subject's stand-in: right, and under the subject's name."""

    name = "ftuner"
    modules = ("numpy",)


class Wrong(NumPy):
    """An engine that spoils one element."""

    name = "wrong"

    def prepare_gemm(self, weight, bias, threads):
        layer = super().prepare_gemm(weight, bias, threads)

        def bind(x):
            call = layer(x)

            def spoiled():
                out = call()
                out[-1, -1] += 1.0
                return out

            return spoiled

        return bind


class Absent(Engine):
    name = "absent"
    modules = ("no_such_module_as_this",)

    def prepare_gemm(self, weight, bias, threads):
        raise AssertionError("prepared though not available")

    def prepare_bmm(self, layout, threads):
        raise AssertionError("prepared though not available")


class NoWork:
    """Limits that do nothing, and know what they were asked for."""

    asked: ClassVar[list[tuple[object, ...]]] = []

    def __init__(self, threads):
        self.asked.append(("threads", threads))

    def multiply_adds(self, flops):
        self.asked.append(("multiply-adds", flops, 1))
        return [lambda: None]

    def reads(self, size, copies):
        self.asked.append(("reads", size, copies))
        return [lambda: None] * copies


SETTINGS = Settings(budget_s_per_engine=0.0, burst_s=1e-5, min_rounds=2, max_rounds=3)


@pytest.fixture
def fakes(monkeypatch):
    """The registry of engines, made up, and a machine whose L2 holds nothing."""
    engines = {engine.name: engine for engine in (Fast, NumPy, Wrong, Absent)}
    monkeypatch.setattr(measure, "ENGINES", engines)
    monkeypatch.setattr(limits, "Limits", NoWork)
    NoWork.asked.clear()
    here = Machine("Some CPU", "x86_64", "Linux", 2, {"L1": 1 << 15, "L2": 1 << 19})
    monkeypatch.setattr(measure.machine, "describe", lambda: here)


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


# cases


@pytest.mark.parametrize(
    ("kind", "set_name", "count"),
    [
        ("gemm", "mlp", 198),
        ("gemm", "deepbench", 12),
        ("gemm", "dietcode", 32),
        ("gemm", "inductor", 8),
        ("gemm", "all", 250),
        ("bmm", "dietcode", 16),
        ("bmm", "mlp", 22),
        ("bmm", "all", 38),
    ],
)
def test_sets_have_every_case_of_the_workload_file(kind, set_name, count):
    cases = select_cases(kind, set_name)
    assert len(cases) == count
    groups = [case.prepared_by for case in cases]
    changes = sum(a != b for a, b in pairwise(groups))
    assert changes == len(set(groups)) - 1  # a weight is prepared once


def test_layouts_of_attention():
    cases = select_cases("bmm", "mlp")
    assert BatchMatmul("mlp", "nt", 12, 197, 197, 64) in cases  # scores: q @ k.T
    assert BatchMatmul("mlp", "nn", 12, 197, 64, 197) in cases  # values: p @ v


@pytest.mark.parametrize(("kind", "set_name"), [("conv", "mlp"), ("gemm", "nonesuch")])
def test_unknown_sets_are_named(kind, set_name):
    with pytest.raises(ValueError, match="unknown"):
        select_cases(kind, set_name)


def test_copies_outgrow_l2_within_bounds():
    l2 = 1 << 19
    for size in (1 << 10, 1 << 16, 3 << 17, 1 << 21, 1 << 25, 1 << 29):
        copies = rotation_copies(size, l2)
        assert 1 <= copies <= MAX_COPIES
        assert copies * size >= 4 * l2 or copies == MAX_COPIES
        assert copies == 1 or copies * size <= MAX_ROTATED_BYTES


def test_level_that_holds_the_operands():
    here = Machine("Some CPU", "x86_64", "Linux", 2, {"L1": 1 << 15, "L2": 1 << 19})
    assert [here.level_holding(size) for size in (1, 1 << 15, 1 << 16, 1 << 20)] == [
        "L1",
        "L1",
        "L2",
        "DRAM",
    ]


# the reference


def operands(m=17, k=64, n=24, seed=0):
    rng = np.random.default_rng(seed)
    x, w, bias = (rng.standard_normal(s, dtype=np.float32) for s in ((m, k), (k, n), (n,)))
    return x, w, bias


def test_a_right_output_passes():
    x, w, bias = operands()
    check(x @ w + bias, x, w, bias)
    check(np.stack([x @ w] * 2), np.stack([x] * 2), np.stack([w] * 2))


@pytest.mark.parametrize("wrong", ["nan", "left out", "bias", "shape", "dtype", "half"])
def test_a_wrong_output_is_refused(wrong):
    x, w, bias = operands()
    out = x @ w + bias
    if wrong == "nan":
        out[3, 5] = np.nan
    elif wrong == "left out":
        out = x[:, :-1] @ w[:-1] + bias
    elif wrong == "bias":
        out = out - bias
    elif wrong == "shape":
        out = out[:, :-1]
    elif wrong == "dtype":
        out = out.astype(np.float64)
    else:  # half precision where float32 was asked for
        out = (x.astype(np.float16) @ w.astype(np.float16)).astype(np.float32) + bias
    with pytest.raises(WrongOutputError):
        check(out, x, w, bias)


def test_sampled_rows_keep_the_last_and_every_place_in_a_tile():
    assert list(range(10))[sampled_rows(10, 1.0)] == list(range(10))[::-1]
    rows = list(range(4096))[sampled_rows(4096, 1.0, budget_flops=512.0)]
    assert rows[0] == 4095
    assert {row % 8 for row in rows} == set(range(8))
    assert len(rows) <= 512


# timing


def test_engines_are_interleaved_and_copies_rotate():
    clock, log, settled = Clock(), [], []
    engines = {
        name: [clock.taking(1e-3, log, f"{name}{copy}") for copy in range(2)] for name in "abc"
    }
    settings = Settings(budget_s_per_engine=0.0, burst_s=1e-3, min_rounds=4, max_rounds=9)
    timings = measure_calls(
        engines, settings, random.Random(0), clock, lambda: settled.append(len(log))
    )
    assert all(timing.rounds == 4 for timing in timings.values())
    # Between two settlings one engine runs alone, and uses its copies in turn.
    bounds = [*settled, len(log)]
    turns = [log[a:b] for a, b in pairwise(bounds)]
    for turn in turns:
        assert len({name[0] for name in turn}) == 1
        assert all(a != b for a, b in pairwise(turn))
    # After the sizing of bursts, every round has each engine once, not always in the same order.
    rounds = ["".join(turn[0][0] for turn in turns[i : i + 3]) for i in range(3, len(turns), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 1


def test_minimum_and_median_of_bursts():
    clock = Clock()
    seconds = iter([1e-3] * 4 + [3e-3] * 5 + [1e-3] * 5 + [2e-3] * 5)  # sizing, three rounds

    def call():
        clock.now_s += next(seconds)

    settings = Settings(budget_s_per_engine=0.0, burst_s=1e-3, min_rounds=3, max_rounds=3)
    timing = measure_calls({"a": [call]}, settings, random.Random(0), clock, lambda: None)["a"]
    assert timing.calls_per_burst == 3
    assert timing.min_s == pytest.approx(1e-3)
    assert timing.median_s == pytest.approx(2e-3)


def test_bursts_are_long_enough_and_long_calls_few():
    clock, log = Clock(), []
    engines = {
        "short": [clock.taking(1e-6, log, "short")],
        "long": [clock.taking(1.0, log, "long")],
    }
    settings = Settings(budget_s_per_engine=0.1)
    timings = measure_calls(engines, settings, random.Random(0), clock, lambda: None)
    assert timings["short"].calls_per_burst * 1e-6 >= settings.burst_s * 0.999
    assert timings["long"].calls_per_burst == 1
    assert timings["long"].rounds == settings.long_call_min_rounds
    assert log.count("long") == 1 + settings.long_call_min_rounds


# a run


def test_run_refuses_the_wrong_and_reports_the_absent(fakes, tmp_path):
    request = Request(
        kind="gemm",
        set_name="mlp",
        engines=("ftuner", "numpy", "wrong", "absent"),
        threads=1,
        out="unused",
        only=("3x384x384", "5x384x384"),
        settings=SETTINGS,
    )
    assert Request.from_json(json.dumps(asdict(request))) == request
    made = measure.run(request)
    path = tmp_path / "made.json"
    results.save(made, path)
    assert results.load(path) == made
    assert made["unavailable"] == ["absent"]
    assert made["engines"] == ["ftuner", "numpy", "wrong"]
    assert {"schema", "kind", "set", "threads", "date", "machine", "versions"} <= made.keys()
    assert [case["label"] for case in made["cases"]] == list(request.only)
    for case in made["cases"]:
        assert case["copies"] == 4
        assert case["operands_level"] == "DRAM"
        assert case["best_peer"] == "numpy"
        assert set(case["engines"]["wrong"]) == {"refused"}
        own, peer = case["engines"]["ftuner"], case["engines"]["numpy"]
        assert 0.0 < own["min_s"] <= own["median_s"]
        assert own["rounds"] == peer["rounds"]
        least = {name: entry["min_s"] for name, entry in case["limits"].items()}
        assert own["fraction_of_peak"] == least["multiply-adds"] / own["min_s"]
        assert own["fraction_of_bound"] == max(least.values()) / own["min_s"]
        assert own["fraction_of_bound_paired"] >= own["fraction_of_peak_paired"] > 0.0
        m, n, k = (case["case"][extent] for extent in "mnk")
        moved = 4 * (m * k + n * k + n + m * n)
        assert NoWork.asked[0] == ("threads", 1)
        assert ("multiply-adds", case["flops"], 1) in NoWork.asked
        assert ("reads", moved, case["copies"]) in NoWork.asked
        assert case["ratio"] == peer["min_s"] / own["min_s"]
    summary = results.summarise(made)
    assert summary.cases == 2
    assert {engine for _, engine, _ in summary.refused} == {"wrong"}
    assert table(made).row_count >= 3


@pytest.mark.parametrize("label", ["nt 12x5x5x64", "nn 12x24x64x24"])
def test_run_of_batched_products(fakes, label):
    request = Request(
        "bmm", "mlp", ("ftuner", "numpy"), 1, "unused", only=(label,), settings=SETTINGS
    )
    (case,) = measure.run(request)["cases"]
    assert case["ratio"] > 0.0


def test_a_measuring_process_has_thread_pools_of_one_size():
    variables = environment(3)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert variables[name] == "3"


def test_settling_waits_for_threads_that_spin():
    states = iter([True, False, True, False, False])
    settle(lambda: next(states))
    assert list(states) == []


@pytest.mark.skipif(not TASKS.exists(), reason="threads have no states here")
def test_a_spinning_thread_is_seen():
    stop = threading.Event()

    def spin():
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert other_threads_run()
    finally:
        stop.set()
        thread.join()
    settle()
    assert not other_threads_run()


def test_paired_rounds_leave_out_what_slows_both():
    subject = Timing(1.0, 2.0, 3, 1, (1.0, 2.0, 8.0))
    peer = Timing(0.5, 2.0, 3, 1, (2.0, 4.0, 0.5))
    assert peer.to_json(subject) == {
        "min_s": 0.5, "median_s": 2.0, "rounds": 3, "calls_per_burst": 1, "paired": 2.0
    }  # fmt: skip
    assert "paired" not in subject.to_json()


# results and report


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
