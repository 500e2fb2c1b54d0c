"""Vision networks on a GPU over pictures of several sizes, against the same in PyTorch, channels
last: eager and compiled for any shape, each with and without CUDA graphs; see `gpu_models`."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu_bench import Attempt, Bench
from benchmarks.gpu_models import unpadded
from benchmarks.gpu_subjects import (
    BFLOAT16,
    TF32,
    Feeds,
    Shape,
    Subject,
    Wanted,
    loaded,
    subject_of,
)
from benchmarks.torch_networks import OnnxNetwork
from benchmarks.vision.writing import PICTURE, PICTURE_CHANNELS, Size
from benchmarks.vision.zoo import NETWORKS

PICTURES = ((1, 224), (8, 224), (32, 224), (1, 160), (1, 320), (1, 96), (3, 192))
"""Batches, and sides of pictures."""
DENSE_PICTURES = ((1, 256), (1, 512), (4, 256), (1, 176))
PICTURES_OF: Mapping[str, tuple[Shape, ...]] = {
    "resnet50": PICTURES, "mobilenet-v2": PICTURES, "unet": DENSE_PICTURES,
}  # fmt: skip
DRY_PICTURES: Mapping[str, tuple[Shape, ...]] = {"mobilenet-v2": ((1, 16),)}
"""The interpreter takes seconds for each picture."""
DRY_SIZE = Size(0.1, 0.1)


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


def networks(bench: Bench) -> Iterator[Attempt]:
    """All networks at all sizes of pictures."""
    models = DRY_PICTURES if bench.dry else PICTURES_OF
    return unpadded(
        bench,
        [Wanted(name, partial(network, name=name), shapes) for name, shapes in models.items()],
    )
