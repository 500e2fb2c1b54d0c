"""Whole models on a GPU over dynamic shapes, against the same in PyTorch: eager, compiled for any
shape, and padded to buckets; each with and without CUDA graphs.

Times are what the caller waits for, launches included: shapes change from call to call in use, and
then nothing hides them. Like is compared with like:

- Launches: of ours a model that records nothing, against PyTorch without CUDA graphs.
- CUDA graphs: of ours a model as users get it, which by itself records a shape at its third run
  where that pays, against PyTorch in a CUDA graph captured here for the shape or its bucket. Both
  copy the inputs to where the graph reads them. Ours alone also copies the outputs, which are the
  caller's; those of PyTorch's graph are overwritten by its next replay.

Where a model has indices, ours reads after each run whether one was out of range, in both ways; so
it cannot be captured from outside.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_bench import LAUNCHES, SUBJECT, Attempt, Bench, finite, multiplying, shuffled
from benchmarks.gpu_padding import PADDED, padded, padded_lengths, trimmed
from benchmarks.gpu_subjects import COMPILED, EAGER, Feeds, Run, Shape, Subject, Wanted, wanted
from benchmarks.gpu_timing import Call, Settings

SETTINGS = Settings(ahead=False, rounds=7)
COPIES = 4
"""Inputs that calls rotate through."""
FIRST_CALLS, DRY_FIRST_CALLS = 10, 3
GRAPH = ", CUDA graph"
STATIC = "torch.compile for a bucket"
"""Of a static shape, padded to powers of two."""
STATIC_BUCKETS = f"{PADDED}powers of two"
STATIC_SECONDS = 30.0
"""Time that one more bucket needs, before the first has told."""
MOST_COMPILED = 64
"""Shapes that PyTorch may compile one module for; by default eight."""


def graphs_compiled() -> int:
    """Graphs that PyTorch's compiler was given in this process."""
    found: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return found


def compiled_by(bench: Bench) -> dict[str, int]:
    """What was compiled so far, by engine: our kernels, its graphs."""
    return {SUBJECT: bench.kernels, COMPILED: graphs_compiled()}


