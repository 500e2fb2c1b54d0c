"""What the first call of a resolution costs beside the tenth: see `benchmarks.first_calls`.

`python -m benchmarks.vision.first_pictures` is one of the processes.
"""

import importlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.first_calls import FirstCall, seconds_of_calls
from benchmarks.run import command_of, result_apart
from benchmarks.vision.zoo import NETWORKS, Picture

TRIES = 3
"""Processes."""
CALLS = 10


def here(
    path: Path, pictures: Sequence[Picture], threads: int, seed: int
) -> dict[str, list[float]]:
    """Seconds of each of the calls, by the picture's label, in this process."""
    model = importlib.import_module("ftuner").load(path, threads=threads)
    rng = np.random.default_rng(seed)
    # Memory for the largest picture is there before pictures come that are new: its batch is not
    # among those that are measured.
    largest = max(pictures, key=lambda p: p.batch * p.height * p.width)
    model.run(Picture(largest.batch + 1, largest.height, largest.width).feeds(rng))
    least = min(pictures, key=lambda p: p.batch * p.height * p.width)
    known = Picture(least.batch + 1, least.height, least.width).feeds(rng)
    order = list(pictures)
    random.Random(seed).shuffle(order)
    return {
        picture.label: seconds_of_calls(
            model.run, [picture.feeds(rng) for _ in range(CALLS)], known
        )
        for picture in order
    }


def first_pictures(path: Path, network: str, threads: int) -> Mapping[str, FirstCall]:
    """Medians over several processes of a network in a file, by the picture's label."""
    module = "benchmarks.vision.first_pictures"
    commands = (
        command_of(module, path, network, threads=threads, seed=seed) for seed in range(TRIES)
    )
    return FirstCall.medians([result_apart(command, threads) for command in commands])


def main(
    path: Path,
    network: str,
    threads: Annotated[int, typer.Option(help="Threads of a run.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the pixels and of the order.")] = 0,
) -> None:
    """Print the seconds of each call, by picture, as JSON."""
    print(json.dumps(here(path, NETWORKS[network].pictures, threads, seed)))


if __name__ == "__main__":
    typer.run(main)
