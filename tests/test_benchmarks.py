"""The benchmark harness, held to with engines that are made up."""

import json
import random
import sys
import threading
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from benchmarks import limits, measure, results
from benchmarks.cases import MAX_COPIES, MAX_ROTATED_BYTES, BatchMatmul, rotation_copies
from benchmarks.cases import select as select_cases
from benchmarks.machine import Machine
from benchmarks.measure import Request
from benchmarks.run import CrashedError, command_of, environment, result_apart, table

from ftuner_tools import compact
from ftuner_tools.engines import Engine, NumPy
from ftuner_tools.reference import WrongOutputError, check, sampled_rows
from ftuner_tools.timing import TASKS, Settings, Timing, other_threads_run, settle
from ftuner_tools.timing import measure as measure_calls


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


# processes


def test_a_process_gives_the_json_of_its_last_line():
    said = "import os; print('first'); print(os.environ['OMP_NUM_THREADS'] + os.environ['MORE'])"
    assert result_apart([sys.executable, "-c", said], 2, MORE="3") == 23


@pytest.mark.parametrize(
    ("code", "limit_s", "why", "status"),
    [
        ("import sys; sys.exit('a line\\nthe last one')", None, "the last one", 1),
        ("import os; os.abort()", None, "exit status -6", -6),
        ("import time; time.sleep(60)", 0.1, "more than 0.1 s", 1),
    ],
)
def test_a_process_that_fails_says_why(code, limit_s, why, status):
    with pytest.raises(CrashedError) as caught:
        result_apart([sys.executable, "-c", code], 1, limit_s)
    assert (str(caught.value), caught.value.status) == (why, status)


def test_options_of_a_command():
    found = command_of("module", "of", 2, flag=True, none=False, path=Path("a b"), empty="")
    assert found[1:] == ["-m", "module", "of", "2", "--flag", "--path=a b", "--empty="]


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
    assert results.load(path) == compact.whole(compact.compact(made))
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
        assert not [name for name in peer if name.startswith("fraction")]
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
        "min_s": 0.5, "median_s": 2.0, "paired": 2.0
    }  # fmt: skip
    assert "paired" not in subject.to_json()
