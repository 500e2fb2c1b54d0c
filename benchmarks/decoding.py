"""`python -m benchmarks.decoding`: a new token after texts of several lengths, against the peers.

Files are those of `benchmarks.zoo`. Each engine generates from random keys and values of so many
tokens: what a step returns are the inputs of the next one. Tokens are drawn beforehand, so that all
engines compute the same. Each architecture has a process of its own.
"""

import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import machine
from benchmarks.generating import GENERATORS, IN_PLACE, Generator
from benchmarks.measure import header
from benchmarks.report_decoding import KIND
from benchmarks.results import compare, ratio_of, save
from benchmarks.run import CrashedError, command_of, console, result_apart, results_here
from benchmarks.zoo.architecture import SIZES, Architecture, Array, Feeds, Size
from benchmarks.zoo.checking import difference
from benchmarks.zoo.exporting import Exported, exported
from benchmarks.zoo.table import ARCHITECTURES
from ftuner_tools.timing import SUBJECT, Settings, Timing, geomean, settle

DECODERS = ("llama-past", "gpt2-past", "qwen3-past", "mistral-past", "gemma3-past")
LENGTHS = (1, 10, 100, 500, 1000, 2000)
POSITIONS = 2560
"""Rows of a table of positions; the longest text is within it."""
WITH_TABLES = ("gpt2-past",)
"""Architectures that have such a table. The others compute positions."""
WARM_UP, TOKENS = 2, 12
"""Tokens of a generation that are not timed, because an engine copies what it is given or wakes
up its threads, and tokens after them."""
REFERENCE = "onnxruntime"


@dataclass(frozen=True)
class Text:
    """Keys and values of some tokens, and what is given for each token that follows."""

    pasts: Feeds
    steps: Sequence[Feeds]


def decoder(name: str) -> Architecture:
    """The row of an architecture, with positions for the longest text."""
    row = ARCHITECTURES[name]
    if name not in WITH_TABLES:
        return row
    return replace(
        row, fields=lambda size: row.fields(size) | {"max_position_embeddings": POSITIONS}
    )


def text_of(files: Exported, window: int | None, batch: int, length: int, seed: int = 0) -> Text:
    """A text of random keys and values. Of a sliding window, only the rows that it keeps."""
    rng = np.random.default_rng(seed)
    exported_with = files.feeds(0)
    longest = sys.maxsize if window is None else window - 1
    pasts = {
        name: rng.standard_normal(
            (batch, x.shape[1], min(length, longest), x.shape[3]), np.float32
        )
        for name, x in exported_with.items() if name.startswith("past_")
    }  # fmt: skip
    steps = []
    for number in range(WARM_UP + TOKENS):
        rows = min(length + number, longest) + 1
        steps.append({
            "input_ids": rng.integers(4, 1000, (batch, 1)),
            "attention_mask": np.ones((batch, rows), np.int64),
        })  # fmt: skip
    return Text(pasts, steps)


def generated(engine: Generator, text: Text) -> tuple[float, list[Array]]:
    """The median seconds of a token, and the logits of each."""
    logits, seconds = [], []
    engine.begin(text.pasts)
    for given in text.steps:
        began = time.perf_counter()
        found = engine.step(given)
        seconds.append(time.perf_counter() - began)
        logits.append(np.array(found))
    return statistics.median(seconds[WARM_UP:]), logits


def run_text(
    engines: Mapping[str, Generator], text: Text, settings: Settings, seed: str
) -> dict[str, Any]:
    """Check and time one text; the result as JSON. `first_s` is the time of a token at lengths that
    an engine meets for the first time; other times are of later generations."""
    found: dict[str, dict[str, Any]] = {}
    wanted: list[Array] = []
    right: dict[str, Generator] = {}
    first: dict[str, float] = {}
    for name in (REFERENCE, *(name for name in engines if name != REFERENCE)):
        settle()
        try:
            first[name], logits = generated(engines[name], text)
        except Exception as error:  # Engines have no common class of their errors.
            found[name] = {"refused": _first_line(error)}
            continue
        wanted = wanted or logits
        why = difference(logits, wanted)
        if why:
            found[name] = {"refused": why}
        else:
            right[name] = engines[name]
    for name, timing in _timed(right, text, settings, random.Random(seed)).items():
        found[name] = timing.to_json() | {"first_s": first[name]}
    ratios = compare({name: x for name, x in found.items() if name != SUBJECT}, IN_PLACE)
    peers = [first[name] for name in right if name not in (SUBJECT, IN_PLACE)]
    own = first.get(IN_PLACE)
    return {
        "engines": found, **ratios,
        "ratio_copied": ratio_of(found, SUBJECT, IN_PLACE),
        "ratio_first": min(peers) / own if own and peers else None,
    }  # fmt: skip


