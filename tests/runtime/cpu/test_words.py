"""Words that native code looks up, against the references."""

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from tests.at_once import at_once

from ftuner.core.dim import symbol
from ftuner.core.dtype import STRING
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.ops.learning import Words
from ftuner.graph.ops.text import byte_classes
from ftuner.runtime.cpu import words as native
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

LETTERS = "abcXYZ09_ .,\t\0\u00e9\u00c9\u00df\u2028\u4e2d\U0001f600\u0130"
KNOWN = (
    "",
    "a",
    "b",
    "ab",
    "abc",
    "a",
    "\u00e9",
    "\u4e2d\u4e2d",
    "XY",
    "ab\0",
    "\U0001f600",
    "i\u0307",
)
RNG = random.Random(0)
entries = native._entries


def texts(count: int, longest: int, letters: str = LETTERS) -> Any:
    found = ["".join(RNG.choices(letters, k=RNG.randint(0, longest))) for _ in range(count)]
    return np.array([*found, *KNOWN][:count] if count < 4 else found, object)


def graph_of(op: str, rank: int = 1, **attributes: Any) -> Graph:
    builder = Builder()
    x = builder.input("x", STRING, (symbol("n"),) * rank)
    found: Value = builder.add(op, x, **attributes)
    return builder.graph([x], [("y", found)])


def cutting(pattern: str, least: int = 1, normaliser: Any = None, pad: str = "#") -> Graph:
    counts = ("pieces",) if normaliser is None else ("rows", "pieces")
    words = Words(KNOWN, np.arange(len(KNOWN) + 1))
    return graph_of(
        "tokens", separators=(), pattern=pattern, least=least, marks=(), pad=pad, words=words,
        counts=counts, normaliser=normaliser,
    )  # fmt: skip


def agrees(graph: Graph, backend: CpuBackend, *arrays: Any) -> None:
    model = Model(graph, backend)
    for x in arrays:
        (found,), (expected,) = model.run({"x": x}), run_reference(graph, [x])
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "values", [np.arange(13), np.linspace(0, 1, 13), np.array([f"v{i}" for i in range(13)], object)]
)
def test_whole_strings(values: Any, widest: CpuBackend) -> None:
    words = Words(KNOWN, values)
    given = np.array([*KNOWN, *KNOWN[::-1], "other", "A", "aa", "a\0", "\ud800", "a\udfff"], object)
    agrees(graph_of("translated", words=words), widest, given, given[:1], given[:0], given[::-2])


def test_one_string(widest: CpuBackend) -> None:
    """The result is an array, whose memory native code reads."""
    graph = graph_of("translated", rank=0, words=Words(KNOWN, np.linspace(0, 1, 13)))
    (found,) = Model(graph, widest).run({"x": np.array(KNOWN[1], object)})
    assert isinstance(found, np.ndarray)
    assert found.shape == ()
    agrees(graph, widest, np.array(KNOWN[2], object), np.array("other", object))


def test_a_table_of_many_words(widest: CpuBackend) -> None:
    known = (*(f"w{i * i}" for i in range(5000)), "\u00e9" * 40, "w9" * 50)
    words = Words(known, np.arange(len(known) + 1)[::-1].copy())
    given = np.array([*(f"w{i}" for i in range(20_000)), *known[-3:], known[-1] + "9"], object)
    agrees(graph_of("translated", words=words), widest, given)


def test_the_first_calls_make_one_table(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(native, "_entries", lambda *given: made.append(0) or entries(*given))
    known = tuple(f"w{i}" for i in range(20_000))
    graph = graph_of("translated", words=Words(known, np.arange(len(known) + 1)))
    model, given = Model(graph, widest), np.array([*known[:50], "other"], object)
    assert not made
    expected = [*range(50), len(known)]

    def call() -> None:
        assert model.run({"x": given})[0].tolist() == expected

    at_once(*[call] * 4)
    assert len(made) == 1


PATTERNS = (r"[a-zA-Z0-9_]+", r"[\w]+", r"[^\s,]+", r"[^a]+", r"[\W]+", ".")


@pytest.mark.parametrize("least", [0, 1, 2, 3])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_words_of_texts(pattern: str, least: int, widest: CpuBackend) -> None:
    """Texts of no word, of none at all, and with more words than there is memory for at first."""
    assert byte_classes(pattern)[1]
    long = np.array(["a b " * 3000, "", "ab,abc"], object)
    arrays = [texts(200, 30), texts(1, 9), texts(0, 9), long, long, texts(50, 4, "ab "), long[:1]]
    agrees(cutting(pattern, least), widest, *arrays)
    agrees(cutting(pattern, least, pad="ab"), widest, *arrays)


def test_memory_follows_what_texts_have(widest: CpuBackend) -> None:
    """One long text has many short ones expect no more, and results keep what they show."""
    model = Model(cutting(r"[\w]+"), widest)
    long, short = np.array(["a " * 500_000], object), np.full(200_000, "a", object)
    tracemalloc.start()
    try:
        for given in (short[:3], long, short, short[:3]):
            (found,) = model.run({"x": given})
            assert np.unique(found).tolist() == [KNOWN.index("a")]
            owner = found
            while owner.base is not None:
                owner = owner.base
            assert owner.nbytes <= 2 * found.nbytes
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
def test_normalised_texts(case: str, widest: CpuBackend) -> None:
    for stopwords in ((), ("AB", "a b")):
        graph = cutting(r"[\w]+", normaliser=(case, stopwords, False))
        given = np.array(["ab", "A B", "AB ab", "\u0130 \u00c9", "a\0b"], object)
        agrees(graph, widest, given, given[:1], given[:0], texts(50, 20))


def test_surrogates_are_left_to_python(widest: CpuBackend) -> None:
    given = np.array(["ab \ud800 abc", "a", "\udfff"], object)
    agrees(cutting(r"[\w]+"), widest, given)
    agrees(cutting("."), widest, given)


@pytest.mark.parametrize("pattern", ["a|b", r"[\w]+b", "[\u00e9]+", "(a)+", "[^\u00e9]+"])
def test_other_patterns_are_left_to_python(pattern: str, widest: CpuBackend) -> None:
    assert not byte_classes(pattern)[1]
    agrees(cutting(pattern), widest, texts(50, 20))


def test_what_is_taken_as_strings(widest: CpuBackend) -> None:
    """NumPy's strings, bytes, numbers, and subclasses of strings."""
    model = Model(graph_of("translated", words=Words(KNOWN, np.arange(len(KNOWN) + 1))), widest)
    expected = [1, 3, len(KNOWN)]
    for given in (
        np.array(["a", "ab", "1"]), np.array([b"a", b"ab", b"1"]),
        np.array(["a", b"ab", 1], object), np.array([np.str_("a"), "ab", None], object),
    ):  # fmt: skip
        assert model.run({"x": given})[0].tolist() == expected


def test_given_strings_are_never_shown_in_outputs(widest: CpuBackend) -> None:
    builder = Builder()
    x = builder.input("x", STRING, (symbol("n"),))
    model = Model(builder.graph([x], [("y", x)]), widest)
    given = np.array(["a", "b"], object)
    (found,) = model.run({"x": given})
    found[0] = "changed"
    assert given.tolist() == ["a", "b"]
