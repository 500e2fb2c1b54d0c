"""The part of the demo that searches: sentences, ranks and the tokeniser."""

import numpy as np
import pytest
from tests.tools.demo.demo_extra import needs_extra

from ftuner.errors import ConfigurationError
from ftuner_tools.demo import sentences as demo_sentences
from ftuner_tools.demo.sentences import Sentence, corpus, first_sentence, ranked


def test_first_sentence() -> None:
    assert first_sentence("Copy a file. And more.\n\nOther.") == "Copy a file"
    assert first_sentence("Copy\n  a file.\n\nOther.") == "Copy a file"
    assert first_sentence("") == ""


def test_corpus() -> None:
    sentences = list(corpus())
    assert len(sentences) > 200
    assert len({s.text for s in sentences}) == len(sentences)
    found = {s.name: s.text for s in sentences}
    assert found["shutil.rmtree"] == "Recursively delete a directory tree"
    assert sentences == list(corpus())


def test_ranked() -> None:
    vectors = np.eye(4, dtype=np.float32)
    sentences = [Sentence(str(i), "text") for i in range(4)]
    query = np.array([0.1, 0.9, 0.2, 0.3], np.float32)
    assert [match.name for match in ranked(sentences, vectors, query)] == ["1", "3"]


def test_missing_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_sentences, "ENCODER", "no-such-distribution")
    with pytest.raises(ConfigurationError, match="pip install"):
        demo_sentences.encoder_path()


@needs_extra
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", [101, 102]),
        ("hello world", [101, 7592, 2088, 102]),
        ("Hello, World!", [101, 7592, 1010, 2088, 999, 102]),
        ("unaffable", [101, 14477, 20961, 3468, 102]),
    ],
)
def test_tokeniser(text: str, ids: list[int]) -> None:
    """The ids that the vocabulary of BERT base, uncased, has."""
    assert demo_sentences.tokeniser()(text) == ids


@needs_extra
def test_long_texts_are_cut() -> None:
    assert len(demo_sentences.tokeniser()("word " * 2000)) == demo_sentences.MAX_TOKENS
