"""Vision networks on a GPU over pictures of several sizes, against the same in PyTorch, channels
last: eager and compiled for any shape, each with and without CUDA graphs; see `gpu_models`."""

from __future__ import annotations

import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_bench import Bench, Section, multiplying, shuffled
from benchmarks.gpu_models import Calls
from benchmarks.gpu_subjects import BFLOAT16, TF32, Feeds, Shape, Subject, loaded, subject_of
from benchmarks.torch_networks import OnnxNetwork
from benchmarks.vision.writing import PICTURE, PICTURE_CHANNELS, Size
from benchmarks.vision.zoo import NETWORKS

PICTURES = ((1, 224), (8, 224), (32, 224), (1, 160), (1, 320), (1, 96), (3, 192))
"""Batches, and sides of pictures."""
DENSE_PICTURES = ((1, 256), (1, 512), (4, 256), (1, 176))
DRY_SIZE = Size(0.1, 0.1)


@dataclass(frozen=True)
class Wanted:
    """A network that is to be measured."""

    name: str
    pictures: tuple[Shape, ...]


WANTED = (
    Wanted("resnet50", PICTURES), Wanted("mobilenet-v2", PICTURES), Wanted("unet", DENSE_PICTURES),
)  # fmt: skip
DRY_WANTED = (Wanted("mobilenet-v2", ((1, 16),)),)
"""The interpreter takes seconds for each picture."""


def network(bench: Bench, name: str) -> Subject:
    """A network of random weights in all engines: ours is given float32, as its file says."""
    dtype = TF32 if bench.dry else BFLOAT16
    model = NETWORKS[name].write(DRY_SIZE if bench.dry else Size())
    with tempfile.TemporaryDirectory(prefix="ftuner-network-") as folder:
        path = Path(folder) / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        ours = loaded(bench, path, dtype)
    module = OnnxNetwork(model).eval().to(bench.device)
    module = module.to(torch.float32 if dtype == TF32 else torch.bfloat16)
    found = subject_of(bench, dtype, ours, module, 0)

    def pictures(shape: Shape) -> Feeds:
        batch, side = shape
        x = torch.randn((batch, PICTURE_CHANNELS, side, side), device=bench.device)
        return {PICTURE: x}

    return replace(found, feeds=pictures)


def run_picture(bench: Bench, subject: Subject, shape: Shape) -> dict[str, Any]:
    """Check and time pictures of one size; the result as JSON."""
    calls = Calls(bench, subject, shape)
    first = calls.add_all()
    return {"first_calls": first, **calls.timed()}


def networks(bench: Bench, section: Section) -> None:
    """All networks, each within an equal share of the time; one that fails does not stop others."""
    section.document["left"] = 0
    failed = []
    whole = bench.deadline
    rest = DRY_WANTED if bench.dry else WANTED
    for number, wanted in enumerate(rest):
        now = time.monotonic()
        bench.deadline = now + (whole - now) / (len(rest) - number)
        try:
            with multiplying("tf32"), torch.inference_mode():
                _run(bench, section, wanted)
        except Exception as error:
            traceback.print_exc()
            failed.append(f"{wanted.name}: {type(error).__name__}: {error}")
        bench.deadline = whole
    if failed:
        raise RuntimeError("; ".join(failed))


def _run(bench: Bench, section: Section, wanted: Wanted) -> None:
    subject: Subject | None = None
    for number, shape in enumerate(shuffled(wanted.pictures)):
        label = f"{wanted.name} {shape[0]}x{shape[1]}"
        if section.known(label):
            continue
        if bench.left_s <= 0:
            section.document["left"] += 1
            continue
        subject = subject or network(bench, wanted.name)
        found = {"model": wanted.name, "dtype": subject.dtype, "shape": shape, "number": number}
        section.add(label, **found, **run_picture(bench, subject, shape))
