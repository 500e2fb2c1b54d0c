"""Whether a file of an architecture loads, and whether it is right at each shape.

The reference is ONNX Runtime on the same file. Torch's own outputs tell apart a wrong file from a
wrong engine: where ONNX Runtime is apart from torch, who agrees with torch is right. Where ONNX
Runtime does not run a file at all, ftuner is right if it agrees with torch; otherwise the file may
be at fault, and does not count.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.zoo.architecture import SHAPES, Array
from benchmarks.zoo.exporting import FILES, Exported
from benchmarks.zoo.recognised import recognised
from ftuner_tools.engines import onnxruntime_session
from ftuner_tools.timing import ATOL, RTOL

UNCOUNTED = ("not exported", "not run by onnxruntime")
"""Verdicts on files that are no model to be run."""
RIGHT, WRONG, REFUSED = "right", "wrong", "refused"
FLOAT32, FLOAT16 = (ATOL, RTOL), (2e-2, 2e-2)
"""What outputs may differ by, absolutely and relatively, by the precision that a file computes
in."""


def difference(
    found: Sequence[Array], wanted: Sequence[Array], tolerance: tuple[float, float] = FLOAT32
) -> str:
    """What is different between the outputs of two engines; nothing if they agree. An absolute
    error counts by the spread of the output."""
    atol, rtol = tolerance
    for number, (own, other) in enumerate(zip(found, wanted, strict=True)):
        if own.shape != other.shape or own.dtype != other.dtype:
            return f"output {number}: {own.dtype}{own.shape}, expected {other.dtype}{other.shape}"
        if not own.size:
            continue
        if not np.array_equal(np.isfinite(own), np.isfinite(other)):
            return f"output {number}: finite elsewhere"
        own, other = (np.nan_to_num(x.astype(np.float64)) for x in (own, other))
        bound = atol * max(1.0, float(other.std())) + rtol * np.abs(other)
        error = np.abs(own - other)
        if np.any(error > bound):
            wrong = np.mean(error > bound)
            return f"output {number}: differs by {error.max():.2g} in {wrong:.0%} of elements"
    return ""


def checked(files: Exported, threads: int) -> dict[str, Any]:
    """The verdict on a file, and what passes recognise in it, as JSON."""
    return compared(files, threads) | {"recognised": recognised(files.model)}


def compared(files: Exported, threads: int) -> dict[str, Any]:
    """The verdict on a file, as JSON: `verdict`, `why`, and in `exporter` what is different between
    ONNX Runtime and torch."""
    wanted = [files.wanted(shape) for shape in range(SHAPES)]
    try:
        session = onnxruntime_session(str(files.model), threads)
        references = [session.run(None, files.feeds(shape)) for shape in range(SHAPES)]
    except Exception as error:  # ONNX Runtime has no common class of its errors.
        found = _verdict(files, wanted, threads)
        if found["verdict"] == RIGHT:
            return {"exporter": "", "verdict": RIGHT, "why": f"by torch: {_first_line(error)}"}
        return {"verdict": UNCOUNTED[1], "why": f"{_first_line(error)}; ftuner: {found['why']}"}
    against_torch = [
        difference(*pair, _tolerance(files)) for pair in zip(references, wanted, strict=True)
    ]
    found = {"exporter": next((why for why in against_torch if why), "")}
    return found | _verdict(files, references, threads)


def _verdict(files: Exported, references: Sequence[list[Array]], threads: int) -> dict[str, Any]:
    ftuner = importlib.import_module("ftuner")
    try:
        model = ftuner.load(files.model, threads=threads)
    except ftuner.FTunerError as error:
        return {"verdict": REFUSED, "why": _first_line(error)}
    apart, tolerance = "", _tolerance(files)
    for shape, wanted in enumerate(references):
        feeds = files.feeds(shape)
        extents = ", ".join(f"{name} {list(x.shape)}" for name, x in feeds.items())
        try:
            outputs = model.run(feeds)
        except ftuner.FTunerError as error:
            return {"verdict": REFUSED, "why": f"{extents}: {_first_line(error)}"}
        why = difference(outputs, wanted, tolerance)
        if why and difference(outputs, files.wanted(shape), tolerance):
            return {"verdict": WRONG, "why": f"{extents}: {why}"}
        if why:
            apart = apart or f"ONNX Runtime is apart from torch and ftuner, {extents}: {why}"
    return {"verdict": RIGHT, "why": apart}


def _tolerance(files: Exported) -> tuple[float, float]:
    return FLOAT16 if files.half else FLOAT32


def _first_line(error: BaseException) -> str:
    """The class and the first line of an error, files named from the folder of all files on."""
    lines = str(error).replace(f"{FILES}/", "").strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:400]
