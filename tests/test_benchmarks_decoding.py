"""Decoders token by token: each engine hands its own keys and values on, and all agree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import decoding, generating, report_zoo
from benchmarks.decoding import TOKENS, WARM_UP, Text, decoder, run_text, text_of
from benchmarks.generating import GENERATORS, IN_PLACE, Generator, OnArrays
from benchmarks.zoo.architecture import Array, Feeds, Size
from benchmarks.zoo.exporting import Exported

from ftuner_tools.timing import Settings

TINY = Size("tiny", hidden=48, depth=16)
HEADS, DEPTH = TINY.heads, TINY.depth
BRIEF = Settings(budget_s_per_engine=0, min_rounds=1)


def _decoder(path: Path) -> None:
    """Write a decoder of one layer, whose keys and values are rows of its embedding."""
    onnx = pytest.importorskip("onnx")
    helper, types = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(0)
    tensors = {
        "embedding": rng.standard_normal((1024, HEADS * DEPTH), np.float32),
        "last": rng.standard_normal((HEADS * DEPTH, 8), np.float32),
        "apart": np.array([0, 0, HEADS, DEPTH]), "together": np.array([0, 0, HEADS * DEPTH]),
        "axes": np.array([1, 2]), "one": np.ones(1, np.float32),
        "hidden": np.full(1, 1e4, np.float32),
    }  # fmt: skip
    nodes = [
        ("Gather", ["embedding", "input_ids"], "x"),
        ("Reshape", ["x", "apart"], "split"),
        ("Transpose", ["split"], "q", {"perm": [0, 2, 1, 3]}),
        ("Concat", ["past_0", "q"], "keys", {"axis": 2}),
        ("Concat", ["past_1", "q"], "values", {"axis": 2}),
        ("Transpose", ["keys"], "turned", {"perm": [0, 1, 3, 2]}),
        ("MatMul", ["q", "turned"], "products"),
        ("Cast", ["attention_mask"], "seen", {"to": types.FLOAT}),
        ("Sub", ["seen", "one"], "unseen"),
        ("Mul", ["unseen", "hidden"], "low"),
        ("Unsqueeze", ["low", "axes"], "mask"),
        ("Add", ["products", "mask"], "scores"),
        ("Softmax", ["scores"], "weights", {"axis": -1}),
        ("MatMul", ["weights", "values"], "heads"),
        ("Transpose", ["heads"], "rows", {"perm": [0, 2, 1, 3]}),
        ("Reshape", ["rows", "together"], "joined"),
        ("MatMul", ["joined", "last"], "logits"),
    ]
    value = helper.make_tensor_value_info
    rows = ["batch", HEADS, "past", DEPTH]
    grown = ["batch", HEADS, "whole", DEPTH]
    graph = helper.make_graph(
        [helper.make_node(op, given, [made], **(of[0] if of else {}))
         for op, given, made, *of in nodes],
        "decoder",
        [value("input_ids", types.INT64, ["batch", "new"]),
         value("attention_mask", types.INT64, ["batch", "whole"]),
         value("past_0", types.FLOAT, rows), value("past_1", types.FLOAT, rows)],
        [value("logits", types.FLOAT, ["batch", "new", 8]),
         value("keys", types.FLOAT, grown), value("values", types.FLOAT, grown)],
        [onnx.numpy_helper.from_array(x, name) for name, x in tensors.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def test_engines_agree_at_each_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    files = Exported(tmp_path, tmp_path)
    _decoder(files.model)
    pasts = {f"past_{number}": np.zeros((1, HEADS, 5, DEPTH)) for number in range(2)}
    np.savez(tmp_path / "feeds-0.npz", input_ids=np.zeros((1, 1)), **pasts)
    monkeypatch.setattr(decoding, "exported", lambda *_: files)
    found = decoding.measured(decoder("llama-past"), TINY, 1, [2], [100], BRIEF)
    (case,) = found["cases"]
    assert {*case["engines"], *found["unavailable"]} == {*GENERATORS}
    assert not [name for name, entry in case["engines"].items() if "refused" in entry]
    assert case["ratio"] > 0
    assert case["ratio_first"] > 0


def test_a_window_bounds_what_is_given() -> None:
    class Files:
        def feeds(self, _: int) -> Feeds:
            return {"input_ids": np.zeros((1, 1)), "past_0": np.zeros((1, 3, 5, 4), np.float32)}

    text = text_of(Files(), 16, batch=2, length=9)  # type: ignore[arg-type]
    assert text.pasts["past_0"].shape == (2, 3, 9, 4)
    masks = [given["attention_mask"].shape[1] for given in text.steps]
    assert masks == [10, 11, 12, 13, 14, 15] + [16] * (WARM_UP + TOKENS - 6)
    assert text_of(Files(), 16, 2, 100).pasts["past_0"].shape[2] == 15  # type: ignore[arg-type]
    assert text_of(Files(), None, 2, 100).pasts["past_0"].shape[2] == 100  # type: ignore[arg-type]


def _counting(step: float = 1.0) -> Generator:
    """Its past is a sum of steps, and its logits are the past."""

    def run(feeds: Feeds) -> list[Array]:
        present = feeds["past_0"] + np.float32(step)
        return [present, present]

    return OnArrays(run)


def test_presents_are_the_next_pasts_and_a_text_begins_anew() -> None:
    engine = _counting()
    text = Text({"past_0": np.zeros(1, np.float32)}, [{}] * (WARM_UP + TOKENS))
    for _ in range(2):
        _, logits = decoding.generated(engine, text)
        assert [x.item() for x in logits] == [*range(1, WARM_UP + TOKENS + 1)]


def test_an_engine_that_is_wrong_or_fails_is_refused() -> None:
    def fails(_: Feeds) -> list[Array]:
        raise ValueError("no such input\nat all")

    engines = {
        IN_PLACE: _counting(), "ftuner": _counting(), "onnxruntime": _counting(),
        "openvino": _counting(1.01), "onnxruntime, bound": OnArrays(fails),
    }  # fmt: skip
    text = Text({"past_0": np.zeros(1, np.float32)}, [{}] * (WARM_UP + TOKENS))
    found = run_text(engines, text, BRIEF, "seed")
    assert "differs" in found["engines"]["openvino"]["refused"]
    assert found["engines"]["onnxruntime, bound"] == {"refused": "ValueError: no such input"}
    assert found["best_peer"] == "onnxruntime"
    assert found["ratio_copied"] > 0


def test_positions_suffice_for_the_longest_text() -> None:
    size = Size("small", 192)
    longest = max(decoding.LENGTHS) + WARM_UP + TOKENS
    for name in decoding.DECODERS:
        fields = decoder(name).fields(size)
        learned = name in decoding.WITH_TABLES
        assert (fields["max_position_embeddings"] >= longest) == learned
    assert {*decoding.DECODERS} <= {*decoding.ARCHITECTURES}
    assert generating.SUBJECT in GENERATORS


def _case(past: int, ratio: float | None) -> dict[str, Any]:
    return {"batch": 1, "past": past, "ratio": ratio, "ratio_copied": 1.5, "ratio_first": ratio}


def test_the_page_has_a_table_of_lengths() -> None:
    document = {
        "kind": "decoding", "set": "small", "threads": 2, "date": "2026-01-02T03:04:05",
        "machine": {"cpu_model": "a CPU"},
        "results": [{"label": "llama-past", "cases": [_case(100, 4.0), _case(10, 1.0)]},
                    {"label": "gpt2-past", "cases": [_case(10, None)]},
                    {"label": "lost", "cases": []}],
    }  # fmt: skip
    text = report_zoo.page([document])
    assert "### small" in text
    assert "| llama-past | 2 | 1 | 1.00 | 4.00 | 1.50 | 2.00 |" in text
    assert "| gpt2-past | 2 | 1 | – | – | 1.50 | – |" in text
    assert "| lost |" not in text