@contextmanager
def not_waiting() -> Iterator[None]:
    """Raise where anything waits for the device. A capture that fails for that would leave the
    allocator of PyTorch before 2.12 in a state in which the next capture ends the process
    (pytorch#180395)."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def captured(run: Run, feeds: Feeds, device: torch.device) -> Run:
    """Replays of what a run launches, on inputs that are copied to where it read them: all of them,
    or what comes before the padding."""
    static = {name: x.clone() for name, x in feeds.items()}
    before = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(before)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(stream):
            # What is made on first use is not made while capturing.
            run(static)
            with not_waiting():
                run(static)
        with torch.cuda.graph(graph, stream=stream):
            out = run(static)
    finally:
        # A capture that fails leaves its stream the current one.
        torch.cuda.set_stream(before)
    torch.cuda.synchronize(device)

    def replay(given: Feeds) -> torch.Tensor:
        for name, x in given.items():
            static[name][tuple(map(slice, x.shape))].copy_(x)
        graph.replay()
        return out

    return replay


class Calls:
    """Calls of all engines on the inputs of one shape, each as it takes them; engines that fail or
    err say why."""

    def __init__(self, bench: Bench, subject: Subject, shape: Shape) -> None:
        self._bench, self._subject, self._length = bench, subject, shape[1]
        self.feeds = [subject.feeds(shape) for _ in range(COPIES)]
        self.given, self.padded = (
            [subject.given(feeds, is_padded) for feeds in self.feeds] for is_padded in (False, True)
        )
        self.calls: dict[str, list[Call]] = {}
        self.refused: dict[str, dict[str, str]] = {}
        self._expected: torch.Tensor | None = None

    def of(self, name: str) -> list[Feeds]:
        """The inputs of an engine that runs without padding."""
        return self.feeds if name in (SUBJECT, LAUNCHES) else self.given

    def inputs(self, length: int) -> list[Feeds]:
        """Those of PyTorch's modules, to be padded to a length."""
        return self.given if length == self._length else self.padded

    def add(self, name: str, prepare: Callable[[], Run], inputs: list[Feeds] | None = None) -> None:
        """An engine, if the run that `prepare` makes gives what eager PyTorch does. `inputs`: if
        not those `of` the engine."""
        own = self.of(name) if inputs is None else inputs
        try:
            self._bench.enter(name)
            run = prepare()
            # Not the inputs that a graph was captured on: it must read those that it is given.
            y = run(own[-1])
        except Exception as error:
            # One that the device does not get over is raised again here, and ends the section.
            self._bench.synchronize()
            if name in (SUBJECT, LAUNCHES):
                traceback.print_exc()
            self.refused[name] = {"refused": f"{type(error).__name__}: {error}"}
            return
        if self._expected is None:
            self._expected = self._subject.runs[EAGER](self.given[-1])
        difference = _difference(y, self._expected)
        if not difference <= self._subject.tolerance:
            self.refused[name] = {"refused": f"differs by {difference:.2g}"}
            return
        self.calls[name] = [lambda run=run, f=f: run(f) for f in own]

    def add_all(self) -> dict[str, Any]:
        """All engines of the subject, PyTorch's also captured; returns what `first_calls` says of
        each."""
        first: dict[str, Any] = {}
        for name, run in self._subject.runs.items():

            def started(name: str = name, run: Run = run) -> Run:
                if name != LAUNCHES:
                    first[name] = first_calls(self._bench, name, run, self.of(name))
                return run

            self.add(name, started)
            if name in self.calls and name not in (SUBJECT, LAUNCHES):
                self.add_captured(name, run)
        return first

    def add_captured(self, name: str, run: Run) -> None:
        if not self._bench.dry:
            self.add(name + GRAPH, lambda: captured(run, self.given[0], self._bench.device))

    def add_padded(self, name: str, run: Run, length: int, plain: bool = True) -> None:
        """An engine on padded inputs, its outputs cut to the length that was asked for."""
        own, device = self._length, self._bench.device
        inputs = self.inputs(length)
        if plain:
            self.add(name, lambda: lambda feeds: trimmed(run(padded(feeds, length)), own), inputs)

        def replayed() -> Run:
            whole = captured(run, padded(inputs[0], length), device)
            return lambda feeds: trimmed(whole(feeds), own)

        if not self._bench.dry:
            self.add(name + GRAPH, replayed, inputs)

    def timed(self) -> dict[str, Any]:
        self._bench.enter()
        settings = SETTINGS
        if self._bench.dry:
            settings = replace(self._bench.settings, ahead=False)
        result = self._bench.compare(self.calls, settings)
        return {**result, "engines": {**result["engines"], **self.refused}}


