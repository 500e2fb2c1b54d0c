"""Compiling processes: what they answer, every way in which they fail, and that none is left."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import HOST_ISAS
from tests.runtime.test_cache import small_bundles

from ftuner.codegen.llvm.objects.compile import compile_bundle
from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.codegen.llvm.objects.keys import COMPILER_MODULE
from ftuner.core.child_processes import VARIABLE, python_child
from ftuner.errors import CompileError
from ftuner.runtime import compile_processes as processes
from ftuner.runtime.cache import Cache
from ftuner.runtime.compile_processes import Request, Started, answers
from ftuner.runtime.cpu import compilation
from ftuner.runtime.cpu.compilation import Compiler

ROOT = Path(__file__).parents[2]
ANSWERING = "tests.runtime.answering"
SECONDS = 30.0


@pytest.fixture
def environment() -> dict[str, str]:
    """Where a compiling process finds the tests."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def requests(*wanted: tuple[str, str]) -> list[Request]:
    return [Request(f"part {i}", request) for i, request in enumerate(wanted)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_all_are_answered(environment: dict[str, str]) -> None:
    wanted = requests(*[("text", str(i)) for i in range(20)], ("prints", "it"), ("number", ""))
    found = dict(answers(ANSWERING, wanted, 3, environment))
    pid = int(found.pop(21))
    assert found == {i: b"it" if i == 20 else str(i).encode() for i in range(21)}
    assert not is_alive(pid)
    assert list(answers(ANSWERING, [], 3)) == []
    assert list(answers(ANSWERING, requests(("prepared", "")), 1, environment)) == [
        (0, b"before a request")
    ]


def test_compiling_needs_no_numpy(environment: dict[str, str]) -> None:
    """To import it would be half of the time that a process takes to start."""
    emitters = {bundle.emitter for bundle in small_bundles()}
    wanted = requests(*[("imports", name) for name in (COMPILER_MODULE, *emitters)])
    *_, (_, modules) = answers(ANSWERING, wanted, 1, environment)
    assert {COMPILER_MODULE, *emitters} <= set(modules.decode().split())
    assert "numpy" not in modules.decode().split()


@pytest.mark.parametrize("folder", ["plain", 'it\'s a "folder"'])
def test_processes_compile_the_same(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they are started, and whatever is there."""
    here = tmp_path / folder
    here.mkdir()
    for name in ("ftuner", "types", "pickle", "numpy", "llvmlite"):
        (here / f"{name}.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(here)
    target, bundles = host_target(HOST_ISAS[0]), small_bundles()
    wanted = [Request("it", (bundle, target)) for bundle in bundles]
    found = dict(answers(COMPILER_MODULE, wanted, 1))
    assert [found[i] for i in range(len(bundles))] == [compile_bundle(b, target) for b in bundles]


OUTSIDE = """
import tests.host_compiler
from importlib import import_module
from tests.conftest import HOST_ISAS
from tests.runtime.test_cache import small_bundles
from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.codegen.llvm.objects.keys import COMPILER_MODULE
from ftuner.runtime.compile_processes import usable_processes

assert usable_processes() == 1
compiler, target = import_module(COMPILER_MODULE), host_target(HOST_ISAS[0])
for bundle in small_bundles():
    print(compiler.compile_bundle(bundle, target).hex(), compiler.answer((bundle, target)).hex())
"""


def test_a_compiler_outside_of_an_emulator(environment: dict[str, str]) -> None:
    """It gives what the module that it stands for gives, by either function, and no compiling
    process is started beside it."""
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE], env={**environment, "HOST_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    wanted = [compile_bundle(b, host_target(HOST_ISAS[0])).hex() for b in small_bundles()]
    assert done.stdout.split() == [text for text in wanted for _ in range(2)], done.stderr


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("raises", "no such register"), r"part 1: OwnError: no such register"),
        (("raises", "\udcff"), r"part 1: OwnError: \?"),
        (("recurses", ""), r"part 1: RecursionError: maximum"),
        (("leaves", "for good"), r"part 1: SystemExit: for good"),
        (("interrupts", "now"), r"part 1: KeyboardInterrupt: now"),
        (("ends", ""), r"part 1: .*ended without an answer \(exit status 7\)"),
        (("killed", ""), r"part 1: .*ended without an answer \(exit status -9\)"),
        (("garbage", "Segmentation fault\n" * 9), r"part 1: .*answered b'Segmentation"),
        (("garbage", "ftuner\r\nright" + "\xff" * 99), r"part 1: .*answered b'right' of \d+ bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_failures_have_a_name_and_a_text(
    environment: dict[str, str], request_: tuple[str, str], message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(CompileError, match=message):
        list(answers(ANSWERING, requests(("text", "right"), request_), 1, environment))
    assert time.monotonic() - began < SECONDS


def test_modules_that_are_not_there(environment: dict[str, str]) -> None:
    with pytest.raises(CompileError, match=r"part 0: ModuleNotFoundError.*no_such_module"):
        list(answers("no_such_module", requests(("text", "")), 1, environment))


@pytest.mark.parametrize(
    ("request_", "message"),
    [(("hangs", ""), "longer than"), (("garbage", "ftun"), r"answered b'ftun'|longer than")],
)
def test_what_takes_too_long_is_given_up(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, request_: tuple[str, str],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(processes, "ANSWER_S", 0.5)
    monkeypatch.setattr(processes, "CHECKED_S", 0.1)
    began = time.monotonic()
    with pytest.raises(CompileError, match=message):
        list(answers(ANSWERING, requests(request_), 1, environment))
    assert time.monotonic() - began < SECONDS


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Makes `sys.executable` a script in the folder of a prefix; returns a file of its starts."""

    def make(name: str, text: str) -> Path:
        executable, starts = tmp_path / "bin" / name, tmp_path / "starts"
        executable.parent.mkdir()
        executable.write_text(f'#!/bin/sh\necho "$FTUNER_CHILD" >> {starts}\n{text}\n')
        executable.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(executable))
        monkeypatch.setattr(sys, "prefix", str(tmp_path))
        return starts

    return make


@pytest.mark.parametrize("text", ["exec sleep 600", "exit 1", "echo no Python here; sleep 600"])
def test_what_is_no_python(
    application: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, text: str,
) -> None:  # fmt: skip
    """The process that asked does all itself, and asks such a program once."""
    monkeypatch.setattr(processes, "HELLO_S", 1.0)
    monkeypatch.setattr(processes, "CHECKED_S", 0.1)
    starts = application("python3", text)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert list(answers(ANSWERING, requests(*[("text", "right")] * 3), 2)) == []
    assert "does not start as a compiling process" in caplog.text
    assert starts.read_text().split() == ["compile"] * 2
    Path(sys.executable).unlink()
    assert list(answers(ANSWERING, requests(("text", "right")), 2)) == []


def freeze(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "frozen", True, raising=False)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("application", lambda patch: None),
        ("pythonic", lambda patch: None),
        ("python3", freeze),
        ("python3", lambda patch: patch.setattr(sys.modules["__main__"], "__compiled__", 1, False)),
        ("python3", lambda patch: patch.setattr(sys, "prefix", sys.base_prefix)),
        ("python3", lambda patch: patch.setattr(sys, "executable", None)),
        ("python3", lambda patch: patch.setattr(sys, "executable", "")),
        ("python3", lambda patch: patch.setattr(sys, "executable", "python3")),
        ("python3", lambda patch: patch.setenv(VARIABLE, "compile")),
        ("python3", lambda patch: patch.setenv(VARIABLE, "measure compile")),
    ],
)
def test_programs_that_are_not_started(
    application: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, name: str,
    change: Callable[[pytest.MonkeyPatch], None],
) -> None:  # fmt: skip
    """Frozen ones, those around an embedded Python, and those that were themselves started."""
    starts = application(name, "exit 1")
    change(monkeypatch)
    assert list(answers(ANSWERING, requests(("text", "right")), 2)) == []
    assert not starts.exists()
    # Objects are compiled all the same.
    monkeypatch.setattr(compilation, "worthwhile_processes", processes.worthwhile_processes)
    bundles, target = small_bundles(), host_target(HOST_ISAS[0])
    found = Compiler(target, Cache(starts.parent), 1).compile_missing(bundles * 9, None)
    assert found.keys() == set(bundles)
    assert not starts.exists()