def _timed(
    engines: Mapping[str, Generator], text: Text, settings: Settings, rng: random.Random
) -> dict[str, Timing]:
    """The time of a token of each engine. In each round every engine generates the text once, in
    an order drawn anew."""
    samples: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    collecting = gc.isenabled()
    gc.disable()
    try:
        began, rounds = time.perf_counter(), 0
        budget_s = settings.budget_s_per_engine * len(engines)
        while rounds < settings.min_rounds or (
            rounds < settings.max_rounds and time.perf_counter() - began < budget_s
        ):
            rng.shuffle(order)
            for name in order:
                settle()
                samples[name].append(generated(engines[name], text)[0])
            rounds += 1
    finally:
        if collecting:
            gc.enable()
    return {
        name: Timing(min(own), statistics.median(own), rounds, TOKENS, tuple(own))
        for name, own in samples.items()
    }


def measured(
    row: Architecture, size: Size, threads: int, batches: Sequence[int], lengths: Sequence[int],
    settings: Settings,
) -> dict[str, Any]:  # fmt: skip
    """The times of an architecture's token at each batch and length, as JSON. An engine that does
    not take the file is left out, and the reason is kept."""
    files = exported(row, size)
    window = row.fields(size).get("sliding_window")
    engines, unavailable = {}, {}
    for name, prepare in GENERATORS.items():
        try:
            engines[name] = prepare(files.model, threads)
        except Exception as error:  # Engines have no common class of their errors.
            unavailable[name] = _first_line(error)
    cases = []
    for batch in batches:
        for length in lengths:
            text = text_of(files, window, batch, length)
            label = f"{row.name}, batch {batch}, past {length}"
            found = run_text(engines, text, settings, label)
            cases.append({"label": label, "batch": batch, "past": length} | found)
    return {"label": row.name, "window": window, "cases": cases, "unavailable": unavailable}


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _line(result: Mapping[str, Any]) -> str:
    """Ratios at each length, and what was refused."""
    parts = [f"{case['past']}: {case['ratio'] or 0:.2f}" for case in result["cases"]]
    ratios = [case["ratio"] for case in result["cases"] if case["ratio"]]
    refused = {
        f"{name}: {entry['refused']}"
        for case in result["cases"] for name, entry in case["engines"].items()
        if "refused" in entry
    }  # fmt: skip
    notes = [f"{name}: {why}" for name, why in result["unavailable"].items()] + sorted(refused)
    mean = geomean(ratios)
    return f"{result['label']:>14} mean {mean:.2f}; {', '.join(parts)} {'; '.join(notes)}"


def main(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "small",
    only: Annotated[str, typer.Option(help="Architectures, by name.")] = ",".join(DECODERS),
    threads: Annotated[str, typer.Option(help="Thread counts.")] = "1,2",
    batches: Annotated[str, typer.Option(help="Texts at once.")] = "1",
    lengths: Annotated[str, typer.Option(help="Tokens before the new one.")] = ",".join(
        map(str, LENGTHS)
    ),
    budget: Annotated[float, typer.Option(help="Seconds for each length and engine.")] = 0.3,
    results: Annotated[Path | None, typer.Option(help="Folder; by default the machine's.")] = None,
    worker: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure decoders, print and save the results as JSON."""
    names = only.split(",")
    unknown = {*names} - {name for name, row in ARCHITECTURES.items() if row.past}
    if unknown or size not in SIZES:
        raise typer.BadParameter(f"unknown {sorted(unknown) or size}")
    if worker:
        settings = Settings(budget_s_per_engine=budget)
        found = measured(decoder(worker), SIZES[size], int(threads), _numbers(batches),
                         _numbers(lengths), settings)  # fmt: skip
        print(json.dumps(found))
        return
    for count in _numbers(threads):
        path = (results or results_here()).resolve() / f"{KIND}-{size}-t{count}.json"
        document = header(KIND, size, count, machine.describe()) | {"results": []}
        for name in names:
            command = command_of(
                "benchmarks.decoding", worker=name, size=size, batches=batches, lengths=lengths,
                budget=budget, threads=count,
            )  # fmt: skip
            try:
                found = result_apart(command, count)
            except CrashedError as error:
                found = {"label": name, "cases": [], "unavailable": {"the process": str(error)}}
            console.print(_line(found), highlight=False, markup=False, soft_wrap=True)
            document["results"].append(found)
            save(document, path)


if __name__ == "__main__":
    typer.run(main)