def _difference(y: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, over the largest of what was expected."""
    scale = expected.double().abs().max().clamp_min(1e-30)
    return finite((y.double() - expected.double()).abs().max() / scale)


def first_calls(bench: Bench, name: str, run: Run, feeds: list[Feeds]) -> dict[str, Any]:
    """Seconds of the first calls of a shape, the first three and the last of them, and what they
    had compiled. Ours binds the shape in the first and records it in the third."""
    before = compiled_by(bench).get(name, 0)
    seconds = []
    for number in range(DRY_FIRST_CALLS if bench.dry else FIRST_CALLS):
        bench.synchronize()
        began = time.perf_counter()
        run(feeds[number % len(feeds)])
        bench.synchronize()
        seconds.append(time.perf_counter() - began)
    compiled = compiled_by(bench).get(name, 0) - before
    return {
        "first_s": seconds[0], "second_s": seconds[1], "third_s": seconds[2],
        "last_s": seconds[-1], "compiled": compiled,
    }  # fmt: skip


def run_shape(bench: Bench, subject: Subject, shape: Shape, is_padded: bool) -> dict[str, Any]:
    """Check and time one shape; the result as JSON. First calls are those of engines for which the
    shape is new: where nothing is recorded, kernels and plans are already there."""
    calls = Calls(bench, subject, shape)
    first = calls.add_all()
    lengths = padded_lengths(shape[1], subject.positions) if is_padded else {}
    for name, length in lengths.items():
        calls.add_padded(name, subject.runs[EAGER], length)
    return {"first_calls": first, **calls.timed()}


class Made:
    """A model, made when it is first asked for; if that fails, it fails each time."""

    def __init__(self, bench: Bench, model: Wanted) -> None:
        self._bench, self._model = bench, model
        self._subject: Subject | Exception | None = None
        self.load_s = 0.0

    def __call__(self) -> Subject:
        if self._subject is None:
            began = time.perf_counter()
            try:
                self._subject = self._model.make(self._bench)
                self._bench.synchronize()
            except Exception as error:
                self._subject = error
            self.load_s = time.perf_counter() - began
        if isinstance(self._subject, Exception):
            raise self._subject
        return self._subject


def unpadded(bench: Bench, models: Sequence[Wanted]) -> Iterator[Attempt]:
    """Models at all their shapes, none of them padded, each in an equal share of the time."""
    for model in bench.shared(models):
        yield from _shapes(bench, model, Made(bench, model), is_padded=False)


def _shapes(bench: Bench, model: Wanted, made: Made, is_padded: bool) -> Iterator[Attempt]:
    """In no order: a shape comes after others that are longer and shorter."""
    for number, shape in enumerate(shuffled(model.shapes)):

        def work(number: int = number, shape: Shape = shape) -> dict[str, Any]:
            with multiplying("tf32"), torch.inference_mode():
                subject = made()
                result = run_shape(bench, subject, shape, is_padded)
            found = {"model": model.name, "dtype": subject.dtype, "shape": shape}
            return {**found, "number": number, "load_s": made.load_s, **result}

        yield Attempt(f"{model.name} {'x'.join(map(str, shape))}", work)


def run_bucket(bench: Bench, subject: Subject, shape: Shape) -> dict[str, Any]:
    """Time one shape padded to its bucket, which is compiled and captured for that alone."""
    length = padded_lengths(shape[1], subject.positions).get(STATIC_BUCKETS, shape[1])
    calls = Calls(bench, subject, shape)
    with torch._dynamo.config.patch(recompile_limit=MOST_COMPILED):
        began = time.perf_counter()
        subject.static(padded(calls.inputs(length)[0], length))
        bench.synchronize()
        compile_s = time.perf_counter() - began
        for name in (SUBJECT, LAUNCHES):
            calls.add(name, lambda name=name: subject.runs[name])
        calls.add_padded(STATIC, subject.static, length, plain=bench.dry)
        result = calls.timed()
    return {"compile_s": compile_s, "bucket": length, **result}


def models(bench: Bench) -> Iterator[Attempt]:
    """All models at all shapes, and then buckets that are compiled for, while there is time."""
    every = [(model, Made(bench, model)) for model in wanted(bench.dry)]
    for model, made in bench.shared(every):
        yield from _shapes(bench, model, made, is_padded=True)
    for model, made in bench.shared(every):
        yield from _buckets(bench, model, made)


def _buckets(bench: Bench, model: Wanted, made: Made) -> Iterator[Attempt]:
    """Those that there is no time for are not counted as left out."""
    longest_s = 0.0
    for shape in shuffled(model.shapes)[: 1 if bench.dry else None]:

        def work(shape: Shape = shape) -> dict[str, Any]:
            nonlocal longest_s
            with multiplying("tf32"), torch.inference_mode():
                subject = made()
                result = run_bucket(bench, subject, shape)
            # Another shape's bucket may be compiled already.
            longest_s = max(longest_s, result["compile_s"])
            return {"model": model.name, "dtype": subject.dtype, "shape": shape, **result}

        needs_s = 0.0 if bench.dry else 2.0 * longest_s or STATIC_SECONDS
        label = f"{model.name} {'x'.join(map(str, shape))}, bucket"
        yield Attempt(label, work, needs_s, is_extra=True)
