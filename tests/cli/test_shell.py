"""The command line as a shell runs it: start, completion, errors, interrupts, widths, colours."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.child import printed
from tests.cli.invoking import run

import ftuner
from ftuner.cli.main import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE

FTUNER = (sys.executable, "-m", "ftuner")
HEAVY = {"numpy", "llvmlite", "matplotlib", "torch", "triton", "onnx", "onnxruntime", "openvino"}
COMMANDS = (
    (), ("tune",), ("tune", "--no-calibration"), ("doctor",), ("hardware",), ("cache",),
    ("report",), ("explain",), ("explain", "gemm"), ("explain", "model"), ("bench",),
    ("bench", "gemm"), ("bench", "bmm"), ("bench", "model"), ("run",), ("save",), ("quantize",),
    ("compare",), ("demo",),
)  # fmt: skip
PLAN = ("explain", "gemm", "77", "768", "768", "--hardware", "epyc-milan-2")


def shell(
    *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python -m ftuner` prints into pipes."""
    return subprocess.run(
        [*FTUNER, *arguments], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


def test_module() -> None:
    assert shell("--version").stdout == f"ftuner {ftuner.__version__}\n"
    assert shell("explain", "gemm", "--help").stdout.startswith("Usage: ftuner explain gemm ")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain words: no type of a flag, no second form of one, and no text beyond 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "<bool>" not in result.stdout
    assert "/ --no-" not in result.stdout
    assert "/--no-" not in result.stdout
    assert "--help" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("group", [(), ("explain",), ("bench",)], ids=" ".join)
def test_a_group_alone_shows_its_help(group: tuple[str, ...]) -> None:
    shown = run(*group)
    assert shown.exit_code == 0
    assert shown.stdout == run(*group, "--help").stdout
    assert "..." not in shown.stdout.split("Commands:")[1], "a short help that was cut"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*FTUNER, *PLAN], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
            check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        EXIT_FAILURE,
        "ftuner: the output: No space left on device\n",
    )


