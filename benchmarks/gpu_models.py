"""Whole models on a GPU over dynamic shapes, against the same in PyTorch, eager and compiled, each
with and without CUDA graphs.

Times are what the caller waits for, launches included: shapes change from call to call in use, and
then nothing hides them. With a CUDA graph a shape is captured first, and its replays are timed.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_bench import SUBJECT, Bench, Section, finite, multiplying
from benchmarks.gpu_timing import Settings
from benchmarks.minilm import EMBEDDING, VOCABULARY, model_path, torch_encoder
from ftuner.core.dim import symbol
from ftuner.core.dtype import FLOAT32
from ftuner.graph.builder import Builder
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.gpu.model import GpuModel

SETTINGS = Settings(ahead=False, rounds=7)
FORWARD_SIZES = (4096, 14336)
"""Width and inner width of Llama 3 8B."""
FORWARD_ROWS = (1, 5, 17, 48, 77, 128, 197, 333, 512, 1024, 2048)
ENCODER_SHAPES = ((1, 5), (1, 16), (1, 31), (1, 77), (1, 128), (1, 197), (1, 512), (8, 13),
                  (8, 77), (8, 128), (32, 64), (32, 197))  # fmt: skip
COPIES = 4
GRAPH = ", CUDA graph"
COMPILED = "torch.compile"
EPSILON = 1e-5

Feeds = Mapping[str, torch.Tensor]
Run = Callable[[Feeds], torch.Tensor]


@dataclass(frozen=True)
class Subject:
    """A model in all engines."""

    name: str
    runs: Mapping[str, Run]
    shapes: tuple[tuple[int, ...], ...]
    feeds: Callable[[tuple[int, ...]], Feeds]
    tolerance: float
    """Of outputs against eager PyTorch's, over the largest."""


def _forward(bench: Bench) -> Subject:
    """The feed-forward block of a Llama layer, float32 multiplied as tf32: norm, gate and up, down,
    residual."""
    width, inner = (16, 24) if bench.dry else FORWARD_SIZES
    device, rows = bench.device, symbol("S")
    generator = torch.Generator(device).manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=generator) / shape[0] ** 0.5

    scale = 1.0 + weight(width)
    gate, up, down = weight(width, inner), weight(width, inner), weight(inner, width)
    builder = Builder()
    x = builder.input("x", FLOAT32, (rows, width))
    constants = [builder.constant(w.cpu().numpy()) for w in (scale, gate, up, down)]
    normed = builder.add("norm", x, constants[0], axis=1, epsilon=EPSILON, rms=True)
    opened = builder.add("silu", builder.add("matmul", normed, constants[1]))
    y = builder.add("multiply", opened, builder.add("matmul", normed, constants[2]))
    y = builder.add("add", builder.add("matmul", y, constants[3]), x)
    model = GpuModel(optimised(builder.graph([x], [("y", y)])), bench.session)
    stored = [w.mT.contiguous() for w in (gate, up, down)]
    functional = torch.nn.functional

    def eager(x: torch.Tensor) -> torch.Tensor:
        normed = functional.rms_norm(x, (width,), scale, EPSILON)
        hidden = functional.silu(functional.linear(normed, stored[0]))
        return functional.linear(hidden * functional.linear(normed, stored[1]), stored[2]) + x

    compiled = torch.compile(eager, dynamic=True, backend="eager" if bench.dry else "inductor")

    def feeds(shape: tuple[int, ...]) -> Feeds:
        return {"x": torch.randn((*shape, width), device=device)}

    return Subject(
        "llama-8b feed-forward",
        {
            SUBJECT: lambda f: model.run(f)[0],
            "torch": lambda f: eager(f["x"]),
            COMPILED: lambda f: compiled(f["x"]),
        },
        tuple((n,) for n in ((3, 5) if bench.dry else FORWARD_ROWS)),
        feeds,
        tolerance=2e-2,
    )