def test_a_measuring_process_may_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """But starts no measuring process."""
    child = python_child("measure")
    assert child is not None
    monkeypatch.setenv(VARIABLE, child.environment[VARIABLE])
    assert python_child("measure") is None
    child = python_child("compile")
    assert child is not None
    assert child.environment[VARIABLE].split() == ["measure", "compile"]


@pytest.mark.parametrize(
    ("options", "is_folder_there"),
    [([], True), (["-I"], False), (["-E", "-s"], True), (["-S"], True), (["-P"], False)],
)
def test_options_of_the_interpreter(
    tmp_path: Path, options: list[str], is_folder_there: bool
) -> None:
    """Processes find what the one that asked finds, wherever it was told to look, and whether or
    not the folder that it works in is there."""
    if options == ["-P"] and sys.version_info < (3, 11):
        pytest.skip("no such option")
    folder = tmp_path / "folder"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(f"""
import sys
sys.path += {[str(ROOT), *sys.path]!r}
from ftuner.runtime.compile_processes import Request, answers
{"" if is_folder_there else f"import os; os.rmdir({str(folder)!r})"}
wanted = [Request("it", ("text", "right"))] * 2
print(*(answer.decode() for _, answer in answers({ANSWERING!r}, wanted, 2)))
""")
    command = [sys.executable, *options, str(script)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.stdout, done.stderr) == ("right right\n", "")


