"""Compiling in child processes, each of which answers one request after the other.

Processes, because llvmlite holds one lock around all of LLVM, and a compiler that fails badly takes
its process with it; started anew, because a fork would inherit threads, and a spawned one would run
the user's main module again. A process that has no Python to start, or that is itself one of these,
starts none: whoever asked compiles in its own process.
"""

from __future__ import annotations

import io
import logging
import math
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from ftuner.codegen.compile_server import ERROR, HELLO, read_answer
from ftuner.core.child_processes import Child, python_child
from ftuner.core.operating_system import ends_with_parent, own_affinity
from ftuner.errors import CompileError
from ftuner.hardware.system import cpu_quota

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).resolve().parents[1]
CHILD = f"""
import sys
sys.path[:] = dict.fromkeys([*filter(None, sys.path), *sys.argv[2:]])
package = type(sys)({PACKAGE.name!r})
package.__path__ = [{str(PACKAGE)!r}]
sys.modules[package.__name__] = package
from {PACKAGE.name}.codegen.compile_server import serve
serve(sys.argv[1])
"""
"""A compiling process. Its arguments are the module that answers, and the folders in which the
process that asked finds modules: it searches them last. Modules are not looked for in the folder
that it is started in: one there could replace another. The package's front, which holds all that
users ask for, is left out: it would be a third of what the process takes to start."""
TASK = "compile"
MAX_PROCESSES = 64
"""Limit on processes at once, whatever is asked for. Each takes about 100 MB."""
HELLO_S = 60.0
"""A process that has not said hello by then is taken for something else than a compiler. Python
takes 0.1 s to start."""
ANSWER_S = 600.0
"""A request that takes longer is given up. The largest takes two seconds on a core of its own."""
CHECKED_S = 1.0
"""How often processes are looked at."""
MAX_AHEAD = 4
"""Limit on processes that are started before it is known how much there is to do."""
ENDING_S = 0.2
"""Patience for the exit status of a process that failed."""
BEGINNING_S = 1.0
"""Patience with processes that are to pause."""
JOIN_S = 5.0
"""Patience with a thread whose process has ended."""


class Request(NamedTuple):
    """Something to be compiled."""

    name: str
    """Of what is compiled, for messages."""
    value: Any
    """What the module's `answer` takes; it is pickled."""


class _NotStartedError(Exception):
    """A process that never said hello."""


_Waiting = queue.SimpleQueue[tuple[int, Request]]
"""Of requests, with their numbers."""
_Events = queue.SimpleQueue[tuple["_Process", int | None, bytes | BaseException | None]]
"""Of processes, each with the number of the request that it answered and the answer, or with how it
ended."""


