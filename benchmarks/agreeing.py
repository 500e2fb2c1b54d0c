"""Times of engines whose outputs agree with one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import fractions
from benchmarks.results import compared
from ftuner_tools.agreement import agreement
from ftuner_tools.timing import ATOL, MULTIPLY_ADDS, RTOL, SUBJECT, Call, Settings, measure

if TYPE_CHECKING:
    from benchmarks.limits import Limits

Array = npt.NDArray[Any]


def difference(found: Array, wanted: Array, rtol: float = RTOL) -> str:
    """Why an output is not the one that is wanted; nothing if it is. The absolute error counts by
    the spread of the values."""
    spread = max(1.0, float(wanted.std())) if wanted.size else 1.0
    compared = agreement(found.astype(wanted.dtype), wanted, rtol, ATOL * spread)
    if compared.within:
        return ""
    return compared.why or f"differs by {compared.absolute:.2g}"


def run_agreeing(
    calls: Mapping[str, Sequence[Call]], reference: str, flops: int, settings: Settings, seed: str,
    limits: Limits | None, rtol: float = RTOL, exact: Array | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Check and time the calls of each engine; the result as JSON. An engine whose first output
    differs from the reference's, and from `exact` if that is given, is refused."""
    wanted = np.array(calls[reference][0]())
    engines: dict[str, dict[str, Any]] = {}
    right: dict[str, Sequence[Call]] = {}
    for name, own in calls.items():
        found = np.asarray(own[0]())
        why = difference(found, wanted, rtol)
        if why and (exact is None or difference(found, exact, rtol)):
            engines[name] = {"refused": why}
        else:
            right[name] = own
    if limits is not None:
        right[MULTIPLY_ADDS] = limits.multiply_adds(flops)
    timings = measure(right, settings, random.Random(seed))
    peak = timings.pop(MULTIPLY_ADDS, None)
    for name, timing in timings.items():
        engines[name] = timing.to_json(timings.get(SUBJECT))
        if peak is not None and name == SUBJECT:
            engines[name] |= fractions("peak", timing, peak)
    result: dict[str, Any] = {"flops": flops}
    if peak is not None:
        result["limits"] = {MULTIPLY_ADDS: peak.to_json()}
    return result | compared(engines, SUBJECT)
