"""`run`, `explain`, `compare` and `bench` of models, in this process, on small ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.cli.invoking import document, exit_code_of, run
from tests.frontends.onnx_models import parsed

import ftuner
from ftuner.cli.main import EXIT_USAGE
from ftuner.errors import GraphError
from ftuner_tools import measuring
from ftuner_tools.bench_model import PEERS
from ftuner_tools.contest import Contest, measured
from ftuner_tools.measuring import Request, measure
from ftuner_tools.onnx_engines import ONNX_ENGINES, BindAll, OnnxEngine, Outputs
from ftuner_tools.timing import SUBJECT

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 5)).astype(np.float32)
BIAS = RNG.standard_normal(5).astype(np.float32)


def saved(model: onnx.ModelProto, path: Path) -> str:
    onnx.save(model, path)
    return str(path)


@pytest.fixture
def layer(tmp_path: Path) -> str:
    """relu(x @ weight + bias), and the sum of each row."""
    text = """(float[batch, 8] x) => ("head/y", total) <int64[1] axes = {1}> {
        product = MatMul(x, weight)
        sum = Add(product, bias)
        "head/y" = Relu(sum)
        total = ReduceSum<keepdims=0>("head/y", axes)
    }"""
    return saved(parsed(text, weight=WEIGHT, bias=BIAS), tmp_path / "layer.onnx")


@pytest.fixture
def lookup(tmp_path: Path) -> str:
    """Rows of a table by index, those that the mask leaves out as zero."""
    text = """(int64[length] ids, bool[length, 1] mask) => (y) <float zero = {0}> {
        rows = Gather(table, ids)
        y = Where(mask, rows, zero)
    }"""
    return saved(parsed(text, table=WEIGHT), tmp_path / "lookup.onnx")


def reference(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ WEIGHT + BIAS, 0.0)


def test_run_on_a_file(layer: str, tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    folder = tmp_path / "new" / "out"
    found = document(
        "run", layer, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", str(folder)
    )
    y, total = found["outputs"]
    assert (y["name"], y["dtype"], y["shape"]) == ("head/y", "float32", [3, 5])
    assert y["max"] == pytest.approx(reference(x).max(), rel=1e-5)
    assert total["mean"] == pytest.approx(reference(x).sum(1).mean(), rel=1e-5)
    assert found["inputs"] == {"x": [3, 8]}
    assert min(found["compile_s"], found["first_s"], found["again_s"]) > 0
    assert sorted(p.name for p in folder.iterdir()) == ["head%2Fy.npy", "total.npy"]
    np.testing.assert_allclose(np.load(y["file"]), reference(x), rtol=1e-5, atol=1e-6)


def test_run_on_random_inputs(layer: str, lookup: str) -> None:
    shown = run("run", layer, "--shape", "x=7x8")
    assert shown.exit_code == 0, shown.stderr
    for part in ("head/y", "float32", "7x5", "first call", "1 thread"):
        assert part in shown.stdout
    (y,) = document("run", lookup, "--shape", "ids=9", "--threads", "1")["outputs"]
    assert y["shape"] == [9, 5]
    first, second = (document("run", layer, "--shape", "x=2x8") for _ in range(2))
    assert first["outputs"] == second["outputs"], "the seed is fixed"


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """Rows after those of a past, and their sum."""
    model = parsed("""(float[batch, rows, 4] past, float[batch, more, 4] new) => (total, present)
            <int64[1] axes = {1}> {
        present = Concat<axis=1>(past, new)
        total = ReduceSum<keepdims=0>(present, axes)
    }""")
    return saved(model, tmp_path / "decoder.onnx")


SHAPES = ("--shape", "past=2x5x4,new=2x1x4")


def test_run_appends_in_place(decoder: str, layer: str) -> None:
    found = document("run", decoder, *SHAPES, "--append-in-place")
    assert found["appended"] == {"past": "present"}
    copied = document("run", decoder, *SHAPES)
    assert copied["appended"] == {}
    assert "append_in_place" in copied["copied"]["past"]
    assert found["outputs"] == copied["outputs"]
    shown = run("run", decoder, *SHAPES, "--append-in-place").stdout
    assert "appended in place: present to past" in shown
    assert "appended" not in run("run", decoder, *SHAPES).stdout
    shown = run("run", layer, "--shape", "x=7x8", "--append-in-place").stdout
    assert "appended in place: none" in shown


def test_compare_appends_in_place(decoder: str) -> None:
    pytest.importorskip("onnxruntime")
    found = document("compare", decoder, *SHAPES, "--append-in-place")
    assert [entry["name"] for entry in found["outputs"]] == ["total", "present"]
    assert found["within"]


def test_numbers_that_json_lacks(tmp_path: Path) -> None:
    model = parsed("(float[n] x) => (y) { y = Log(x) }")
    np.save(tmp_path / "x.npy", np.array([1.0, -1.0, 0.0], np.float32))
    arguments = (saved(model, tmp_path / "log.onnx"), "--input", f"x={tmp_path / 'x.npy'}")
    (y,) = document("run", *arguments)["outputs"]
    assert (y["min"], y["mean"], y["max"]) == (None, None, None)
    assert run("run", *arguments).exit_code == 0


@pytest.mark.parametrize("command", [("explain", "model"), ("explain",)])
def test_explain(layer: str, command: tuple[str, ...]) -> None:
    result = run(*command, layer)
    assert result.exit_code == 0, result.stderr
    for part in ("4 nodes", "fused group", "product", "matmul + add", "batch", "weights:"):
        assert part in result.stdout
    assert "measured" not in result.stdout
    found = document(*command, layer)
    assert found["nodes"] == 4
    assert found["groups"][0]["shapes"] == "[batch, 8] @ [8, 5] -> [batch, 5]"
    assert found["groups"][0]["estimate_s"] is None
    assert found["extents"] == {}


def test_explain_with_extents(layer: str) -> None:
    result = run("explain", layer, "--shape", "x=7x8")
    assert result.exit_code == 0, result.stderr
    for part in ("x=7x8", "estimate", "measured", "[7, 8] @ [8, 5]", "median of", "ratio", "arena",
                 "workspace", "roofline", "flop"):  # fmt: skip
        assert part in " ".join(result.stdout.split())
    found = document("explain", layer, "--shape", "x=7x8")
    first = found["groups"][0]
    assert (first["number"], first["kind"]) == (1, "product")
    assert first["shapes"] == "[7, 8] @ [8, 5] -> [7, 5]"
    assert first["reads_bytes"] == 4 * (7 * 8 + 8 * 5 + 5)
    for group in found["groups"]:
        assert min(group["measured_s"], group["estimate_s"], group["flops"]) > 0
        assert group["plan"]
    for name in ("measured_s", "estimate_s", "flops"):
        assert found[name] == pytest.approx(sum(group[name] for group in found["groups"]))
    memory = found["memory"]
    assert memory["outputs_bytes"] == 4 * (7 * 5 + 7)
    assert memory["weights_bytes"] >= WEIGHT.nbytes + BIAS.nbytes
    assert found["roofline"]["predicted_flops_per_s"] > 0
    assert found["extents"] == {"batch": 7}
    assert isinstance(found["live_bytes"], int)
    assert found["measured"]["runs"] >= 5
    assert found["measured"]["median_s"] >= found["measured"]["least_s"] > 0


def test_explain_says_what_the_model_does(layer: str) -> None:
    """The command and `Model.explain` are one explanation."""
    found = document("explain", layer, "--shape", "x=7x8")
    same = ftuner.load(layer).explain(x=(7, 8)).to_document()
    assert found["estimate_s"] == same["estimate_s"]
    assert [g["plan"] for g in found["groups"]] == [g["plan"] for g in same["groups"]]


@pytest.fixture
def late(tmp_path: Path) -> str:
    """Sums along axes that are an input, and random numbers."""
    model = parsed("""(float[rows, 4] x, int64[1] axes) => (y) {
        noise = RandomNormalLike(x)
        noisy = Add(x, noise)
        y = ReduceSum<keepdims=0>(noisy, axes)
    }""")
    return saved(model, tmp_path / "late.onnx")


def test_models_that_are_made_late_have_all_commands(late: str) -> None:
    (y,) = document("run", late, "--shape", "x=3x4")["outputs"]
    assert y["shape"] in ([3], [4])
    assert document("explain", late, "--shape", "x=3x4")["estimate_s"] > 0
    assert document("explain", late, "--before")["inputs"][0] == "x: float32[rows, 4]"
    assert document("bench", late, "--shapes", "x=3x4", "--peers", "")["results"]
    result = run("explain", late)
    assert result.exit_code == 1
    assert "--shape" in result.stderr


def test_explain_saves_a_page(layer: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    result = run("explain", layer, "--shape", "x=7x8", "--save", str(path))
    assert result.exit_code == 0, result.stderr
    assert f"written to {path}" in result.stdout
    page = path.read_text(encoding="utf-8")
    found = document("explain", layer, "--shape", "x=7x8", "--save", str(path))
    for group in found["groups"]:
        assert f'id="step-{group["number"]}"' in page
        assert group["title"] in page
    for part in ("x=7x8", "median of", "Roofline", "Memory"):
        assert part in page


def test_explain_before(layer: str) -> None:
    shown = run("explain", layer, "--before").stdout
    assert "input x: float32[batch, 8]" in shown
    assert "head/y = Relu(sum)" in shown
    found = document("explain", layer, "--before")
    assert [node.split(" = ")[1].split("(")[0] for node in found["nodes"]] == [
        "MatMul",
        "Add",
        "Relu",
        "ReduceSum",
    ]
    assert found["outputs"] == ["head/y", "total"]


def test_gemm_is_still_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemm").write_bytes(b"a file of that name")
    assert document("explain", "gemm", "--m", "3", "--n", "5", "--k", "7")["workers"] == 1


def test_compare(layer: str, lookup: str) -> None:
    pytest.importorskip("onnxruntime")
    found = document("compare", layer, "--shape", "x=7x8")
    assert found["within"]
    assert [entry["name"] for entry in found["outputs"]] == ["head/y", "total"]
    assert all(entry["absolute"] < 1e-4 for entry in found["outputs"])
    assert document("compare", lookup, "--shape", "ids=3")["outputs"][0]["absolute"] == 0.0
    shown = run("compare", layer, "--shape", "x=2x8")
    assert shown.exit_code == 0
    assert "yes" in shown.stdout


def test_compare_finds_differences(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    engine = ONNX_ENGINES["onnxruntime"]

    def wrong(path: Path, threads: int, outputs: Outputs) -> BindAll:
        bind = engine.prepare(path, threads, outputs)
        return lambda feeds: lambda: [x + 1 for x in bind(feeds)()]

    monkeypatch.setitem(ONNX_ENGINES, "onnxruntime", engine._replace(prepare=wrong))
    found = document("compare", layer, "--shape", "x=7x8", exit_code=1)
    assert not found["within"]
    assert found["outputs"][0]["absolute"] == pytest.approx(1.0, rel=1e-3)
    assert run("compare", layer, "--shape", "x=7x8").exit_code == 1
    generous = document("compare", layer, "--shape", "x=7x8", "--atol", "2")
    assert generous["within"]


@pytest.fixture
def samples(tmp_path: Path) -> str:
    folder = tmp_path / "samples"
    folder.mkdir()
    for rows in (3, 5):
        np.savez(folder / f"{rows}.npz", x=RNG.standard_normal((rows, 8)).astype(np.float32))
    return str(folder)


def test_quantize_and_what_it_costs(layer: str, samples: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    target = str(tmp_path / "out.onnx")
    found = document("quantize", layer, "--samples", samples, "-o", target)
    assert found == {"model": layer, "file": target, "layers": ["product"], "left": {}}
    by_samples = ("--against", layer, "--samples", samples, "--layers", "3", "--atol", "0.2")
    result = document("compare", target, *by_samples)
    assert [entry["name"] for entry in result["outputs"]] == ["head/y", "total"]
    assert all(1e-4 < entry["norm"] < 0.05 for entry in result["outputs"])
    (lost,) = result["layers"]
    assert lost["name"] == "product"
    assert lost["before"] == 0 < 1e-4 < lost["after"] < 0.05
    assert "product" in run("compare", target, *by_samples).stdout
    # One file of samples; the layer is kept.
    one = str(Path(samples) / "3.npz")
    kept = run("quantize", layer, "--samples", one, "-o", target, "--keep", "product")
    assert kept.exit_code == 1
    assert "product: kept" in kept.stderr


def test_layers_that_lose_nothing(layer: str, samples: str) -> None:
    pytest.importorskip("onnxruntime")
    found = document("compare", layer, "--samples", samples, "--layers", "1")
    (lost,) = found["layers"]
    assert lost["after"] < 1e-6


def test_samples_that_are_none(layer: str, lookup: str, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("text")
    np.save(tmp_path / "one.npy", WEIGHT)
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("text.npz", "not a .npz file"), ("one.npy", "one array"), ("empty", "no .npz file"),
        ("missing.npz", "cannot read"),
    ):  # fmt: skip
        result = run("compare", layer, "--samples", str(tmp_path / name))
        assert result.exit_code == 1
        assert message in result.stderr
    both = run("compare", layer, "--samples", "x.npz", "--shape", "x=3x8")
    assert both.exit_code == EXIT_USAGE
    other = run("compare", layer, "--against", lookup, "--shape", "x=3x8")
    assert other.exit_code == EXIT_USAGE
    assert "has the outputs" in other.stderr


def test_compare_needs_the_reference(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = OnnxEngine(("no_such_module",), ONNX_ENGINES[SUBJECT].prepare)
    monkeypatch.setitem(ONNX_ENGINES, "onnxruntime", missing)
    result = run("compare", layer, "--shape", "x=7x8")
    assert result.exit_code == EXIT_USAGE
    assert "pip install" in result.stderr


@pytest.mark.parametrize("command", [("bench", "model"), ("bench",)])
def test_bench_without_peers(layer: str, command: tuple[str, ...]) -> None:
    arguments = ("--shapes", "x=3x8", "--shapes", "x=5x8", "--peers", "", "--threads", "1")
    found = document(*command, layer, *arguments)
    assert [r["shapes"] for r in found["results"]] == [{"x": [3, 8]}, {"x": [5, 8]}]
    for result in found["results"]:
        assert result["seconds"]["ftuner"]["median"] >= result["seconds"]["ftuner"]["least"] > 0
        assert (result["ratios"], result["best_peer"]) == ({}, None)
    assert (found["threads"], found["geomean_of_best"]) == (1, None)


def test_bench_says_which_shapes_it_needs(layer: str) -> None:
    result = run("bench", layer, "--peers", "")
    assert result.exit_code == 1
    assert "give them, such as --shapes x=1x8" in result.stderr
    assert run("bench", layer, "--peers", "", "--shape", "x=3x8").exit_code == 0


@pytest.mark.parametrize("name", PEERS)
def test_bench_with_a_peer(layer: str, name: str) -> None:
    pytest.importorskip(name)
    arguments = ("bench", layer, "--shapes", "x=3x8", "--peers", name)
    found = document(*arguments)
    (result,) = found["results"]
    assert (found["failed"], result["failed"], result["differs"]) == ({}, {}, [])
    assert result["best_peer"] == name
    assert found["geomean"][name] == pytest.approx(found["geomean_of_best"])
    shown = run(*arguments)
    assert shown.exit_code == 0
    for part in ("x=3x8", "ftuner", name, "geometric mean", "the best peer"):
        assert part in shown.stdout


def test_peers_that_fail_or_differ(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(path: Path, threads: int, outputs: Outputs) -> BindAll:
        own = ONNX_ENGINES[SUBJECT].prepare(path, threads, outputs)
        return lambda feeds: lambda: [x + 1 for x in own(feeds)()]

    def unable(path: Path, threads: int, outputs: Outputs) -> BindAll:
        def call() -> list[Any]:
            raise RuntimeError("no\nsuch kernel")

        return lambda feeds: call

    def broken(path: Path, threads: int, outputs: Outputs) -> BindAll:
        raise OSError("no library")

    made = {"differing": differing, "unable": unable, "broken": broken}
    for name, prepare in made.items():
        monkeypatch.setitem(ONNX_ENGINES, name, OnnxEngine((), prepare))
    monkeypatch.setattr(measuring, "version_of", lambda name: "1")
    request: Request = {
        "cases": [],
        "model": layer,
        "sets": [{"x": [3, 8]}],
        "engines": [SUBJECT, *made],
        "threads": 1,
    }
    found = measure(request)
    (result,) = found["results"]
    assert found["failed"] == {"broken": "OSError: no library"}
    assert result["failed"] == {"unable": "RuntimeError: no such kernel"}
    assert result["differs"] == ["differing"]
    assert set(result["seconds"]) == {SUBJECT, "differing"}
    assert json.dumps(found)


def test_errors_of_the_measuring_process_keep_their_names() -> None:
    request: Request = {
        "cases": [], "model": "missing.onnx", "sets": [], "engines": [SUBJECT], "threads": 1
    }  # fmt: skip
    with pytest.raises(GraphError, match=r"missing\.onnx"):
        measured(request, Contest((), (), 1))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("run", "missing.onnx"), "MissingFileError"),
        (("explain", "missing.onnx"), "MissingFileError"),
        (("bench", "missing.onnx"), "MissingFileError"),
        (("compare", "missing.onnx"), "MissingFileError"),
        (("run", "MODEL"), "InputError"),
        (("run", "MODEL", "--shape", "y=3"), "InputError"),
        (("run", "MODEL", "--shape", "x=3*8"), "ConfigurationError"),
        (("run", "MODEL", "--shape", "x=3x9"), "ShapeError"),
        (("run", "MODEL", "--shape", "x=3"), "InputError"),
        (("run", "MODEL", "--input", "x"), "ConfigurationError"),
        (("run", "MODEL", "--input", "x=missing.npy"), "InputError"),
        (("run", "MODEL", "--shape", "x=3x8", "--output-dir", "MODEL"), "ConfigurationError"),
        (("explain", "MODEL", "--shape", "x=3x"), "ConfigurationError"),
        (("explain", "MODEL", "--shape", "x=3x8", "--before"), "ConfigurationError"),
        (("explain", "MODEL", "--save", "plan.html", "--before"), "ConfigurationError"),
        (("explain", "MODEL", "--save", "plan.svg"), "ConfigurationError"),
        (("bench", "MODEL"), "InputError"),
        (("bench", "MODEL", "--shapes", "x=3x8", "--peers", "nope"), "ConfigurationError"),
        (("bench", "MODEL", "--shapes", "x"), "ConfigurationError"),
        (("compare", "MODEL", "--shape", "x"), "ConfigurationError"),
    ],
)
def test_named_errors(
    layer: str, arguments: tuple[str, ...], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ONNX_ENGINES, "onnxruntime", OnnxEngine((), ONNX_ENGINES[SUBJECT].prepare))
    result = run(*(layer if a == "MODEL" else a for a in arguments))
    assert result.exit_code == exit_code_of(error)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"ftuner: {error}: ")


@pytest.mark.parametrize("arguments", [("run",), ("explain", "model"), ("compare", "--rtol", "-1")])
def test_bad_options(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_repeated_layers_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    layers = "\n".join(
        f"p{i} = MatMul(l{i}, weight) l{i + 1} = LayerNormalization<axis=-1>(p{i}, scale)"
        for i in range(4)
    )
    weight = RNG.standard_normal((8, 8)).astype(np.float32)
    text = f"(float[batch, 8] l0) => (l4) {{ {layers} }}"
    model = parsed(text, weight=weight, scale=np.ones(8, np.float32))
    path = saved(model, tmp_path / "layers.onnx")
    steps = len(document("explain", path)["groups"])
    for options in ((), ("--shape", "l0=7x8")):
        shown = run("explain", path, *options).stdout
        assert shown.count("product: matmul") == 1, shown
        assert "times" in shown
        assert max(map(len, shown.splitlines())) <= 80
        every = run("explain", path, *options, "--all").stdout
        assert every.count("product: matmul") == 4
        assert len(document("explain", path, *options, "--all")["groups"]) == steps


def test_save(layer: str, tmp_path: Path) -> None:
    target = str(tmp_path / "layer.ftuner")
    found = document("save", layer, "-o", target)
    assert found["file"] == target
    assert found["bytes"] == Path(target).stat().st_size
    own, again = (document("run", path, "--shape", "x=7x8") for path in (layer, target))
    assert own["outputs"] == again["outputs"]
    assert document("explain", "model", target)["nodes"] is None
    measured = document("explain", "model", target, "--shape", "x=7x8")
    assert measured["measured"]["runs"] > 0
    assert "layer.ftuner" in run("explain", "model", target).output
    assert "nodes of an ONNX file" in run("explain", "model", target, "--before").output
    assert run("save", layer, "-o", str(tmp_path / "layer.bin")).exit_code == EXIT_USAGE
    assert run("save", layer, "-o", target, "--isa", "avx1024").exit_code == EXIT_USAGE
