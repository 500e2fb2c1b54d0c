"""Functions called in child processes, with limits on time and memory.

A payload that hangs, crashes the process or takes too much memory ends its worker, is reported with
its own number, and does not disturb the others: a new worker takes the next payload.

    with Workers("tests.mutants.checking:check", limits=Limits(seconds=5)) as workers:
        for number, result in workers.run(payloads):
            ...
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import resource
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.05
"""Between two looks at a worker's memory and its time."""
STACK_SECONDS = 0.5
"""For a worker that is out of time to write where it is."""
_LENGTH = struct.Struct("<Q")
_PAGE_BYTES = resource.getpagesize()
_PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent ends."""


@dataclass(frozen=True)
class Limits:
    """What one payload may take."""

    seconds: float = 10.0
    grown_bytes: int = 1 << 30
    """Resident memory beyond what the worker had before the payload."""
    address_bytes: int | None = None
    """Addresses beyond what the worker had when it was ready, for all of its payloads: what asks
    for more gets a MemoryError. None: no such limit."""


@dataclass(frozen=True)
class Done:
    """What the function returned."""

    value: Any
    seconds: float
    grown_bytes: int
    """Peak of the resident memory, beyond what the worker had before."""


@dataclass(frozen=True)
class Raised:
    """An exception that the function let through."""

    kind: str
    text: str
    trace: str


@dataclass(frozen=True)
class Crash:
    """The process ended. `how`: the signal or the exit status."""

    how: str
    stderr: str


@dataclass(frozen=True)
class Timeout:
    """The process was ended after so many seconds; `stderr` ends with the stacks of its threads."""

    seconds: float
    stderr: str


@dataclass(frozen=True)
class TooMuchMemory:
    """The payload took more resident memory than its limit."""

    grown_bytes: int
    stderr: str


Result = Done | Raised | Crash | Timeout | TooMuchMemory


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    received: bytearray = field(default_factory=bytearray)
    ready: bool = False
    given: int = 0
    """Payloads that it was given, all in all."""
    number: int | None = None
    """Of the payload that it works on."""
    began: float = 0.0
    resident_bytes: int = 0


class Workers:
    """Child processes that call one function, each on one payload at a time.

    Args:
        function: `module:name` of a function of one argument; argument and result are pickled.
        jobs: processes.
        limits: of each payload.
        recycle: payloads after which a process is replaced by a new one.
        environment: variables that the processes have beside those of this one.
        starting_seconds: for a process to import the function's module.
    """

    def __init__(
        self,
        function: str,
        jobs: int = 1,
        limits: Limits | None = None,
        recycle: int = 5000,
        environment: dict[str, str] | None = None,
        starting_seconds: float = 120.0,
    ) -> None:
        self._function = function
        self._jobs = jobs
        self._limits = Limits() if limits is None else limits
        self._recycle = recycle
        self._environment = environment or {}
        self._starting_seconds = starting_seconds
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in list(self._workers):
            self._end(worker)
        self._selector.close()

    def run(self, payloads: Iterable[Any]) -> Iterator[tuple[int, Result]]:
        """The number of each payload and its result, in the order in which they end.

        Raises:
            RuntimeError: a process ends before it is ready, because the function's module cannot be
                imported for example.
        """
        left = enumerate(payloads)
        more = True
        while True:
            while more and (worker := self._idle()) is not None:
                try:
                    number, payload = next(left)
                except StopIteration:
                    more = False
                    break
                self._give(worker, number, payload)
            busy = [w for w in self._workers if w.number is not None]
            if not busy:
                return
            yield from self._finished(busy)

    def _idle(self) -> _Worker | None:
        """A worker that waits for a payload; a new one while there are fewer than `jobs`."""
        for worker in self._workers:
            if worker.number is None and worker.given < self._recycle:
                return worker
            if worker.number is None:
                self._end(worker)
                break
        return self._start() if len(self._workers) < self._jobs else None

    def _start(self) -> _Worker:
        log = tempfile.TemporaryFile()  # noqa: SIM115
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **self._environment
        }  # fmt: skip
        address = self._limits.address_bytes
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.isolation", self._function, str(address or 0)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, bufsize=0,
        )  # fmt: skip
        worker = _Worker(process, log, began=time.monotonic())
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _end(self, worker: _Worker) -> str:
        """End a process; returns how it ended."""
        process = worker.process
        assert process.stdin is not None
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        process.kill()
        status = process.wait()
        process.stdin.close()
        process.stdout.close()
        worker.log.close()
        self._workers.remove(worker)
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def _give(self, worker: _Worker, number: int, payload: Any) -> None:
        worker.number = number
        worker.given += 1
        worker.began = time.monotonic()
        worker.resident_bytes = _resident_bytes(worker.process.pid) if worker.ready else 0
        data = pickle.dumps(payload)
        assert worker.process.stdin is not None
        try:
            worker.process.stdin.write(_LENGTH.pack(len(data)) + data)
        except BrokenPipeError:
            # It has just ended, and is found so when its output is read.
            return

    def _finished(self, busy: Sequence[_Worker]) -> Iterator[tuple[int, Result]]:
        """Wait for some of the workers; the results of those that have one."""
        for key, _ in self._selector.select(POLL_SECONDS):
            worker: _Worker = key.data
            data = os.read(key.fd, 1 << 20)
            worker.received += data
            if not data:
                yield from self._ended(worker)
                continue
            yield from self._answers(worker)
        now = time.monotonic()
        for worker in busy:
            if worker in self._workers and worker.number is not None:
                yield from self._checked(worker, now)

    def _answers(self, worker: _Worker) -> Iterator[tuple[int, Result]]:
        """What a worker has answered in full."""
        while len(worker.received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(worker.received)
            end = _LENGTH.size + size
            if len(worker.received) < end:
                return
            message = pickle.loads(bytes(worker.received[_LENGTH.size : end]))
            del worker.received[:end]
            if not worker.ready:
                # The first message says that the module is imported.
                worker.ready = True
                worker.began = time.monotonic()
                worker.resident_bytes = _resident_bytes(worker.process.pid)
                continue
            number, worker.number = worker.number, None
            assert number is not None
            if isinstance(message, Done) and message.grown_bytes > self._limits.grown_bytes:
                message = TooMuchMemory(message.grown_bytes, "")
            yield number, message

    def _ended(self, worker: _Worker) -> Iterator[tuple[int, Result]]:
        """A process that ended by itself."""
        text = _tail(worker.log)
        number, ready = worker.number, worker.ready
        worker.process.wait()
        how = self._end(worker)
        if not ready:
            raise RuntimeError(
                f"a worker for {self._function} ended ({how}) while it began: {text}"
            )
        if number is not None:
            yield number, Crash(how, text)

    def _checked(self, worker: _Worker, now: float) -> Iterator[tuple[int, Result]]:
        """A worker that has taken too long, or too much memory, is ended."""
        seconds = now - worker.began
        if not worker.ready:
            if seconds > self._starting_seconds:
                raise RuntimeError(f"a worker for {self._function} took {seconds:.0f} s to begin")
            return
        number = worker.number
        assert number is not None
        grown = _resident_bytes(worker.process.pid) - worker.resident_bytes
        if grown > self._limits.grown_bytes:
            self._end(worker)
            yield number, TooMuchMemory(grown, "")
        elif seconds > self._limits.seconds:
            os.kill(worker.process.pid, signal.SIGUSR1)
            time.sleep(STACK_SECONDS)
            text = _tail(worker.log)
            self._end(worker)
            yield number, Timeout(seconds, text)


def _tail(log: IO[bytes], size: int = 8192) -> str:
    length = log.seek(0, os.SEEK_END)
    log.seek(max(length - size, 0))
    return log.read().decode(errors="replace")


def _resident_bytes(process: int) -> int:
    """Of a process, zero if it has ended."""
    try:
        text = Path(f"/proc/{process}/statm").read_text()
    except OSError:
        return 0
    return int(text.split()[1]) * _PAGE_BYTES


# In the child.


def _serve(path: str, address_bytes: int) -> None:
    """Answer payloads from standard input until it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    payloads = sys.stdin.buffer
    # What the function prints is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, name = path.split(":")
    function: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    if address_bytes:
        limit = _status_bytes("VmSize") + address_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _send(answers, None)
    while (payload := _received(payloads)) is not None:
        _send(answers, _result(function, payload[0]))


def _received(stream: IO[bytes]) -> tuple[Any] | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    return (pickle.loads(stream.read(*_LENGTH.unpack(head))),)


def _send(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message)
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[stream.write(view) :]


def _result(function: Callable[[Any], Any], payload: Any) -> Result:
    before = _restarted_peak()
    began = time.perf_counter()
    try:
        value = function(payload)
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return Raised(kind, str(error)[:2000], traceback.format_exc(limit=-12)[-8000:])
    seconds = time.perf_counter() - began
    return Done(value, seconds, max(_status_bytes("VmHWM") - before, 0))


def _restarted_peak() -> int:
    """Have the kernel count the peak of resident memory from now on; returns what there is."""
    with open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(b"5")
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


if __name__ == "__main__":
    # The classes of messages are those of the module, by the name that others import.
    importlib.import_module("tests.isolation")._serve(sys.argv[1], int(sys.argv[2]))
