"""Loads models for the commands, with a progress bar on stderr, and times them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ftuner.cli.output import shown_progress

if TYPE_CHECKING:
    from ftuner.models import Model
    from ftuner.runtime.model import TensorSpec

LEAST_SAMPLES = 5
MOST_SAMPLES = 101
SAMPLING_S = 0.25
"""Duration of sampling, within the limits above."""


def read_specs(path: Path) -> list[TensorSpec]:
    """The inputs of a model file."""
    from ftuner.runtime.saved.container import is_saved

    if is_saved(path):
        from ftuner.inference import load

        return load(path).inputs
    from ftuner.cli.arrays import specs_of
    from ftuner.frontends.onnx.importer import read_model

    return specs_of(read_model(path))


def loaded(
    path: Path, threads: int | None, device: str = "cpu", dtype: str | None = None,
    append_in_place: bool = False, precision: str = "float32",
) -> tuple[Model, float]:  # fmt: skip
    """A model compiled for this machine, and the seconds that took."""
    from ftuner.inference import load

    began = time.perf_counter()
    with shown_progress("compile") as show:
        model = load(
            path, threads=threads, progress=show, device=device, dtype=dtype,
            append_in_place=append_in_place, precision=precision,
        )  # fmt: skip
    return model, time.perf_counter() - began


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sampled(call: Callable[[], object]) -> list[float]:
    """Seconds of single calls, after one that is not timed."""
    call()
    samples: list[float] = []
    while len(samples) < LEAST_SAMPLES or (
        sum(samples) < SAMPLING_S and len(samples) < MOST_SAMPLES
    ):
        samples.append(seconds_of(call))
    return samples
