"""What an architecture costs: loading, first calls, calls against the peers, and its steps."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.agreeing import run_agreeing
from benchmarks.engines import SUBJECT
from benchmarks.onnx_engines import ONNX_ENGINES
from benchmarks.timing import Settings
from benchmarks.zoo.architecture import SHAPES, Architecture, Feeds, Size
from benchmarks.zoo.exporting import exported

REFERENCE = "onnxruntime"
AROUND = ("nest", "top_k")
"""Kinds of steps that are no products, convolutions, attention or recurrence."""


def measured(row: Architecture, size: Size, threads: int, settings: Settings,
             peers: tuple[str, ...]) -> dict[str, Any]:  # fmt: skip
    """The times of an architecture at each shape, as JSON. An engine that does not take the file
    is left out, and the reason is kept."""
    files = exported(row, size)
    began = time.perf_counter()
    model = importlib.import_module("ftuner").load(files.model, threads=threads)
    load_s = time.perf_counter() - began
    feeds = [files.feeds(shape) for shape in range(SHAPES)]
    first_s = []
    for given in feeds:
        began = time.perf_counter()
        model.run(given)
        first_s.append(time.perf_counter() - began)
    around = [share_around(model, given) for given in feeds]
    kinds = Counter(step.kind for step in model.steps)
    del model

    bound, unavailable = {}, {}
    for name in (SUBJECT, *peers):
        try:
            bound[name] = ONNX_ENGINES[name](files.model, threads)
        except Exception as error:  # Peers have no common class of their errors.
            unavailable[name] = str(error).strip().partition("\n")[0]
    cases = []
    for shape, given in enumerate(feeds):
        calls = {}
        for name, bind in bound.items():
            call = bind(given)
            try:
                np.asarray(call())
            except Exception as error:
                unavailable[f"{name}, shape {shape}"] = str(error).strip().partition("\n")[0]
                continue
            calls[name] = [call]
        label, by_torch = f"{row.name}, shape {shape}", files.wanted(shape)[0]
        found = run_agreeing(calls, REFERENCE, 0, settings, label, None, exact=by_torch)
        extents = {name: list(x.shape) for name, x in given.items()}
        cases.append({"label": label, "extents": extents, "first_s": first_s[shape],
                      "share_around": around[shape]} | found)  # fmt: skip
    return {"load_s": load_s, "kinds": dict(kinds), "unavailable": unavailable, "cases": cases}


def share_around(model: Any, feeds: Feeds) -> float:
    """The share of the time of all steps that is spent in kinds `AROUND`."""
    seconds = model.step_seconds(feeds)
    pairs = zip(seconds, model.steps, strict=True)
    return float(sum(s for s, step in pairs if step.kind in AROUND) / sum(seconds))
