"""What the first call of a shape costs: which calls are timed, and what is made of their times."""

import json
import subprocess
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import first_calls
from benchmarks.minilm import Feeds, shapes_in_disorder

import ftuner

SHAPES = [shape.label for shape in shapes_in_disorder(0)]


def test_every_shape_comes_new_and_every_call_has_new_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[Feeds] = []
    monkeypatch.setattr(ftuner, "load", lambda *_, **__: SimpleNamespace(run=runs.append))
    monkeypatch.setattr(first_calls, "model_path", lambda: "encoder.onnx")
    monkeypatch.setattr(first_calls, "settle", lambda: None)
    found = first_calls.here(threads=1, seed=3)
    assert sorted(found) == sorted(SHAPES)
    assert list(found) == [shape.label for shape in shapes_in_disorder(3)] != SHAPES
    assert all(len(seconds) == first_calls.CALLS for seconds in found.values())
    known = (first_calls.KNOWN.batch, first_calls.KNOWN.length)
    timed = [feeds["input_ids"] for feeds in runs[1:] if feeds["input_ids"].shape != known]
    assert len(timed) == first_calls.CALLS * len(SHAPES)
    of_one = [tokens for tokens in timed if tokens.shape == (8, 31)]
    assert len(of_one) == first_calls.CALLS
    assert all(np.any(x != y) for x, y in pairwise(of_one))


def test_medians_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seeds.append(command[-1].removeprefix("--seed="))
        slow = 100.0 if len(seeds) == 2 else 1.0
        calls = [slow * len(seeds), *[9.0] * (first_calls.CALLS - 2), 1.0 / slow]
        return subprocess.CompletedProcess(command, 0, json.dumps({"1x1": calls}))

    monkeypatch.setattr(subprocess, "run", run)
    assert first_calls.first_calls(2) == {"1x1": first_calls.FirstCall(4.0, 1.0)}
    assert seeds == [str(number) for number in range(first_calls.TRIES)]
