"""Recurrent layers on a GPU over batches and lengths, against cuDNN by PyTorch's layers, each with
and without CUDA graphs; see `gpu_models`.

Ours is a model of one layer with a launch for each stage of each step. cuDNN knows the length when
it is called, too; nothing is compiled for it.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch

from benchmarks.gpu_bench import LAUNCHES, SUBJECT, TORCH_TYPES, Attempt, Bench
from benchmarks.gpu_models import unpadded
from benchmarks.gpu_subjects import (
    BFLOAT16,
    DRY_TOLERANCE,
    EAGER,
    TF32,
    TOLERANCES,
    Feeds,
    Shape,
    Subject,
    Wanted,
    given,
    loaded,
)
from benchmarks.recurrent import Layer, in_onnx_order, torch_module
from ftuner.runtime.model import Model

LAYERS = (
    Layer("LSTM", 512, 1024, 1), Layer("LSTM", 256, 256, 2), Layer("GRU", 512, 512, 1),
    Layer("LSTM", 128, 128, 1), Layer("GRU", 64, 64, 2), Layer("RNN", 512, 512, 1),
    Layer("RNN", 128, 256, 2),
)  # fmt: skip
"""Those of `workloads/operators.json`, and plain ones; the most telling first."""
HALVES = LAYERS[:3]
"""Those that are measured in bfloat16, too."""
SHAPES = ((1, 1), (1, 33), (1, 400), (1, 1000), (8, 7), (8, 100), (8, 400), (64, 33), (64, 200),
          (256, 100))  # fmt: skip
"""Batches and lengths."""
DRY_LAYERS = (Layer("LSTM", 6, 5, 2), Layer("GRU", 5, 8, 1), Layer("RNN", 4, 4, 1))
DRY_SHAPES = ((2, 3), (1, 4))
INPUT = "X"


def layer_subject(bench: Bench, layer: Layer, dtype: str) -> Subject:
    """A layer of random weights in all engines."""
    parameters = layer.parameters(np.random.default_rng(0))
    with tempfile.TemporaryDirectory(prefix="ftuner-layer-") as folder:
        path = Path(folder) / "layer.onnx"
        onnx.save(layer.model(parameters), path)
        ours = loaded(bench, path, dtype)
    module = torch_module(layer, parameters).eval().to(bench.device, TORCH_TYPES[dtype])
    # Moved weights are apart in memory, which cuDNN would copy together in each call.
    module.flatten_parameters()

    def eager(feeds: Feeds) -> torch.Tensor:
        y, _ = module(feeds[INPUT])
        return in_onnx_order(layer, y)

    def sequences(shape: Shape) -> Feeds:
        batch, length = shape
        return {INPUT: torch.randn((length, batch, layer.width), device=bench.device)}

    def run(model: Model, feeds: Feeds) -> torch.Tensor:
        (y,) = model.run(feeds)
        assert isinstance(y, torch.Tensor)
        return y

    return Subject(
        dtype,
        {SUBJECT: partial(run, ours.recording), LAUNCHES: partial(run, ours.launching),
         EAGER: eager},
        lambda feeds, is_padded: given(feeds, dtype, is_padded),
        eager,
        max(length for _, length in SHAPES),
        sequences,
        DRY_TOLERANCE if bench.dry else TOLERANCES[dtype],
    )  # fmt: skip


def recurrent(bench: Bench) -> Iterator[Attempt]:
    """All layers at all batches and lengths."""
    if bench.dry:
        layers, shapes = [(layer, TF32) for layer in DRY_LAYERS], DRY_SHAPES
    else:
        layers = [(layer, TF32) for layer in LAYERS] + [(layer, BFLOAT16) for layer in HALVES]
        shapes = SHAPES
    models = [
        Wanted(
            f"{layer.label}{', bfloat16' if dtype == BFLOAT16 else ''}",
            partial(layer_subject, layer=layer, dtype=dtype), shapes,
        )
        for layer, dtype in layers
    ]  # fmt: skip
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield from unpadded(bench, models)
