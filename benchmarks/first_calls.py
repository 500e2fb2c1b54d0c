"""What the first call of a shape costs beside the tenth.

A process has one first call of each shape, and a neighbour may hold up just that: several processes
run all shapes, each in an order of its own. All ten calls have tokens that were not seen before.
`python -m benchmarks.first_calls` is one of these processes.
"""

from __future__ import annotations

import importlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from benchmarks.minilm import Feeds, Shape, inputs, model_path, shapes_in_disorder
from benchmarks.run import command_of, result_apart
from ftuner_tools.timing import settle

TRIES = 5
"""Processes."""
CALLS = 10
KNOWN = Shape(1, 3)
"""No shape that is measured."""
LARGEST = Shape(8, 256)


@dataclass(frozen=True)
class FirstCall:
    """Seconds of the first call of a shape and of the tenth: medians over the processes."""

    first_s: float
    tenth_s: float

    @classmethod
    def medians(cls, tries: Sequence[Mapping[str, Sequence[float]]]) -> Mapping[str, FirstCall]:
        """From the seconds of each call, by label, that several processes found."""
        return {
            label: cls(
                statistics.median(found[label][0] for found in tries),
                statistics.median(found[label][-1] for found in tries),
            )
            for label in tries[0]
        }


def seconds_of_calls(
    run: Callable[[Feeds], object], feeds: Sequence[Feeds], known: Feeds
) -> list[float]:
    """Seconds of a call on each of some feeds. What is asked is what a new shape costs: a known one
    goes before, on workers that are awake."""
    settle()
    for _ in range(5):
        run(known)
    seconds = []
    for feed in feeds:
        began = time.perf_counter()
        run(feed)
        seconds.append(time.perf_counter() - began)
    return seconds


def here(threads: int, seed: int) -> dict[str, list[float]]:
    """Seconds of each of the calls, by the shape's label, in this process."""
    model = importlib.import_module("ftuner").load(model_path(), threads=threads)
    rng = np.random.default_rng(seed)
    # Memory for the largest shape is there before shapes come that are new.
    model.run(inputs(LARGEST, rng))
    known = inputs(KNOWN, rng)
    found = {}
    for shape in shapes_in_disorder(seed):
        feeds = [inputs(shape, rng) for _ in range(CALLS)]
        found[shape.label] = seconds_of_calls(model.run, feeds, known)
    return found


def first_calls(threads: int) -> Mapping[str, FirstCall]:
    """What all processes found, by the shape's label."""
    commands = (
        command_of("benchmarks.first_calls", threads=threads, seed=seed) for seed in range(TRIES)
    )
    return FirstCall.medians([result_apart(command, threads) for command in commands])


def main(
    threads: Annotated[int, typer.Option(help="Threads of a run.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the tokens and of the order.")] = 0,
) -> None:
    """Print the seconds of each call, by shape, as JSON."""
    print(json.dumps(here(threads, seed)))


if __name__ == "__main__":
    typer.run(main)
