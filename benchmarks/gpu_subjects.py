"""The models that are measured on a GPU, each loaded from its ONNX file as a user would, and beside
it the same in PyTorch.

Each is given what its user would give it, made outside of what is timed: PyTorch's modules hidden
states of their own element type, ours float32 as its file says, whatever it is held in; and token
ids come with a mask where something is padded, which ours always takes, as its file says.
"""

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import minilm
from benchmarks.gpu_bench import LAUNCHES, SUBJECT, TORCH_TYPES, Bench
from benchmarks.onnx_models import (
    BERT_BASE,
    LLAMA_BLOCK,
    MINILM,
    TINY_DECODER,
    TINY_ENCODER,
    Decoder,
    Encoder,
    write_decoder,
    write_encoder,
)
from benchmarks.torch_models import made, weights_of
from ftuner import inference
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.model import Model

Shape = tuple[int, int]
"""Batch and length."""
Feeds = Mapping[str, torch.Tensor]
Run = Callable[[Feeds], torch.Tensor]

EAGER, COMPILED = "torch", "torch.compile"
TF32, BFLOAT16 = "tf32", "bfloat16"
TOKENS = "input_ids"
TOLERANCES = {TF32: 2e-2, BFLOAT16: 6e-2}
"""Of outputs against those of PyTorch's modules, over the largest: both round between layers."""
DRY_TOLERANCE = 1e-3
"""The interpreter multiplies float32 exactly."""
BERT_SHAPES = ((1, 5), (1, 16), (1, 31), (1, 77), (1, 128), (1, 197), (1, 384), (1, 511), (8, 13),
               (8, 77), (8, 128), (16, 197), (32, 64))  # fmt: skip
LLAMA_SHAPES = ((1, 5), (1, 13), (1, 31), (1, 77), (1, 128), (1, 197), (1, 333), (1, 512), (1, 777),
                (1, 1531), (1, 2048), (8, 77))  # fmt: skip
MINILM_SHAPES = ((1, 5), (1, 16), (1, 31), (1, 77), (1, 128), (1, 197), (1, 512), (8, 13), (8, 77),
                 (32, 64), (32, 197))  # fmt: skip
DRY_SHAPES = ((1, 3), (2, 7))


@dataclass(frozen=True)
class Subject:
    """A model in all engines."""

    dtype: str
    """What is multiplied: `tf32` of a model in float32, or what the model is loaded in."""
    runs: Mapping[str, Run]
    """By engine: ours on `feeds`, all others on what `given` makes of them."""
    given: Callable[[Feeds, bool], Feeds]
    """What PyTorch's modules take; and whether they are padded to a bucket."""
    static: Run
    """Compiled by PyTorch anew for each shape."""
    positions: int
    """The longest length."""
    feeds: Callable[[Shape], Feeds]
    tolerance: float


def given(feeds: Feeds, dtype: str, is_padded: bool) -> Feeds:
    """What a module of PyTorch takes of the inputs of a model, of which it holds the weights in an
    element type."""
    if TOKENS not in feeds:
        return {name: x.to(TORCH_TYPES[dtype]) for name, x in feeds.items()}
    # Shorter sentences are padded in a batch; one alone is as long as it is.
    if is_padded or len(feeds[TOKENS]) > 1:
        return feeds
    return {TOKENS: feeds[TOKENS]}


@dataclass(frozen=True)
class Loaded:
    """One model file twice, with kernels in common: what is recorded of a model stays so, and each
    has weights of its own."""

    recording: Model
    """As `ftuner.load` gives it: shapes that come again are recorded as CUDA graphs."""
    launching: Model
    """Of which nothing is recorded."""


def loaded(bench: Bench, path: Path, dtype: str) -> Loaded:
    """A model file on the bench's device."""
    found = Loaded(_model(bench, path, dtype), _model(bench, path, dtype))
    found.launching.record(False)
    return found


def _model(bench: Bench, path: Path, dtype: str) -> Model:
    if bench.dry:
        return Model(optimised(import_model(path).graph), bench.backend)
    options: dict[str, Any] = {} if dtype == TF32 else {"dtype": dtype}
    found: Any = inference.load(path, device=str(bench.device), **options)
    assert isinstance(found, Model)
    return found


