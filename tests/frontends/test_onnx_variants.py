"""A sentence encoder as onnxruntime's tools write it: files that load there load here."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from benchmarks.minilm import PACKAGE, VOCABULARY, model_path

import ftuner

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")


def _has_model() -> bool:
    try:
        return bool(files(PACKAGE))
    except PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not _has_model(), reason="needs the encoder of the extra demo"),
]
Array = npt.NDArray[Any]
Make = Callable[[Path, Path], None]
"""`make(source, target)` writes a variant of a file."""


def feeds(batch: int, length: int) -> dict[str, Array]:
    rng = np.random.default_rng(batch)
    mask = np.ones((batch, length), np.int64)
    mask[1::2, length // 2 :] = 0
    return {"input_ids": rng.integers(0, VOCABULARY, (batch, length)), "attention_mask": mask}


def saved_at(level: str) -> Make:
    def make(source: Path, target: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
        )
        options.optimized_model_filepath = str(target)
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])

    return make


def dynamic(kind: str) -> Make:
    def make(source: Path, target: Path) -> None:
        quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType[kind])

    return make


class _Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left: Iterator[dict[str, Array]] = iter([feeds(2, 16), feeds(3, 9)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def static(form: str) -> Make:
    def make(source: Path, target: Path) -> None:
        form_of = quantization.QuantFormat[form]
        quantization.quantize_static(source, target, _Samples(), quant_format=form_of)

    return make


def by_blocks(bits: int) -> Make:
    def make(source: Path, target: Path) -> None:
        pytest.importorskip("onnx_ir")
        room = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
        quantizer = room.MatMulNBitsQuantizer(onnx.load(source), block_size=32, bits=bits)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))

    return make


def transformer(half: bool) -> Make:
    def make(source: Path, target: Path) -> None:
        room = pytest.importorskip("onnxruntime.transformers.optimizer")
        found = room.optimize_model(
            str(source), model_type="bert", num_heads=12, hidden_size=384, opt_level=0
        )
        if half:
            found.convert_float_to_float16()
        found.save_model_to_file(str(target))

    return make


VARIANTS: Mapping[str, Make] = {
    **{f"optimised {level.lower()}": saved_at(level)
       for level in ("BASIC", "EXTENDED", "LAYOUT", "ALL")},
    **{f"dynamic {kind}": dynamic(kind) for kind in ("QInt8", "QUInt8")},
    **{f"static {form}": static(form) for form in ("QDQ", "QOperator")},
    **{f"blocks of {bits} bits": by_blocks(bits) for bits in (4, 8)},
    "transformer": transformer(half=False),
    "transformer in float16": transformer(half=True),
}  # fmt: skip
QUANTISED = ("dynamic", "static")
"""Variants whose activations are quantised: a level that is rounded otherwise changes the next."""


def results(path: Path, given: Mapping[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, dict(given))
    return found


def distance(xs: list[Array], ys: list[Array]) -> float:
    """The largest difference of embeddings and other outputs."""
    return max(
        float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max())
        for x, y in zip(xs, ys, strict=True)
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant(name: str, tmp_path: Path) -> None:
    # The quantiser writes beside the model.
    source, target = tmp_path / "model.onnx", tmp_path / "variant.onnx"
    shutil.copyfile(model_path(), source)
    VARIANTS[name](source, target)
    model = ftuner.load(target)
    for shape in ((3, 13), (1, 5)):
        given = feeds(*shape)
        found, theirs, exact = model.run(given), results(target, given), results(source, given)
        assert [x.dtype for x in found] == [x.dtype for x in theirs]
        if name.startswith(QUANTISED):
            # As far from float32 as onnxruntime is, up to the rounding of single levels.
            assert distance(found, exact) <= 1.25 * distance(theirs, exact)
        else:
            tolerance = 1e-2 if "float16" in name else 1e-5
            assert distance(found, theirs) <= tolerance