def test_a_terminal_without_unicode_shows_tables() -> None:
    done = shell(
        "hardware", "--name", "epyc-milan-2", "--all",
        environment={"PYTHONIOENCODING": "ascii", "COLUMNS": "40"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "epyc-milan-2" in done.stdout


@pytest.mark.parametrize("arguments", ["'--help'", "'cache'", "'explain', 'gemm', '--help'"])
def test_start_is_light(arguments: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom ftuner.cli.main import app\n"
        f"try: app([{arguments}])\nexcept SystemExit: print('loaded', *sys.modules)"
    )
    environment = {**os.environ, "FTUNER_CACHE_DIR": str(tmp_path)}
    done = printed("-c", code, env=environment)
    assert not HEAVY & set(done.split("loaded ")[1].split())


def test_completion_scripts() -> None:
    for name in ("bash", "zsh"):
        script = shell(environment={"_FTUNER_COMPLETE": f"source_{name}"})
        assert script.returncode == 0, script.stderr
        assert f"_FTUNER_COMPLETE=complete_{name}" in script.stdout
        assert "ftuner" in script.stdout


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_completion_is_shown_and_installed(name: str, tmp_path: Path) -> None:
    """For the shell that runs the command."""
    program = _shell_named(name)
    environment = {**os.environ, "HOME": str(tmp_path)}
    for option, said in (
        ("--show-completion", f"_FTUNER_COMPLETE=complete_{name}"),
        ("--install-completion", "completion installed in"),
    ):
        done = subprocess.run(
            [program, "-c", f'"{sys.executable}" -m ftuner {option}; true'],
            capture_output=True, text=True, check=True, env=environment,
        )  # fmt: skip
        assert said in done.stdout, done.stderr
    kept = [path for path in tmp_path.rglob("*ftuner*") if path.is_file()]
    assert f"_FTUNER_COMPLETE=complete_{name}" in kept[0].read_text()


def _shell_named(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    return program


def test_bash_completes(tmp_path: Path) -> None:
    """The script that typer makes, in bash, with a program named ftuner."""
    bash = _shell_named("bash")
    program = tmp_path / "ftuner"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ftuner "$@"\n')
    program.chmod(0o755)
    script = shell(environment={"_FTUNER_COMPLETE": "source_bash"}).stdout
    asked = (
        f"{script}\n"
        "COMP_WORDS=(ftuner expl); COMP_CWORD=1\n"
        '_ftuner_completion ftuner; echo "${COMPREPLY[@]}"\n'
        "COMP_WORDS=(ftuner explain gemm --hardware epyc); COMP_CWORD=4\n"
        '_ftuner_completion ftuner; echo "${COMPREPLY[@]}"\n'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": path})  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first == "explain"
    assert second == "epyc-milan-2"


def test_zsh_completes() -> None:
    environment = {"_FTUNER_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "ftuner expl"}
    assert '"explain"' in shell(environment=environment).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nope",), EXIT_USAGE, "UsageError: No such command 'nope'; see ftuner --help"),
        (("cache", "--nope"), EXIT_USAGE, "UsageError: No such option: --nope"),
        (("run",), EXIT_USAGE, "UsageError: Missing argument 'MODEL'; see ftuner run --help"),
        (("tune", "--dtype", "int8"), EXIT_USAGE, "DTypeError: dtype is 'int8'"),
        (("tune", "--device", "tpu"), EXIT_USAGE, "ConfigurationError: device is 'tpu'"),
        (("tune", "--from", __file__), EXIT_FAILURE, f"HardwareError: {__file__} is not a machine"),
        (("explain", "/"), EXIT_FAILURE, "ParseError: cannot read /: it is a folder"),
        (("run", "nope.onnx"), EXIT_FAILURE, "MissingFileError: cannot read nope.onnx"),
        (("bench", "gemm", "--peers", "nope"), EXIT_USAGE, "ConfigurationError: unknown peers"),
    ],
)
def test_an_error_is_one_line(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = shell(*arguments)
    (line,) = done.stderr.splitlines()
    assert said in line
    assert line.startswith("ftuner: ")
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_one_line() -> None:
    """While a command works, here in a check that takes long."""
    code = (
        "import ftuner.cli.doctor as d, ftuner.cli.checks as c, time\n"
        "c.checked = lambda: (print('ready', flush=True), time.sleep(60))\n"
        "from ftuner.cli.main import app\napp(['doctor'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert error == "ftuner: interrupted\n"
    assert process.returncode == EXIT_INTERRUPTED


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of child processes")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_bench_ends_its_process() -> None:
    """Ctrl-C reaches all processes of the terminal's group; one of them says so."""
    process = subprocess.Popen(
        [*FTUNER, "bench", "gemm", "--peers", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while not (measuring := children.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # An interrupt while Python starts the process would leave it unknown to the one that waits.
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out, error) == (EXIT_INTERRUPTED, "", "ftuner: interrupted\n")
    assert not any(Path(f"/proc/{child}").exists() for child in measuring)


def test_80_columns() -> None:
    for environment in ({"COLUMNS": "80"}, {"COLUMNS": "80", "NO_COLOR": "1"}):
        done = shell(*PLAN, environment=environment)
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert "\x1b" not in done.stdout
        assert "aaaa" in done.stdout, "letters where there are no colours"


def test_pictures_have_letters_without_colours() -> None:
    for machine in ("epyc-milan-2", "h200"):
        plan = (*PLAN[:-1], machine)
        terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}
        coloured = shell(*plan, environment=terminal).stdout
        assert "\x1b[30;48" in coloured
        assert "aaaa" not in coloured
        plain = shell(*plan, environment={**terminal, "NO_COLOR": "1"}).stdout
        assert "aaaa" in plain
        assert "48;" not in plain