class _Process:
    """A compiling process and the thread that feeds it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A session of its own: what it starts can be ended with it, and Ctrl-C is for this process
        # to deal with.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment,
            start_new_session=True,
        )  # fmt: skip
        self._answers = io.BufferedReader(cast(io.RawIOBase, self._child.stdout))
        self._deadline = time.monotonic() + HELLO_S
        self._overdue = False
        self._seen_ended = False
        self._thread: threading.Thread | None = None
        self.first: Request | None = None
        """What it was asked for before it was fed."""

    def begin(self, request: Request) -> None:
        """Send a request before it says hello."""
        self.first = request
        with suppress(OSError):
            # Whoever feeds it sees that it has ended.
            self._write(pickle.dumps(request.value))

    def feed(self, waiting: _Waiting, events: _Events, first: int | None = None) -> None:
        """Have a thread send requests and put what becomes of them into `events`. `first`: the
        number of `self.first`, if that is wanted."""
        given = waiting, events, first
        self._thread = threading.Thread(target=self._feed, args=given, daemon=True)
        self._thread.start()

    def _feed(self, waiting: _Waiting, events: _Events, first: int | None) -> None:
        end: BaseException | None = None
        try:
            self._expect_hello()
            if self.first is not None:
                try:
                    answer = self._answered(self.first)
                except CompileError:
                    if first is not None:
                        raise
                    events.put((self, None, None))
                    return
                if first is not None:
                    events.put((self, first, answer))
            while True:
                try:
                    number, request = waiting.get_nowait()
                except queue.Empty:
                    break
                answer = self._answered(request, pickle.dumps(request.value))
                events.put((self, number, answer))
        except BaseException as error:
            end = error
        events.put((self, None, end))

    def _expect_hello(self) -> None:
        try:
            kind, _ = read_answer(self._answers)
        except CompileError as error:
            raise _NotStartedError(str(error)) from error
        if kind != HELLO:
            raise _NotStartedError(f"it said {kind!r}")

    def _answered(self, request: Request, unsent: bytes = b"") -> bytes:
        try:
            self._deadline = time.monotonic() + ANSWER_S
            self._write(unsent)
            kind, content = read_answer(self._answers)
        except (CompileError, OSError) as error:
            why = f"it took longer than {ANSWER_S:.0f} s" if self._overdue else str(error)
            # A process that has closed its pipe is about to end.
            with suppress(subprocess.TimeoutExpired):
                why += f" (exit status {self._child.wait(ENDING_S)})"
            raise CompileError(f"cannot compile {request.name}: {why}") from error
        if kind == ERROR:
            text = content.decode(errors="replace")
            raise CompileError(f"cannot compile {request.name}: {text}")
        return content

    def _write(self, data: bytes) -> None:
        assert self._child.stdin is not None
        left = memoryview(data)
        while left:
            left = left[os.write(self._child.stdin.fileno(), left) :]

    def end_if_overdue(self) -> None:
        """End the process if it should have answered by now: its thread then sees the pipe end."""
        if time.monotonic() > self._deadline and not self._overdue:
            self._overdue = True
            self._kill()

    def is_lost(self) -> bool:
        """Whether the process has ended, as the call before saw too, and its thread still waits:
        for another process, forked while this one was started, that has the end of the pipe."""
        seen, self._seen_ended = self._seen_ended, self._child.poll() is not None
        return seen and self._thread is not None and self._thread.is_alive()

    def end(self) -> None:
        """End process and thread, whatever they are doing."""
        self._kill()
        self._child.wait()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                # Something that the process started, and that left it, still has the pipe.
                return
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._answers.close()

    def has_begun(self, patience_s: float) -> bool:
        """Whether the process has said something by then."""
        return bool(select.select([self._answers], [], [], patience_s)[0])

    def send(self, name: str) -> None:
        """Send a signal to the process and those that it started, if the system has the signal."""
        # Until it is waited for, its number is its own.
        if hasattr(os, "killpg") and self._child.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, getattr(signal, name))

    def _kill(self) -> None:
        """End the process and those that it started."""
        if hasattr(os, "killpg"):
            self.send("SIGKILL")
        else:
            self._child.kill()


class Started:
    """Compiling processes that were started before it is known what they are asked for."""

    def __init__(self, module: str) -> None:
        """`module`: as of `answers`. A process without a neighbour would only take this one's
        time: where there is one CPU, none is started."""
        self._owner = os.getpid(), threading.get_ident()
        self._processes: list[_Process] = []
        child, count = python_child(TASK), min(usable_processes(), MAX_AHEAD)
        if child is not None and child.command[0] not in _not_python and count > 1:
            self._processes = _started(child, module, count)

    def begin(self, request: Request) -> None:
        """Ask a process that has nothing to do, if there is one, for what none was asked for."""
        if not self.wait:
            return
        asked = [process.first for process in self._processes]
        if request not in asked and None in asked:
            self._processes[asked.index(None)].begin(request)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """They stand still while the block runs, where the system ends even stopped ones with this
        process: those that have begun in time, so that they have asked for that."""
        stopped = [p for p in self._processes if ends_with_parent() and p.has_begun(BEGINNING_S)]
        for process in stopped:
            process.send("SIGSTOP")
        try:
            yield
        finally:
            for process in stopped:
                process.send("SIGCONT")

    @property
    def wait(self) -> bool:
        """Whether there are some that were not taken."""
        return bool(self._processes) and self._owner == (os.getpid(), threading.get_ident())

    def taken(self) -> list[_Process]:
        """The processes, for one who ends them."""
        if not self.wait:
            return []
        found, self._processes = self._processes, []
        return found

    def end(self) -> None:
        """End those that were not taken."""
        for process in self.taken():
            process.end()


def usable_processes() -> int:
    """Number of processes that run at once."""
    cpus, quota = len(own_affinity()), cpu_quota()
    if quota is not None:
        cpus = min(cpus, math.ceil(quota))
    return cpus


def worthwhile_processes(requests: int, requests_per_process: int) -> int:
    """Number of processes that answer some requests soonest; 0 or 1 stands for this process."""
    return min(usable_processes(), requests // requests_per_process)


def answers(
    module: str, requests: Sequence[Request], processes: int,
    environment: Mapping[str, str] | None = None, started: Started | None = None,
) -> Generator[tuple[int, bytes], None, None]:  # fmt: skip
    """What the function `answer` of a module gives in up to `processes` processes, or in those that
    were `started` for the module: the number of each request and its answer, as they come. Fewer
    than all where processes cannot be started, and in a child that is forked meanwhile. Close the
    iterator, or have it end, and the processes are gone.

    Raises:
        CompileError: a process failed, ended or did not answer; with the text of its error.
    """
    child = python_child(TASK, environment)
    if child is None or child.command[0] in _not_python:
        return
    own = [] if started is None else started.taken()
    begun = {requests.index(p.first) for p in own if p.first in requests}
    waiting: _Waiting = queue.SimpleQueue()
    for item in enumerate(requests):
        if item[0] not in begun:
            waiting.put(item)
    events: _Events = queue.SimpleQueue()
    owner = os.getpid()
    try:
        own += _started(child, module, min(processes, len(requests)) - len(own))
        for process in own:
            first = process.first
            process.feed(waiting, events, requests.index(first) if first in requests else None)
        running, left = len(own), len(requests)
        while running and left and os.getpid() == owner:
            try:
                _, number, found = events.get(timeout=CHECKED_S)
            except queue.Empty:
                for process in own:
                    process.end_if_overdue()
                    if process.is_lost():
                        raise CompileError("a compiling process ended without an answer") from None
                continue
            if number is not None:
                assert isinstance(found, bytes)
                left -= 1
                yield number, found
                continue
            running -= 1
            if isinstance(found, _NotStartedError):
                _not_python.add(child.command[0])
                log.warning("%s does not start as a compiling process: %s", sys.executable, found)
            elif found is not None:
                assert isinstance(found, BaseException)
                raise found
    finally:
        # In a forked child they are the parent's.
        if os.getpid() == owner:
            for process in own:
                process.end()


def _started(child: Child, module: str, count: int) -> list[_Process]:
    """Starts as many processes, or fewer where the system refuses."""
    found: list[_Process] = []
    folders = [str(PACKAGE.parent), *filter(os.path.isabs, sys.path)]
    command = [*child.command, "-c", CHILD, module, *folders]
    for _ in range(min(count, MAX_PROCESSES)):
        try:
            found.append(_Process(command, child.environment))
        except OSError as error:
            log.warning("cannot start a compiling process: %s", error)
            break
    return found


_not_python: set[str] = set()
"""Programs that were started and said no hello: they are not started again."""