def test_no_process_is_left(environment: dict[str, str]) -> None:
    """Neither where the caller stops, nor where one of them fails."""
    threads = threading.active_count()
    wanted = requests(("number", ""), *[("hangs", "")] * 3)
    with closing(answers(ANSWERING, wanted, 2, environment)) as found:
        _, pid = next(found)
    assert not is_alive(int(pid))
    assert threading.active_count() == threads
    with pytest.raises(CompileError, match="OwnError"):
        list(answers(ANSWERING, requests(("raises", ""), ("hangs", "")), 2, environment))
    assert threading.active_count() == threads


def begun(first: Request) -> Started:
    started = Started(ANSWERING)
    started.begin(first)
    return started


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere states are not told in files")
def test_processes_pause(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They answer afterwards, and end though they stand still."""
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(processes, "usable_processes", lambda: 2)
    first, second = requests(("text", "0"), ("text", "1"))
    started = begun(first)
    own = [Path(f"/proc/{process._child.pid}/stat") for process in started._processes]

    def stand_still() -> bool:
        return all(") T " in stat.read_text() for stat in own)

    began = time.monotonic()
    with started.paused():
        while not stand_still() and time.monotonic() - began < SECONDS:
            time.sleep(0.01)
        assert stand_still()
    found = answers(ANSWERING, [first, second], 0, started=started)
    assert sorted(answer for _, answer in found) == [b"0", b"1"]
    ended = begun(first)
    with ended.paused():
        ended.end()
    assert not ended.wait


def test_processes_that_were_started_ahead(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answer what one of them was asked first, if it is still wanted, and all else."""
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(processes, "usable_processes", lambda: 2)
    threads = threading.active_count()
    first, *others = wanted = requests(("text", "0"), ("text", "1"), ("number", ""))
    for asked in (wanted, others):
        started = begun(first)
        own = [process._child.pid for process in started._processes]
        found = [answer for _, answer in sorted(answers(ANSWERING, asked, 0, started=started))]
        assert [*found[:-1], int(found[-1]) in own] == [b"0", b"1", True][-len(asked) :]
        assert not any(map(is_alive, own))
        assert not started.wait
    started = begun(Request("it", ("hangs", "")))
    one, other = started._processes
    started.end()
    assert not is_alive(one._child.pid)
    assert not is_alive(other._child.pid)
    assert threading.active_count() == threads
    monkeypatch.setattr(processes, "usable_processes", lambda: 1)
    assert not begun(first).wait


def test_what_was_asked_ahead_may_fail(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(processes, "usable_processes", lambda: 2)
    wanted = requests(("ends", ""), ("text", ""))
    with pytest.raises(CompileError, match=r"part 0: .*exit status 7"):
        list(answers(ANSWERING, wanted, 2, started=begun(wanted[0])))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they end when they next answer")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_their_parent(environment: dict[str, str], number: int) -> None:
    script = f"""
from ftuner.runtime.compile_processes import Request, answers
wanted = [Request("it", request) for request in [("number", "")] * 2 + [("hangs", "")] * 2]
for _, pid in answers({ANSWERING!r}, wanted, 2):
    print(pid.decode(), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, text=True, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(map(is_alive, pids))
        parent.send_signal(number)
    began = time.monotonic()
    while any(map(is_alive, pids)) and time.monotonic() - began < SECONDS:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_them_to_its_parent(environment: dict[str, str]) -> None:
    """Though it was the thread that asked which forked."""
    wanted = requests(*[("text", "right")] * 4)
    found = answers(ANSWERING, wanted, 2, environment)
    assert next(found)[1] == b"right"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = len(list(found))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(found)) == 3


def test_ctrl_c_ends_all_of_them(environment: dict[str, str], tmp_path: Path) -> None:
    """The whole group of processes gets the signal, as from a terminal. What was interrupted can
    compile again."""
    mark = tmp_path / "mark"
    script = f"""
import signal, sys, threading
from contextlib import closing
from ftuner.runtime.compile_processes import Request, answers
# A shell has its background jobs ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
wanted = [Request("it", ("waits", {str(mark)!r}))] * 4
try:
    list(answers({ANSWERING!r}, wanted, 2))
except KeyboardInterrupt:
    assert threading.active_count() == 1
    again = dict(answers({ANSWERING!r}, [Request("it", ("text", "right"))], 2))
    print(again[0].decode(), flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    began = time.monotonic()
    while not mark.exists() and time.monotonic() - began < SECONDS:
        time.sleep(0.05)
    assert mark.exists()
    os.killpg(child.pid, signal.SIGINT)
    assert child.communicate(timeout=SECONDS) == ("right\n", "")
