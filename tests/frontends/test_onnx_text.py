"""Strings: operators on text, and those that only move or compare them, beside onnxruntime's."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.frontends.onnx_models import model_of

import ftuner.ort
from ftuner.errors import GraphError, IndexRangeError, InputError
from ftuner.graph.ops.text import BLANKS
from ftuner.inference import load

onnxruntime = pytest.importorskip("onnxruntime")

WORDS = np.array([["a b", "c  d e", ""], ["h\u00e9llo", " x ", "b b b"]], object)


def agrees(
    nodes: Sequence[Any], feeds: Mapping[str, Any], outputs: Sequence[str] = ("y",),
    constants: Mapping[str, Any] | None = None, opset: int = 20,
) -> None:  # fmt: skip
    """A session gives what onnxruntime gives, in one piece and in empty ones."""
    types = {name: (x.dtype.name, [None] * x.ndim) for name, x in feeds.items()}
    model = model_of(nodes, types, outputs, constants, opset)
    model.ir_version = 9
    data = model.SerializeToString()
    peer, session = onnxruntime.InferenceSession(data), ftuner.ort.InferenceSession(data)
    assert [x.type for x in session.get_inputs()] == [x.type for x in peer.get_inputs()]
    assert [x.type for x in session.get_outputs()] == [x.type for x in peer.get_outputs()]
    for found, wanted in zip(session.run(None, feeds), peer.run(None, feeds), strict=True):
        assert found.dtype == wanted.dtype
        assert found.tolist() == wanted.tolist()


def node(op: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs or ["y"], **attributes)


VIEWS: dict[str, list[Any]] = {
    "identity": [node("Identity", ["x"])],
    "reshape": [node("Shape", ["z"], "s"), node("Reshape", ["x", "s"])],
    "gather": [node("Gather", ["x", "at"], axis=1)],
    "concat": [node("Transpose", ["x"], "t", perm=[0, 1]), node("Concat", ["t", "w"], axis=0)],
    "where": [node("Equal", ["x", "one"], "e"), node("Where", ["e", "hit", "x"])],
    "slice": [node("Slice", ["x", "zero", "two", "first"], "s"), node("Tile", ["s", "both"])],
    "expand": [node("Split", ["x"], "p", "q", "r", axis=1, num_outputs=3),
               node("Expand", ["q", "three"])],
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    text = lambda *words: np.array(words, object)  # noqa: E731
    constants = {
        "at": np.array([[2, -1], [0, 1]]),
        "w": WORDS[::-1],
        "one": text(""),
        "hit": text("found"),
        "zero": np.array([0]),
        "two": np.array([2]),
        "first": np.array([1]),
        "both": np.array([2, 1]),
        "three": np.array([1, 3]),
    }
    agrees(VIEWS[name], {"x": WORDS, "z": np.zeros((3, 2), np.float32)}, constants=constants)


def test_unique_and_constants() -> None:
    given = np.array(["b", "a", "b", "c"], object)
    unique = node("Unique", ["x"], "y", "i", "j", "c", sorted=1)
    agrees([unique], {"x": given}, ["y", "i", "j", "c"])
    nodes = [node("Identity", ["k"], "y"), node("Relu", ["z"], "r")]
    agrees(nodes, {"z": np.ones(2, np.float32)}, ["y", "r"], {"k": given})


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_casts(dtype: str) -> None:
    numbers = np.array([0, 1, 3, 200, 0.1, 1e10, 1e-7, 123456789]).clip(
        0, 200 if dtype == "uint8" else None
    )
    given = (
        numbers.astype(dtype)
        if dtype in ("float32", "float64", "uint8")
        else (numbers % 1000).astype(dtype)
    )
    agrees([node("Cast", ["x"], to=TensorProto.STRING)], {"x": given})
    if dtype in ("float32", "float64"):
        agrees([node("Cast", ["x"], to=TensorProto.STRING)],
               {"x": np.array([np.nan, np.inf, -np.inf], dtype)})  # fmt: skip
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        words = np.array(["1.5", "-2e3", "inf", " 7"], object)
        agrees([node("Cast", ["x"], to=number)], {"x": words})
    words = np.array(["1", "12", "-3"], object)
    agrees([node("Cast", ["x"], to=TensorProto.INT64)], {"x": words})


def test_joining_and_matching() -> None:
    agrees([node("StringConcat", ["x", "w"])], {"x": WORDS}, constants={"w": WORDS[0]})
    agrees([node("RegexFullMatch", ["x"], pattern="[a-z ]+")], {"x": WORDS})
    letters = np.array(["É", "é", "e", "Éa"], object)
    agrees([node("RegexFullMatch", ["x"], pattern="(?i)é")], {"x": letters})
    agrees([node("RegexFullMatch", ["x"], pattern=r"\\w+")], {"x": letters})


@pytest.mark.parametrize("given", [{}, {"delimiter": " "}, {"delimiter": "b"}, {"maxsplit": 1}])
def test_splitting(given: dict[str, Any]) -> None:
    agrees([node("StringSplit", ["x"], "y", "c", **given)], {"x": WORDS}, ["y", "c"])


@pytest.mark.parametrize("case", ["LOWER", "UPPER", "NONE"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalising(case: str, sensitive: int) -> None:
    for words in (["Monday", "tue", "WED"], ["Monday"]):
        normalizer = node("StringNormalizer", ["x"], case_change_action=case, locale="C",
                          is_case_sensitive=sensitive, stopwords=["monday", "WED"])  # fmt: skip
        agrees([normalizer], {"x": np.array(words, object)})


@pytest.mark.parametrize(
    "given",
    [
        {"separators": [" ", "b"]},
        {"tokenexp": "[a-z]+"},
        {"tokenexp": "(a|b)+c?"},
        {"separators": [""]},
    ],
)
def test_tokens(given: dict[str, Any]) -> None:
    for mark in (0, 1):
        tokenizer = node("Tokenizer", ["x"], domain="com.microsoft", mark=mark, mincharnum=1,
                         pad_value="#", **given)  # fmt: skip
        agrees([tokenizer], {"x": np.array(["a b", "c  d e", "", "abc"], object)})


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skips"), [(1, 1, 0), (1, 2, 0), (2, 2, 5), (1, 2, 5)])
def test_counts_of_n_grams(mode: str, least: int, most: int, skips: int) -> None:
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]
    given: dict[str, Any] = {
        "mode": mode, "min_gram_length": least, "max_gram_length": most, "max_skip_count": skips,
        "ngram_counts": [0, 4], "ngram_indexes": [6, 1, 2, 3, 4, 5, 0],
        "weights": [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    }  # fmt: skip
    row = np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8])
    for x in (row, row.reshape(2, 6), row.astype(np.int32), row[:1]):
        agrees([node("TfIdfVectorizer", ["x"], pool_int64s=pool, **given)], {"x": x})
    words = [str(n) for n in pool]
    text = np.array([str(n) for n in row], object)
    agrees([node("TfIdfVectorizer", ["x"], pool_strings=words, **given)], {"x": text})


@pytest.mark.parametrize(
    "given",
    [
        {"tokenexp": "."},
        {"tokenexp": ".", "mark": 1},
        {"tokenexp": "[a-zA-Z0-9_]+"},
        {"tokenexp": "[^b]+"},
        {"tokenexp": "[a-z]+", "mincharnum": 2},
        {"tokenexp": "(a|b)+"},
        {"tokenexp": r"\w+"},
        {"tokenexp": r"[\w.]+"},
        {"separators": [" ", "\n"]},
    ],
    ids=str,
)
def test_counts_of_tokens(given: dict[str, Any]) -> None:
    texts = [
        "a b ab",
        "b\nab\x00 ab aB_9",
        "",
        "d\u00e9j\u00e0 ab d\u00e9j\u00e0",
        " a\tb\x1fa \U0001f600b",
    ]
    pool = [
        *("a", "b", "ab", "\n", " ", "\U0001f600", "\x02", "j", "d\u00e9j\u00e0", "#"),
        *("aB_9", "d", "", "a ", "\x03", "c", "dd", "e", "\x00"),
        *("a", "b", "b", "ab", "#", "#", "ab", "ab"),
    ]
    tokenizer = node("Tokenizer", ["x"], "t", domain="com.microsoft", pad_value="#",
                     **{"mark": 0, "mincharnum": 1, **given})  # fmt: skip
    counts = node("TfIdfVectorizer", ["t"], mode="TF", min_gram_length=1, max_gram_length=2,
                  max_skip_count=1, ngram_counts=[0, 19], pool_strings=pool,
                  ngram_indexes=[*range(23)])  # fmt: skip
    agrees([tokenizer, counts], {"x": np.array(texts, object)})


def test_counts_of_many_n_grams() -> None:
    """So many that they are found by a hash."""
    pool = np.random.default_rng(0).permutation(20_000)[:9000] * (1 << 20)
    counts = node("TfIdfVectorizer", ["x"], mode="TF", min_gram_length=2, max_gram_length=3,
                  max_skip_count=0, ngram_counts=[0, 0, 3000], pool_int64s=pool.tolist(),
                  ngram_indexes=[*range(3500)])  # fmt: skip
    row = pool[[*range(1000, 1050), *range(3000, 3030), 5, *range(8990, 9000)]]
    agrees([counts], {"x": row}, opset=9)


def test_n_grams_of_no_length() -> None:
    given = {"mode": "TF", "ngram_counts": [0], "ngram_indexes": [0], "pool_int64s": [1]}
    found = node("TfIdfVectorizer", ["x"], min_gram_length=1, max_gram_length=1, max_skip_count=0,
                 **given)  # fmt: skip
    (counts,) = [a for a in found.attribute if a.name == "ngram_counts"]
    counts.ClearField("ints")
    with pytest.raises(GraphError, match="no ngram_counts"):
        load(model_of([found], {"x": ("int64", ["n"])}, ["y"]))


def test_blanks_are_what_splits() -> None:
    assert {*BLANKS} == {*filter(str.isspace, map(chr, range(sys.maxunicode + 1)))}


def test_what_strings_are_given_as() -> None:
    model = load(model_of([node("Identity", ["x"])], {"x": ("object", ["n"])}, ["y"]))
    assert str(model.inputs[0]) == "x: string[n]"
    for given in (np.array(["a", "b"]), np.array(["a", "b"], object), np.array([b"a", b"b"])):
        (found,) = model.run({"x": given})
        assert found.dtype == object
        assert found.tolist() == ["a", "b"]
    with pytest.raises(InputError, match="dtype int64"):
        model.run({"x": np.arange(2)})
    # Places that NumPy left empty.
    text = np.array(["a", "b"], object)
    with pytest.warns(UserWarning, match="unitialized"):
        holes = np.add(text, text, where=np.array([True, False]))
    (found,) = model.run({"x": holes})
    assert found[0] == "aa"


def test_what_is_refused() -> None:
    gather = model_of(
        [node("Gather", ["x", "i"])], {"x": ("object", ["n"]), "i": ("int64", ["m"])}, ["y"]
    )
    with pytest.raises(IndexRangeError, match="Gather"):
        load(gather).run({"x": WORDS[0], "i": np.array([3])})
    cast = model_of([node("Cast", ["x"], to=TensorProto.INT64)], {"x": ("object", ["n"])}, ["y"])
    with pytest.raises(InputError, match="cast to int64"):
        load(cast).run({"x": np.array(["one"], object)})
    for op, given in (
        ("Exp", {}),
        ("RegexFullMatch", {"pattern": "("}),
        ("StringNormalizer", {"case_change_action": "TITLE"}),
    ):
        with pytest.raises(GraphError):
            load(model_of([node(op, ["x"], **given)], {"x": ("object", ["n"])}, ["y"], opset=20))
