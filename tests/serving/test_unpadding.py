"""Embedders of other packages have the results that they had, without computing padding."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.errors import ConfigurationError, InputError
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.model import Model

pytest.importorskip("onnx")

from tests.frontends.onnx_models import parsed

WORDS, WIDTH, HEADS = 11, 16, 3
TEXTS = ["a cat sat", "the dog ran fast in the rain", "sun", "a dog", "", "the cat ran slow"]
VOCABULARY = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "cat", "dog", "sat", "ran", "fast",
    "slow", "in", "rain", "sun",
)  # fmt: skip


def encoder_bytes(words: int = WORDS) -> bytes:
    """A vector of each token, which the position and the tokens before it change; their masked sum;
    and three numbers of each text."""
    rng = np.random.default_rng(0)
    text = f"""(int64[batch, length] input_ids, int64[batch, length] attention_mask)
            => (float[batch, length, {WIDTH}] tokens, float[batch, {HEADS}] classes)
            <int64 one = {{1}}, int64[1] two = {{2}}, int64[1] axis = {{1}}> {{
        words = Gather(table, input_ids)
        mixed = MatMul(words, square)
        kept = Cast<to=1>(attention_mask)
        column = Unsqueeze(kept, two)
        masked = Mul(mixed, column)
        tokens = CumSum(masked, one)
        sum = ReduceSum<keepdims=0>(masked, axis)
        classes = MatMul(sum, few)
    }}"""
    table, square = rng.random((words, WIDTH), np.float32), rng.random((WIDTH, WIDTH), np.float32)
    few = rng.random((WIDTH, HEADS), np.float32)
    return parsed(text, table=table, square=square - 0.5, few=few).SerializeToString()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("encoder") / "model.onnx"
    found.write_bytes(encoder_bytes())
    return found


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_fastembed(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The part of `TextEmbedding` that runs the encoder."""
    import onnxruntime

    class Runner:
        threads = 1
        model: Any = None

        def load_onnx_model(self) -> None:
            self.model = onnxruntime.InferenceSession(str(path))

    class TextEmbedding:
        def __init__(self) -> None:
            self.model = Runner()

    TextEmbedding.__module__ = "fastembed.text.text_embedding"
    embedding = TextEmbedding()
    assert ftuner.unpad(embedding) is embedding
    session = embedding.model.model
    assert [x.name for x in session.get_inputs()] == ["input_ids", "attention_mask"]
    mask = np.array([[1, 1, 0], [1, 1, 1]])
    feeds = {"input_ids": np.array([[3, 4, 0], [5, 6, 7]]), "attention_mask": mask}
    wanted = onnxruntime.InferenceSession(str(path)).run(None, feeds)
    for found, x in zip(session.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(found[1], x[1], rtol=1e-5)
    tokens, _ = session.run(None, feeds)
    assert not tokens[0, 2:].any(), "vectors of padding are zero"
    assert not caplog.records
    (classes,) = session.run(["classes"], feeds)
    np.testing.assert_allclose(classes, wanted[1], rtol=1e-5)
    with pytest.raises(ConfigurationError, match="precision"):
        ftuner.unpad(TextEmbedding(), precision="half")
    monkeypatch.setattr(Model, "padding_kept", "of a test")
    ftuner.unpad(TextEmbedding())
    assert [record.getMessage() for record in caplog.records] == [
        "the padding of an embedder's texts is computed: of a test"
    ]
    embedding.model.model = object()
    with pytest.raises(InputError, match="no session of onnxruntime"):
        ftuner.unpad(embedding)


def test_the_package_fastembed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts keep their order, and each has its own length."""
    package, tokenizers = pytest.importorskip("fastembed"), pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizers.BertWordPieceTokenizer(vocabulary).save(str(tmp_path / "tokenizer.json"))
    special = {
        f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
    }
    files = {
        "config": {"pad_token_id": 0},
        "tokenizer_config": {"pad_token": "[PAD]", "model_max_length": 40},
        "special_tokens_map": special,
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "model.onnx").write_bytes(encoder_bytes(len(VOCABULARY)))
    name = "sentence-transformers/all-MiniLM-L6-v2"
    embedding = package.TextEmbedding(name, specific_model_path=str(tmp_path), threads=1)
    wanted = list(embedding.embed(TEXTS, batch_size=4))
    lengths = lengths_of_batches(monkeypatch)
    found = list(ftuner.unpad(embedding).embed(TEXTS, batch_size=4))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert lengths == [len(text.split()) + 2 for text in TEXTS]


def lengths_of_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the requests of all batches from now on."""
    lengths: list[int] = []
    run = CompiledGraph.run_batch

    def noted(graph: CompiledGraph, batch: Any, exact: bool) -> Any:
        lengths.extend(arrays[0].shape[1] for arrays in batch)
        return run(graph, batch, exact)

    monkeypatch.setattr(CompiledGraph, "run_batch", noted)
    return lengths


def test_what_is_no_embedder() -> None:
    with pytest.raises(InputError, match="expected a SentenceTransformer"):
        ftuner.unpad(3)


@pytest.fixture
def sentences(tmp_path: Path) -> Any:
    """A `SentenceTransformer` of a small BERT with random weights."""
    package = pytest.importorskip("sentence_transformers")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=40,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path)
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    return package.SentenceTransformer(str(tmp_path), device="cpu")


@pytest.mark.full  # Importing the package takes up to half a minute.
def test_sentence_transformers(sentences: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = sentences.encode(TEXTS, batch_size=4)
    tokens = sentences.encode(TEXTS, output_value="token_embeddings")
    lengths = lengths_of_batches(monkeypatch)
    assert ftuner.unpad(sentences) is sentences
    found = sentences.encode(TEXTS, batch_size=4)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    words = [len(text.split()) + 2 for text in TEXTS]
    assert sorted(lengths) == sorted(words)
    for x, y in zip(sentences.encode(TEXTS, output_value="token_embeddings"), tokens, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), atol=1e-6)
    monkeypatch.setattr(type(sentences[0]), "auto_model", None)
    with pytest.raises(InputError, match="runs a NoneType"):
        ftuner.unpad(sentences)