def subject_of(
    bench: Bench, dtype: str, model: Loaded, module: torch.nn.Module, positions: int,
    output: int = 0, vocabulary: int = 0,
) -> Subject:  # fmt: skip
    """`vocabulary`: of token ids, which come with a mask; 0 for a model of hidden states."""
    backend = "eager" if bench.dry else "inductor"
    dynamic = torch.compile(module, dynamic=True, backend=backend)
    static = torch.compile(module, dynamic=False, backend=backend)
    names = [spec.name for spec in model.recording.inputs]
    numbers = np.random.default_rng(0)

    def tokens(shape: Shape) -> Feeds:
        # Every second sentence of a batch is half as long.
        mask = torch.ones(shape, dtype=torch.int64)
        mask[1::2, (shape[1] + 1) // 2 :] = 0
        ids = torch.from_numpy(numbers.integers(0, vocabulary, shape))
        return {TOKENS: ids.to(bench.device), "attention_mask": mask.to(bench.device)}

    def states(shape: Shape) -> Feeds:
        (spec,) = model.recording.inputs
        like = TORCH_TYPES[spec.dtype]
        return {names[0]: torch.randn((*shape, int(spec.shape[-1])), device=bench.device).to(like)}

    def ours(model: Model) -> Run:
        return lambda feeds: model.run({n: feeds[n] for n in names})[output]

    def of(function: Callable[..., torch.Tensor]) -> Run:
        return lambda feeds: function(*feeds.values())

    return Subject(
        dtype,
        {
            SUBJECT: ours(model.recording),
            LAUNCHES: ours(model.launching),
            EAGER: of(module),
            COMPILED: of(dynamic),
        },
        lambda feeds, is_padded: given(feeds, dtype, is_padded),
        of(static),
        positions,
        tokens if vocabulary else states,
        DRY_TOLERANCE if bench.dry else TOLERANCES[dtype],
    )


def _written(bench: Bench, dtype: str, shape: Encoder | Decoder) -> Subject:
    """A model of random weights."""
    module = made(shape, bench.device)
    with tempfile.TemporaryDirectory(prefix="ftuner-model-") as folder:
        if isinstance(shape, Encoder):
            path = write_encoder(Path(folder), shape, weights_of(module))
        else:
            path = write_decoder(Path(folder), shape, weights_of(module))
        model = loaded(bench, path, dtype)
    vocabulary = shape.vocabulary if isinstance(shape, Encoder) else 0
    module = module.to(TORCH_TYPES[dtype])
    return subject_of(bench, dtype, model, module, shape.positions, vocabulary=vocabulary)


def _bert(bench: Bench) -> Subject:
    shape = replace(TINY_ENCODER, layers=1) if bench.dry else BERT_BASE
    return _written(bench, TF32 if bench.dry else BFLOAT16, shape)


def _llama(bench: Bench) -> Subject:
    shape = replace(TINY_DECODER, layers=1) if bench.dry else LLAMA_BLOCK
    return _written(bench, TF32 if bench.dry else BFLOAT16, shape)


def _minilm(bench: Bench) -> Subject:
    """The encoder of the package, in float32 as its file is; where that is not installed, one of
    the same widths."""
    try:
        path = minilm.model_path()
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
        return _written(bench, TF32, MINILM)
    model = loaded(bench, path, TF32)
    module = minilm.torch_encoder(path).to(bench.device)
    output = [spec.name for spec in model.recording.outputs].index(minilm.EMBEDDING)
    return subject_of(
        bench, TF32, model, module, MINILM.positions, output, minilm.VOCABULARY
    )  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """A model that is to be measured."""

    name: str
    make: Callable[[Bench], Subject]
    shapes: tuple[Shape, ...]


def wanted(dry: bool) -> list[Wanted]:
    """The models, the most telling first."""
    if dry:
        return [Wanted("a Llama", _llama, DRY_SHAPES), Wanted("a BERT", _bert, DRY_SHAPES[1:])]
    return [
        Wanted("Llama-8B block", _llama, LLAMA_SHAPES),
        Wanted("BERT-base", _bert, BERT_SHAPES),
        Wanted("MiniLM", _minilm, MINILM_SHAPES),
    ]
