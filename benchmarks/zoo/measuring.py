"""What an architecture costs: loading, first calls, calls against the peers, and its steps."""

import importlib
import time
from typing import Any

import numpy as np

from benchmarks.agreeing import run_agreeing
from benchmarks.zoo.architecture import SHAPES, Feeds
from benchmarks.zoo.exporting import Exported
from ftuner_tools.onnx_engines import ONNX_ENGINES
from ftuner_tools.timing import SUBJECT, Settings

REFERENCE = "onnxruntime"
AROUND = ("nest", "top_k")
"""Kinds of steps that are no products, convolutions, attention or recurrence."""


def measured(name: str, files: Exported, threads: int, settings: Settings,
             peers: tuple[str, ...]) -> dict[str, Any]:  # fmt: skip
    """The times of a file at each shape, as JSON. An engine that does not take the file is left
    out, and the reason is kept; without the reference nothing is timed."""
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
    del model

    bound, unavailable = {}, {}
    for engine in (SUBJECT, *peers):
        try:
            bound[engine] = ONNX_ENGINES[engine].one(files.model, threads)
        except Exception as error:  # Peers have no common class of their errors.
            unavailable[engine] = str(error).strip().partition("\n")[0]
    cases = []
    for shape, given in enumerate(feeds):
        calls = {}
        for engine, bind in bound.items():
            call = bind(given)
            try:
                np.asarray(call())
            except Exception as error:
                unavailable[f"{engine}, shape {shape}"] = str(error).strip().partition("\n")[0]
                continue
            calls[engine] = [call]
        if REFERENCE not in calls:
            continue
        label, by_torch = f"{name}, shape {shape}", files.wanted(shape)[0]
        found = run_agreeing(calls, REFERENCE, 0, settings, label, None, exact=by_torch)
        costs_of_shape = {"first_s": first_s[shape], "share_around": around[shape]}
        cases.append({"label": label} | costs_of_shape | found)
    costs = {"load_s": load_s, "unavailable": unavailable, "cases": cases}
    if not cases:
        reasons = (why for what, why in unavailable.items() if what.startswith(REFERENCE))
        costs["why"] = f"{REFERENCE} cannot be timed: {next(reasons)}"
    return costs


def share_around(model: Any, feeds: Feeds) -> float:
    """The share of the time of all steps that is spent in kinds `AROUND`."""
    seconds = model.step_seconds(feeds)
    pairs = zip(seconds, model.steps, strict=True)
    return float(sum(s for s, step in pairs if step.kind in AROUND) / sum(seconds))
