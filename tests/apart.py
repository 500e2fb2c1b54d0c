"""Functions run in a forked child, whose end tells what it did: what may fault or hang."""

import contextlib
import faulthandler
import mmap
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import IO

NOTE_BYTES = 4096
Note = Callable[[str], None]


def apart(function: Callable[[Note], object], seconds: float = 120.0) -> None:
    """Call a function in a forked child. It is given a function that notes what it does next.

    Raises:
        AssertionError: it raised, was killed by a signal, or took longer than `seconds`; says what
            it noted last, and what it wrote to stderr.
    """
    with mmap.mmap(-1, NOTE_BYTES) as shared, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if not pid:
            _child(function, shared, errors)
        status = _waited(pid, seconds)
        note = shared[:].rstrip(b"\0").decode(errors="replace")
        errors.seek(0)
        written = errors.read().decode(errors="replace")
    ended = f"took over {seconds} s"
    if status is not None:
        code = os.waitstatus_to_exitcode(status)
        if not code:
            return
        ended = signal.Signals(-code).name if code < 0 else "failed"
    raise AssertionError(f"{ended} at: {note}\n{written[-8000:]}")


def _child(function: Callable[[Note], object], shared: mmap.mmap, errors: IO[bytes]) -> None:
    code = 1
    # Whatever happens, the parent's own code must not go on here.
    try:
        os.dup2(errors.fileno(), 2)
        faulthandler.enable(errors.fileno())

        def note(text: str) -> None:
            shared[:] = text.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")

        function(note)
        code = 0
    except BaseException:
        os.write(errors.fileno(), traceback.format_exc().encode())
    finally:
        os._exit(code)


def _waited(pid: int, seconds: float) -> int | None:
    """The status of a child that has ended; None if it was killed for its time."""
    until = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
