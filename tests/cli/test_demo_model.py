"""`ftuner demo`: its parts always, the whole where the extra is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from tests.cli.invoking import document, run

from ftuner.cli import demo
from ftuner.cli.demo import Sentence, corpus, first_sentence, latencies, ranked
from ftuner.errors import ConfigurationError


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
    assert [match.name for match in ranked(sentences, vectors, query)] == ["1", "3", "2"]


def test_latencies() -> None:
    rows = latencies({9: [3.0, 1.0, 2.0, 1.0], 5: [1.0, 2.0], 7: [1.0]})
    assert [(r.tokens, r.calls, r.first_s, r.later_s) for r in rows] == [
        (5, 2, 1.0, 2.0),
        (9, 4, 3.0, 1.0),
    ]


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blingfire", None)
    result = run("demo")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("ftuner: ConfigurationError: ")
    assert "pip install 'ftuner[demo]'" in line
    monkeypatch.setattr(demo, "ENCODER", "no-such-distribution")
    with pytest.raises(ConfigurationError, match="pip install"):
        demo.encoder_path()


def _has_extra() -> bool:
    try:
        demo.encoder_path()
    except ConfigurationError:
        return False
    return find_spec("blingfire") is not None and find_spec("onnx") is not None


needs_extra = pytest.mark.skipif(not _has_extra(), reason="the extra `demo` is not installed")


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
    assert demo.tokeniser()(text) == ids


@needs_extra
def test_long_texts_are_cut() -> None:
    assert len(demo.tokeniser()("word " * 2000)) == demo.MAX_TOKENS


@needs_extra
def test_demo() -> None:
    found = document("demo", "--query", "delete a folder and everything in it")
    ((best, *_),) = found["matches"].values()
    assert best["name"] == "shutil.rmtree"
    assert len(found["latencies"]) > 10
    shown = run("demo")
    assert shown.exit_code == 0
    for part in ("shutil.rmtree", "latency by length", "first call"):
        assert part in shown.stdout
