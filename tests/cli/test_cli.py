"""The command line, in this process, with a cache of its own."""

from pathlib import Path

import pytest
import typer
from tests.cli.invoking import document, exit_code_of, run
from typer.testing import CliRunner

from ftuner.cli.cache import cache
from ftuner.cli.main import EXIT_USAGE, OneLineErrors
from ftuner.cli.routing import COMMANDS, add_commands, tool
from ftuner.hardware.recorded import recorded_names
from ftuner.runtime.cpu.backend import default_backend
from ftuner_tools.bench import PEERS
from ftuner_tools.engines import ENGINES
from ftuner_tools.measuring import Case, is_right, prepared

MACHINE = "epyc-milan-2"
SHAPE = ("--m", "77", "--n", "770", "--k", "768", "--hardware", MACHINE)


def test_hardware_recorded() -> None:
    assert run("hardware", "--list").stdout.split() == list(recorded_names())
    assert document("hardware", "--list") == {"recorded": list(recorded_names())}
    assert document("hardware", "--name", MACHINE)["name"] == MACHINE
    assert "datasheet" in run("hardware", "--name", "a100-sxm-80gb", "--all").stdout


@pytest.mark.parametrize("name", recorded_names())
def test_hardware_is_one_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("hardware", "--name", name).stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("--all shows every value")


def test_hardware_here() -> None:
    found = document("hardware")
    assert found["kind"] == "cpu"
    assert document("hardware")["clock_hz"] == found["clock_hz"], "the second comes from the cache"
    # A long name takes several lines of its cell.
    assert set(found["model_name"].split()) <= set(run("hardware", "--all").stdout.split())


def test_tune_then_cache() -> None:
    first = document("tune", "--no-calibration")
    assert first["compiled"] + first["cached"] > 0
    assert first["funnel"]["kept"]
    default_backend.cache_clear()
    second = document("tune", "--no-calibration")
    assert (second["compiled"], second["cached"]) == (0, first["compiled"] + first["cached"])
    default_backend.cache_clear()
    shown = run("tune", "--no-calibration")
    assert len(shown.stdout.splitlines()) <= 24
    assert "tiles kept for float32" in shown.stdout
    assert "nothing to compile" in shown.stdout
    assert f"{second['cached']} already in the cache" in shown.stdout
    assert "enumerated" in run("tune", "--no-calibration", "--all").stdout
    kinds = document("cache")["kinds"]
    assert kinds["objects"]["entries"] >= second["cached"]
    assert "objects" in run("cache").stdout


def test_a_device_that_is_not_there() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    for command in ("tune", "hardware"):
        for device in ("gpu", "meta", "cuda:99"):
            result = run(command, "--device", device)
            assert result.exit_code == EXIT_USAGE
            assert f"ConfigurationError: device is '{device}'" in result.stderr
    given = run("tune", "--device", "cuda", "--isa", "avx2")
    assert "--isa and --from are options of the CPU" in given.stderr


def test_efforts_exclude_each_other() -> None:
    given = run("tune", "--thorough", "--no-calibration")
    assert "exclude each other" in given.stderr


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


def test_explain_on_a_gpu(tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    shape = (*SHAPE[:-1], "h200", "--dtype", "bfloat16")
    result = run("explain", "gemm", *shape, "--save", str(target))
    assert result.exit_code == 0, result.stderr
    for part in ("multiplied as bfloat16", "tiles enumerated", "wave   1", "estimate, bound by",
                 "roofline at", "computed and thrown away", f"drawn to {target}"):  # fmt: skip
        assert part in result.stdout
    assert target.stat().st_size > 1000
    found = document("explain", "gemm", *shape, "--batch", "3")
    assert (found["hardware"], found["contraction"]["batch"]) == ("h200", 3)
    assert document("explain", "gemm", *shape[:-1], "tf32")["contraction"]["multiply"] == "tf32"


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
        (("explain", "gemm", *SHAPE[:-1], "h200", "--dtype", "float64"), "DTypeError"),
        (("explain", "gemm", *SHAPE[:-1], "v100", "--dtype", "bfloat16"), "HardwareError"),
        (("explain", "gemm", *SHAPE[:-1], "h200", "--isa", "avx2"), "ConfigurationError"),
        (("explain", "gemm", *SHAPE, "--dtype", "int8"), "DTypeError"),
        (("explain", "gemm", *SHAPE, "--workers", "99"), "ConfigurationError"),
        (("explain", "gemm", *SHAPE, "--save", "plan.gif"), "ConfigurationError"),
        (("bench", "gemm", "--peers", "numpy,nope"), "ConfigurationError"),
    ],
)
def test_named_errors(arguments: tuple[str, ...], error: str) -> None:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code_of(error)
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


@pytest.mark.parametrize("name", ["ftuner", *PEERS])
@pytest.mark.parametrize("kind", ["gemm", "bmm"])
def test_engines_are_right(name: str, kind: str) -> None:
    if not ENGINES[name]().available():
        pytest.skip(f"{name} is not installed")
    for m in (1, 5):
        case = Case(kind=kind, batch=2, m=m, n=7, k=9)
        calls, operands = prepared(case, [name], 1)
        assert is_right(calls[name], operands)
        assert not is_right(lambda calls=calls: calls[name]() + 1, operands)  # type: ignore[misc]


def test_without_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of their commands, and their option, say how to get them; help does not list them."""
    monkeypatch.setattr("ftuner.cli.routing.find_spec", lambda name: None)
    app = typer.Typer(cls=OneLineErrors)
    app.command("cache")(cache)
    add_commands(app)
    for command in COMMANDS:
        for arguments in ((), ("--json", "x.onnx"), ("--help",)):
            result = CliRunner().invoke(app, [command, *arguments])
            assert (result.exit_code, result.stdout) == (EXIT_USAGE, "")
            (line,) = result.stderr.splitlines()
            assert line.startswith(
                f"ftuner: ConfigurationError: {command} is one of ftuner's tools; install them "
                "with: pip install ftuner-tools"
            )
    listed = CliRunner().invoke(app, ["--help"]).stdout
    assert "cache" in listed
    assert not [name for name in COMMANDS if name in listed]
    result = run("tune", "--ray", "local", "--out", "somewhere")
    assert result.exit_code == EXIT_USAGE
    assert "tune --ray is one of ftuner's tools" in result.stderr


def test_all_commands_of_the_tools_are_named() -> None:
    """For those who do not have the tools."""
    found = typer.Typer()
    tool("commands", "this test").add_to(found)
    assert set(typer.main.get_command(found).commands) == set(COMMANDS)  # type: ignore[attr-defined]
