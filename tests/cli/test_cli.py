"""The command line, in this process, with a cache of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import ftuner
from ftuner.cli.main import EXIT_NAMED_ERROR, app
from ftuner.cli.measure import Case, is_right, operands_of, time_calls
from ftuner.cli.peers import ENGINES
from ftuner.hardware.recorded import recorded_names
from ftuner.runtime.session import default_session, read_system

MACHINE = "epyc-milan-2"
SHAPE = ("--m", "77", "--n", "770", "--k", "768", "--hardware", MACHINE)
BASE_ISA = {"x86_64": "sse2", "aarch64": "neon"}


@pytest.fixture(scope="module")
def warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this file share, so that the machine is probed once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_session(warm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(warm_folder))
    monkeypatch.setenv("FTUNER_ISA", BASE_ISA[read_system().architecture])
    monkeypatch.setenv("FTUNER_NUM_THREADS", "1")
    default_session.cache_clear()
    yield
    default_session.cache_clear()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    """What a command prints with --json, which is all that it prints."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"ftuner {ftuner.__version__}"
    for command in (
        (),
        ("hardware",),
        ("tune",),
        ("explain", "gemm"),
        ("bench", "bmm"),
        ("cache",),
    ):
        result = run(*command, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.stdout


def test_help_needs_neither_compiler_nor_plots() -> None:
    code = "import sys, ftuner.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"llvmlite", "matplotlib", "torch", "onnxruntime", "openvino"}


def test_hardware_recorded() -> None:
    assert run("hardware", "--list").stdout.split() == list(recorded_names())
    assert document("hardware", "--list") == {"recorded": list(recorded_names())}
    assert document("hardware", "--name", MACHINE)["name"] == MACHINE
    assert "datasheet" in run("hardware", "--name", "a100-sxm-80gb").stdout


def test_hardware_here() -> None:
    found = document("hardware")
    assert found["kind"] == "cpu"
    assert document("hardware")["clock_hz"] == found["clock_hz"], "the second comes from the cache"
    assert found["model_name"] in " ".join(run("hardware").stdout.split())


def test_tune_then_cache() -> None:
    first = document("tune")
    assert first["compiled"] + first["cached"] > 0
    assert first["funnel"]["kept"]
    default_session.cache_clear()
    second = document("tune")
    assert (second["compiled"], second["cached"]) == (0, first["compiled"] + first["cached"])
    default_session.cache_clear()
    shown = run("tune")
    assert "enumerated" in shown.stdout
    assert "nothing to compile" in shown.stdout
    assert f"{second['cached']} already in the cache" in shown.stdout
    kinds = document("cache")["kinds"]
    assert kinds["objects"]["entries"] >= second["cached"]
    assert "objects" in run("cache").stdout


def test_cache_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(tmp_path))
    assert "empty" in run("cache").stdout
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "one").write_bytes(b"abc")
    assert document("cache")["kinds"] == {"objects": {"entries": 1, "bytes": 3}}
    assert document("cache", "--clear") == {"folder": str(tmp_path), "removed": 1}
    assert "0 entries removed" in run("cache", "--clear").stdout


def test_explain() -> None:
    result = run("explain", "gemm", *SHAPE)
    assert result.exit_code == 0, result.stderr
    for part in (
        "uKernel",
        "panels of",
        "w0",
        "estimate, bound by",
        "roofline at",
        "wasted: 0 rows",
    ):
        assert part in result.stdout
    found = document("explain", "gemm", *SHAPE, "--workers", "1", "--isa", "sse2", "--batch", "3")
    assert (found["hardware"], found["isa"], found["workers"]) == (MACHINE, "sse2", 1)
    assert found["contraction"]["batch"] == 3
    assert document("explain", "gemm", "--m", "3", "--n", "5", "--k", "7")["workers"] == 1


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_explain_saves(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"plan.{suffix}"
    assert document("explain", "gemm", *SHAPE, "--save", str(target))["hardware"] == MACHINE
    assert target.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("hardware", "--name", "nope"), "HardwareError"),
        (("tune", "--dtype", "int8"), "DTypeError"),
        (("tune", "--isa", "avx9"), "HardwareError"),
        (("tune", "--activation", "nope"), "ExpressionError"),
        (("explain", "gemm", *SHAPE[:-1], "h200"), "HardwareError"),
        (("explain", "gemm", *SHAPE, "--dtype", "int8"), "DTypeError"),
        (("explain", "gemm", *SHAPE, "--workers", "99"), "ConfigurationError"),
        (("explain", "gemm", *SHAPE, "--save", "plan.gif"), "ConfigurationError"),
        (("bench", "gemm", "--peers", "numpy,nope"), "ConfigurationError"),
    ],
)
def test_named_errors(arguments: tuple[str, ...], error: str) -> None:
    result = run(*arguments, "--json")
    assert result.exit_code == EXIT_NAMED_ERROR
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"ftuner: {error}: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "gemm", "--m", "1"),
        ("explain", "gemm", "--m", "0", "--n", "1", "--k", "1"),
        ("hardware", "--list", "--probe"),
        ("bench", "bmm", "--m", "3"),
        ("nope",),
    ],
)
def test_bad_options(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_bench() -> None:
    found = document("bench", "gemm", "--m", "3", "--n", "9", "--k", "8", "--peers", "numpy")
    (result,) = found["results"]
    assert result["wrong"] == []
    assert set(result["seconds"]) == {"ftuner", "numpy"}
    assert result["ratios"]["numpy"] > 0
    assert found["threads"] == 1


@pytest.mark.parametrize("name", list(ENGINES))
@pytest.mark.parametrize("kind", ["gemm", "bmm"])
def test_engines_are_right(name: str, kind: str) -> None:
    engine = ENGINES[name]
    if not engine.available():
        pytest.skip(f"{name} is not installed")
    for m in (1, 5):
        case = Case(kind=kind, batch=2, m=m, n=7, k=9)
        operands = operands_of(case)
        call = engine.prepare(operands, 1)
        assert is_right(call(), operands)
        assert not is_right(call() + 1, operands)


def test_time_calls_interleaves() -> None:
    order: list[str] = []

    def call(name: str) -> Any:
        return lambda: order.append(name)

    least = time_calls({"one": call("one"), "two": call("two")}, settle_s=0.0)
    assert set(least) == {"one", "two"}
    switches = sum(a != b for a, b in pairwise(order))
    assert switches > 8
