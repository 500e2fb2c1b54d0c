"""Architectures of `transformers`: rows are sound, verdicts are strict, and files of some of them,
made here, load and are right at all shapes."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from benchmarks.zoo import checking, decoders, held_out, senses, text
from benchmarks.zoo.architecture import EXPORTED, EXTENTS, KEPT, SHAPES, Array, Size
from benchmarks.zoo.checking import compared, difference
from benchmarks.zoo.exporting import Exported, export
from benchmarks.zoo.recognised import softmax_between_products, summary
from benchmarks.zoo.table import ARCHITECTURES
from benchmarks.zoo.variants import VARIANTS, variant_of
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.graph.ir import Value
from ftuner.graph.passes.pipeline import optimised

TINY = Size("tiny", hidden=48, depth=16)
BUILT = ("bert", "llama-past", "t5", "resnet", "wav2vec2-stable")
"""One of each kind of inputs: text, keys and values, two texts, pictures, sounds."""
VARIED = ("opset-22", "opset-23", "ort-extended", "float16-torch", "traced")
"""A variant of each way to make one that needs no further package."""


def test_shapes_are_as_many_for_each_dim_and_differ_from_what_is_exported() -> None:
    assert {len(extents) for extents in EXTENTS.values()} == {SHAPES}
    assert set(EXPORTED) == set(EXTENTS)
    assert min(EXPORTED.values()) > 1
    assert len(set(EXPORTED.values())) == len(EXPORTED)


def test_every_row_makes_inputs_of_its_dims() -> None:
    for row in ARCHITECTURES.values():
        for shape in (KEPT, 0, SHAPES - 1):
            extents = row.extents(shape)
            feeds = row.feeds(extents, 0)
            assert {name: x.shape for name, x in feeds.items()} == {
                name: given.shape(extents) for name, given in row.inputs.items()
            }
        assert row.fields(TINY)


def test_rows_that_are_held_out_are_marked() -> None:
    marked = {name for name, row in ARCHITECTURES.items() if row.held_out}
    assert marked == {row.name for row in held_out.ROWS}
    assert not marked & {row.name for row in (*text.ROWS, *decoders.ROWS, *senses.ROWS)}


def test_a_digest_depends_on_the_size_the_row_and_the_makers() -> None:
    rows = [ARCHITECTURES[name] for name in ("bert", "roberta")]
    digests = {
        row.digest(size, {"torch": version})
        for row in rows
        for size in (TINY, Size("wide", 768))
        for version in ("1", "2")
    }
    assert len(digests) == 8


def test_a_difference_is_named() -> None:
    x = np.linspace(-1, 1, 10, dtype=np.float32)
    assert difference([x], [x + 1e-6]) == ""
    assert "10%" in difference([x], [np.where(x == 1, 2, x).astype(np.float32)])
    assert "finite" in difference([x], [np.where(x == 1, np.inf, x).astype(np.float32)])
    assert "expected" in difference([x], [x.astype(np.float64)])
    assert "expected" in difference([x], [x[:3]])


@pytest.mark.parametrize("name", BUILT)
def test_architectures_load_and_are_right_at_all_shapes(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    files = Exported(tmp_path, tmp_path)
    export(ARCHITECTURES[name], TINY, tmp_path)
    assert compared(files, threads=1) == {"exporter": "", "verdict": "right", "why": ""}


@pytest.mark.parametrize("name", VARIED)
def test_variants_of_a_file_load_and_are_right_at_all_shapes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("onnx", "onnxruntime", "transformers", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path)
    files = variant_of(ARCHITECTURES["bert"], TINY, VARIANTS[name])
    found = compared(files, threads=1)
    assert found["verdict"] == "right", found
    again = variant_of(ARCHITECTURES["bert"], TINY, VARIANTS[name])
    assert again == files


def test_variants_change_files_of_variants_and_are_exported_otherwise() -> None:
    for variant in VARIANTS.values():
        assert variant.source in {"", *VARIANTS}
        assert variant.change is None or not variant.options
        assert variant.half >= variant.half_ends
    assert {f"opset-{n}" for n in range(21, 29)} < {*VARIANTS}


def test_inputs_and_outputs_of_float16_files_are_in_float16(tmp_path: Path) -> None:
    for kind in ("feeds", "torch"):
        np.savez(tmp_path / f"{kind}-0.npz", x=np.ones(2, np.float32), ids=np.ones(2, np.int64))
    files = Exported(tmp_path, tmp_path, half=True, half_ends=True)
    assert {name: x.dtype.name for name, x in files.feeds(0).items()} == {
        "x": "float16", "ids": "int64",
    }  # fmt: skip
    assert files.wanted(0)[0].dtype == np.float16


@pytest.mark.parametrize(("torch_says", "verdict"), [(0.0, "right"), (0.01, "wrong")])
def test_torch_decides_where_onnxruntime_is_apart(
    torch_says: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    value = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT)
    node = onnx.helper.make_node("Abs", ["x"], ["y"])
    ends = [value("x", shape=["n"])], [value("y", shape=["n"])]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "one", *ends),
        opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9,
    )  # fmt: skip
    files = Exported(tmp_path, tmp_path)
    onnx.save(model, files.model)
    for shape in range(SHAPES):
        x = np.ones(shape + 1, np.float32)
        np.savez(tmp_path / f"feeds-{shape}.npz", x=x)
        np.savez(tmp_path / f"torch-{shape}.npz", y=x + np.float32(torch_says))

    class Apart:
        """In place of a session. A real one of the benchmarks sets threads for the process."""

        def run(self, _: None, feeds: dict[str, Array]) -> list[Array]:
            return [np.abs(feeds["x"]) + np.float32(0.01)]

    monkeypatch.setattr(checking, "onnxruntime_session", lambda *_: Apart())
    found = compared(files, threads=1)
    assert found["verdict"] == verdict
    assert "differs by 0.01" in found["why"]


def test_what_is_left_is_counted() -> None:
    """Attention that is written out, before and after passes."""

    def body(g: Maker) -> Value:
        q, k, v = g.given("q", B, S, 8), g.given("k", B, 8, T), g.given("v", B, T, 8)
        return g.attention(q, k, v, 0.5, None)

    graph = graph_of(body)
    assert softmax_between_products(graph) == 1
    assert softmax_between_products(optimised(graph)) == 0
    assert softmax_between_products(graph_of(alone)) == 0
    assert summary({"attention": 2, "copies": 1}) == "2 attention; left: 1 copies"


def alone(g: Maker) -> Value:
    raw = g.add("matmul", g.given("q", B, S, 8), g.given("k", B, 8, T))
    return g.add("softmax", raw, axis=2, log=False)