def _encoder(bench: Bench) -> Subject:
    """MiniLM, from its ONNX file; float32 multiplied as tf32."""
    from ftuner.frontends.onnx import import_model

    device = bench.device
    model = GpuModel(optimised(import_model(model_path()).graph), bench.session)
    at = [output.name for output in model.outputs].index(EMBEDDING)
    eager = torch_encoder(model_path()).to(device)
    compiled = torch.compile(eager, dynamic=True, backend="eager" if bench.dry else "inductor")
    numbers = np.random.default_rng(0)

    def feeds(shape: tuple[int, ...]) -> Feeds:
        mask = torch.ones(shape, dtype=torch.int64)
        mask[1::2, (shape[1] + 1) // 2 :] = 0
        tokens = torch.from_numpy(numbers.integers(0, VOCABULARY, shape))
        return {"input_ids": tokens.to(device), "attention_mask": mask.to(device)}

    return Subject(
        "MiniLM",
        {
            SUBJECT: lambda f: model.run(f)[at],
            "torch": lambda f: eager(*f.values()),
            COMPILED: lambda f: compiled(*f.values()),
        },
        ((1, 3),) if bench.dry else ENCODER_SHAPES,
        feeds,
        tolerance=2e-2,
    )


def captured(run: Run, feeds: Feeds, device: torch.device) -> Callable[[], torch.Tensor]:
    """A call that replays what a run launches."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        # Twice: what is made on first use is not made while capturing.
        run(feeds)
        run(feeds)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = run(feeds)

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def _difference(y: torch.Tensor, expected: torch.Tensor) -> float:
    scale = expected.double().abs().max().clamp_min(1e-30)
    return finite((y.double() - expected.double()).abs().max() / scale)


def run_shape(bench: Bench, subject: Subject, shape: tuple[int, ...]) -> dict[str, Any]:
    """Check and time one shape; the result as JSON."""
    feeds = [subject.feeds(shape) for _ in range(COPIES)]
    began = time.perf_counter()
    subject.runs[SUBJECT](feeds[0])
    bench.synchronize()
    first_s = time.perf_counter() - began
    expected = subject.runs["torch"](feeds[0])
    calls: dict[str, list[Callable[[], object]]] = {}
    refused: dict[str, dict[str, str]] = {}
    for name, run in subject.runs.items():
        calls[name] = [lambda run=run, f=f: run(f) for f in feeds]
        if not bench.dry and name != COMPILED:
            try:
                calls[name + GRAPH] = [captured(run, f, bench.device) for f in feeds]
            except Exception as error:
                torch.cuda.synchronize(bench.device)
                refused[name + GRAPH] = {"refused": f"{type(error).__name__}: {error}"}
    for name, own in list(calls.items()):
        difference = _difference(own[0](), expected)  # type: ignore[arg-type]
        if not difference <= subject.tolerance:
            refused[name] = {"refused": f"differs by {difference:.2g}"}
            del calls[name]
    result = bench.compare(calls, SETTINGS)
    result["engines"] |= refused
    ours = result["engines"].get(SUBJECT + GRAPH, {})
    theirs = result["engines"].get("torch" + GRAPH, {})
    own = result["engines"].get(SUBJECT, {})
    plain = [result["engines"].get(name, {}).get("median_s") for name in ("torch", COMPILED)]
    found = [seconds for seconds in plain if seconds]
    result["ratio_plain"] = min(found) / own["median_s"] if found and "median_s" in own else None
    both = "median_s" in ours and "median_s" in theirs
    result["ratio_graph"] = theirs["median_s"] / ours["median_s"] if both else None
    return {"model": subject.name, "shape": list(shape), "first_s": first_s, **result}


def models(bench: Bench, section: Section) -> None:
    """All models, of which one that fails does not stop the others."""
    makers: dict[str, Callable[[Bench], Subject]] = {"feed-forward": _forward}
    if importlib.util.find_spec("onnx") is None:
        section.document["skipped"] = "MiniLM: the package onnx is not installed"
    elif not bench.dry:
        makers["MiniLM"] = _encoder
    section.document["left"] = 0
    failed = []
    for name, make in makers.items():
        try:
            with multiplying("tf32"), torch.inference_mode():
                _run_model(bench, section, make)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise RuntimeError("; ".join(failed))


def _run_model(bench: Bench, section: Section, make: Callable[[Bench], Subject]) -> None:
    began = time.perf_counter()
    subject = make(bench)
    bench.synchronize()
    section.document.setdefault("load_s", {})[subject.name] = time.perf_counter() - began
    shapes = list(subject.shapes)
    # In no order: a shape comes after others that are longer and shorter.
    random.Random(0).shuffle(shapes)
    for shape in shapes:
        label = f"{subject.name} {'x'.join(map(str, shape))}"
        if section.known(label):
            continue
        if bench.left_s <= 0:
            section.document["left"] += 1
            continue
        section.add(label, **run_shape(bench, subject, shape))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    section.document.setdefault("compiled_graphs", {})[subject.name] = graphs
