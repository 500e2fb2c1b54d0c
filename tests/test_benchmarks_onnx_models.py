"""The models that benchmarks write as ONNX files."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from benchmarks.onnx_models import (  # noqa: E402
    BERT_BASE,
    LLAMA_BLOCK,
    MODEL_FILE,
    TINY_DECODER,
    TINY_ENCODER,
    WEIGHTS_FILE,
    Decoder,
    Encoder,
    write_decoder,
    write_encoder,
)
from benchmarks.torch_models import made, weights_of  # noqa: E402

from ftuner.frontends.onnx.importer import import_model  # noqa: E402
from ftuner.graph.lowering import lower  # noqa: E402
from ftuner.graph.passes.pipeline import optimised  # noqa: E402
from ftuner.runtime.reference import run_reference  # noqa: E402

CPU = torch.device("cpu")
ENCODER_LAYER = ["matmul + add", "attention", "matmul + add + add", "norm", "matmul + add + gelu",
                 "matmul + add + add", "norm"]  # fmt: skip
DECODER_LAYER = ["norm", "matmul", "rotary", "rotary", "causal attention", "matmul + add", "norm",
                 "matmul", "silu + multiply", "matmul + add"]  # fmt: skip


def written(folder: Path, shape: Encoder | Decoder) -> tuple[Path, torch.nn.Module]:
    module = made(shape, CPU)
    write = write_encoder if isinstance(shape, Encoder) else write_decoder
    return write(folder / "new", shape, weights_of(module)), module


def feeds(shape: Encoder | Decoder, batch: int, length: int) -> list[np.ndarray]:
    rng = np.random.default_rng(length)
    if isinstance(shape, Decoder):
        return [rng.standard_normal((batch, length, shape.width)).astype(np.float32)]
    mask = np.ones((batch, length), np.int64)
    mask[1::2, (length + 1) // 2 :] = 0
    return [rng.integers(0, shape.vocabulary, (batch, length)), mask]


@pytest.mark.parametrize("shape", [TINY_ENCODER, TINY_DECODER])
def test_the_file_and_the_module_are_one_model(tmp_path, shape):
    path, module = written(tmp_path, shape)
    onnx.checker.check_model(str(path), full_check=True)
    graph = import_model(path).graph
    for batch, length in ((1, 1), (1, 3), (3, 8), (2, shape.positions)):
        given = feeds(shape, batch, length)
        (found,) = run_reference(graph, given)
        expected = module(*map(torch.from_numpy, given)).numpy()
        assert found.shape == (batch, length, shape.width)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [TINY_ENCODER, TINY_DECODER])
def test_all_of_it_is_recognised(tmp_path, shape):
    path, _ = written(tmp_path, shape)
    titles = [step.title for step in lower(optimised(import_model(path).graph)).steps]
    if isinstance(shape, Decoder):
        assert titles == DECODER_LAYER * shape.layers
    else:
        # The embeddings and their norm; the mask is made beside the first layer's products.
        layers = ENCODER_LAYER * shape.layers
        layers.insert(1, "cast + subtract + multiply")
        assert titles == ["gather + add + add", "norm", *layers]


def test_weights_lie_beside_the_model(tmp_path):
    path, module = written(tmp_path, TINY_DECODER)
    weights = sum(p.numel() * 4 for p in module.parameters())
    tables = 2 * TINY_DECODER.positions * TINY_DECODER.depth * 4
    assert path.name == MODEL_FILE
    assert path.with_name(WEIGHTS_FILE).stat().st_size == weights + tables
    assert path.stat().st_size < 40_000


def test_activations_keep_their_size():
    """So that outputs can be compared after many layers, and nothing is over- or underflown."""
    for shape in (TINY_ENCODER, TINY_DECODER):
        module = made(shape, CPU)
        y = module(*map(torch.from_numpy, feeds(shape, 2, 16)))
        assert 0.3 < y.std() < 3.0


def test_widths_are_those_of_the_models():
    """By their published numbers of parameters: 110 million of BERT, 218 million of a block."""
    with torch.device("meta"):
        encoder = sum(p.numel() for p in _module(BERT_BASE).parameters())
        decoder = sum(p.numel() for p in _module(LLAMA_BLOCK).parameters())
    # Without the pooler, and with one row of the two kinds of token.
    assert encoder == 109_482_240 - 768 * 768 - 768 - 768
    assert decoder == 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096


def _module(shape: Encoder | Decoder) -> torch.nn.Module:
    from benchmarks import torch_models

    if isinstance(shape, Encoder):
        return torch_models.EncoderModule(shape)
    return torch_models.DecoderModule(shape)
