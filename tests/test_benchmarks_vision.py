"""Vision networks that benchmarks write, and the benchmark of them."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("torch")

from benchmarks.results import load, summarise  # noqa: E402
from benchmarks.run import environment  # noqa: E402
from benchmarks.vision import convolutions, first_pictures, memory, zoo  # noqa: E402
from benchmarks.vision.convolutions import FIRST, LAST, Convolution, Layer, torch_layer  # noqa: E402
from benchmarks.vision.writing import Size  # noqa: E402
from benchmarks.vision.zoo import NETWORKS, Picture  # noqa: E402

import ftuner  # noqa: E402
from ftuner.frontends.onnx.importer import import_model  # noqa: E402
from ftuner.graph.lowering import lower  # noqa: E402
from ftuner.graph.passes.pipeline import optimised  # noqa: E402
from ftuner.schedules.nest.step import NestStep  # noqa: E402
from ftuner_tools.timing import ATOL, RTOL  # noqa: E402

SMALL = Size(width=0.125, depth=0.34)
CORE = ("resnet18", "unet", "mobilenet-v3", "vit-tiny")
"""Networks that the core of the tests compiles; others are compiled by the full tests."""
PARAMETERS = {
    "resnet18": 11.7, "resnet50": 25.6, "mobilenet-v2": 3.5, "mobilenet-v3": 5.5,
    "efficientnet-b0": 5.3, "convnext-tiny": 28.6, "yolo": 3.2, "segformer-b0": 3.75,
    "vit-tiny": 5.7, "vit-small": 22.0, "swin-tiny": 28.3,
}  # fmt: skip
"""In millions, as published; there is no such number for our U-Net."""
OPERATIONS = {"resnet18": 1.82, "resnet50": 4.1, "mobilenet-v2": 0.3, "swin-tiny": 4.5}
"""Multiply-adds of a picture of 224 x 224 in units of 10^9, as published."""


def session(model: bytes) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "name", [n if n in CORE else pytest.param(n, marks=pytest.mark.full) for n in zoo.WRITTEN]
)
def test_networks_equal_onnx_runtime_at_resolutions_never_seen(name: str) -> None:
    written = NETWORKS[name].write(SMALL)
    onnx.checker.check_model(written, full_check=True)
    reference = session(written.SerializeToString())
    model = ftuner.load(written, threads=1)
    free = NETWORKS[name].multiple == 1
    for picture in (Picture(2, 64, 96), Picture(3, 75, 58) if free else Picture(3, 96, 32)):
        feeds = picture.feeds(np.random.default_rng(picture.height))
        (expected,) = reference.run(None, feeds)
        assert 0.05 < expected.std() < 10.0
        (found,) = model.run(feeds)
        np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({*NETWORKS} - {*zoo.WRITTEN}))
def test_networks_that_read_equal_onnx_runtime(name: str) -> None:
    pytest.importorskip("rapidocr")
    network = NETWORKS[name]
    written = network.write(Size())
    reference = session(written.SerializeToString())
    model = ftuner.load(written, threads=1)
    for given in network.pictures:
        if given.batch * given.height * given.width > 160 * 320:
            continue
        # Widths that are not measured, too.
        for wider in (0, network.multiple):
            picture = Picture(given.batch, given.height, given.width + wider)
            feeds = picture.feeds(np.random.default_rng(picture.width))
            (expected,) = reference.run(None, feeds)
            (found,) = model.run(feeds)
            np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


POOLED = {"reduce + divide": 1}
"""The mean of each channel."""
NESTS: dict[str, dict[str, int]] = {
    "resnet18": {"pad": 1, **POOLED},
    "resnet50": {"pad": 1, **POOLED},
    "mobilenet-v2": {"pad": 1, **POOLED},
    "mobilenet-v3": {"pad": 1, "reduce + divide": 9, "multiply": 8},
    "efficientnet-b0": {"pad": 1, "reduce + divide": 8, "multiply": 7},
    "convnext-tiny": {"pad": 1, "norm": 11, **POOLED},
    "unet": {"pad": 1, "copy": 5},
    "yolo": {"pad": 7, "copy": 12, "repeat": 2, "softmax": 1, "sigmoid": 1},
    "segformer-b0": {"pad": 1, "norm": 19, "copy": 1, "resample": 3},
    "vit-tiny": {"pad": 1, "norm": 9, "copy": 1, "add": 1, "gather": 1, "resample": 1},
    "swin-tiny": {
        "pad": 5, "norm": 21, "copy": 32, "add": 11, "slice + slice + add": 4,
        "subtract + equal + where": 3, "subtract + equal + where + add": 1, **POOLED,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", NESTS)
def test_all_of_it_is_fused(name: str) -> None:
    """Norms are folded, activations and sums are epilogues, and nothing is transposed on the way:
    the steps that are no products, windows or attention, but for tables of positions."""
    written = NETWORKS[name].write(SMALL)
    steps = lower(optimised(import_model(written).graph)).steps
    titles = Counter(step.title for step in steps if isinstance(step, NestStep))
    of_tables = {t for t in titles if any(op in t for op in ("iota", "floor", "less_equal"))}
    assert {t: n for t, n in titles.items() if t not in of_tables} == NESTS[name]


@pytest.mark.full
@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_as_many_parameters_as_published(name: str) -> None:
    model = NETWORKS[name].write(Size())
    count = sum(int(np.prod(t.dims)) for t in model.graph.initializer) / 1e6
    # Batch norms keep statistics beside what is counted.
    assert count == pytest.approx(PARAMETERS[name], rel=0.025)


@pytest.mark.full
@pytest.mark.parametrize("name", OPERATIONS)
def test_networks_have_as_many_operations_as_published(name: str) -> None:
    count = zoo.counted(NETWORKS[name].write(Size()), session)
    feeds = Picture(1, 224, 224).feeds(np.random.default_rng(0))
    assert count(feeds) / 2e9 == pytest.approx(OPERATIONS[name], rel=0.02)


LAYERS = [
    Layer((3, 3), 2, 1, 3, 8), Layer((3, 3), 1, 2, 8, 4, dilation=2), Layer((3,), 2, 1, 4, 8),
    Layer((5, 5), 1, 2, 8, 8, groups=8), Layer((4, 4), 2, 1, 8, 4, transposed=True),
]  # fmt: skip


@pytest.mark.parametrize("layout", [FIRST, LAST])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.label)
def test_a_layer_is_the_same_in_onnx_and_in_torch(layer: Layer, layout: str) -> None:
    rng = np.random.default_rng(0)
    weight, bias = layer.parameters(rng)
    case = Convolution(layer, (9, 12)[: layer.rank], batch=2)
    x = case.inputs(rng, layout)
    model = layer.model(weight, bias, layout)
    onnx.checker.check_model(model, full_check=True)
    (expected,) = session(model.SerializeToString()).run(None, {"x": x})
    extents = layer.extents(case.given)
    assert expected.shape[slice(2, None) if layout == FIRST else slice(1, -1)] == extents
    for channels_last in (False, True):
        found = torch_layer(layer, weight, bias, layout, channels_last)(x)()
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_every_convolution_of_the_workload_file() -> None:
    found = {kind: convolutions.cases(kind) for kind in convolutions.KINDS}
    assert {kind: len(c) for kind, c in found.items()} == {"conv2d": 111, "conv1d": 15}
    assert all(len({case.label for case in c}) == len(c) for c in found.values())
    first = found["conv2d"][0]
    assert first.label == "3x3 64>64 56x56"
    assert first.flops == 2 * 56 * 56 * 64 * 64 * 9


@pytest.mark.parametrize(
    ("worker", "label", "engines"),
    [
        ("conv:conv2d", "1x1 320>1280 5x5", {"torch", "torch, channels last"}),
        ("vision:resnet18", "1x96x96", set()),
    ],
)
def test_the_benchmark_runs(tmp_path: Path, worker: str, label: str, engines: set[str]) -> None:
    """In a process of its own: ONNX Runtime's global pool is for all sessions of a process."""
    path = tmp_path / "model.onnx"
    path.write_bytes(NETWORKS["resnet18"].write(SMALL).SerializeToString())
    command = [
        sys.executable, "-m", "benchmarks.vision", "--worker", worker, "--only", label,
        "--threads", "1", "--budget", "0", "--model", str(path), "--results", str(tmp_path),
    ]  # fmt: skip
    subprocess.run(command, check=True, env=environment(1), cwd=Path(__file__).parents[1])
    document = load(tmp_path / f"{worker.replace(':', '-')}-t1.json")
    (result,) = document["cases"]
    assert {*result["engines"]} == {"ftuner", "onnxruntime", "openvino", *engines}
    assert result["label"] == label
    assert result["flops"] > 0
    assert result["ratio"] > 0
    assert summarise(document).refused == ()


def test_first_calls_of_pictures(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(NETWORKS["resnet18"].write(SMALL).SerializeToString())
    pictures = [Picture(1, 32, 32), Picture(1, 40, 33)]
    found = first_pictures.here(path, pictures, 1, seed=1)
    assert {*found} == {"1x32x32", "1x40x33"}
    assert all(len(seconds) == first_pictures.CALLS for seconds in found.values())


def test_resident_memory(tmp_path: Path) -> None:
    """More once a model is loaded, and most after calls."""
    path = tmp_path / "network.onnx"
    onnx.save(NETWORKS["mobilenet-v3"].write(SMALL), path)
    feeds = Picture(1, 64, 64).feeds(np.random.default_rng(0))
    for engine in ("ftuner", "onnxruntime"):
        found = memory.resident(path, feeds, engine, 1, environment(1))
        assert 0 < found.start_bytes < found.imported_bytes < found.loaded_bytes
        assert found.called_bytes >= found.loaded_bytes
        assert found.text.endswith("loaded")
