"""What a compiling process is asked for in tests: every way to fail."""

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path


class OwnError(Exception):
    """Of a kind that the process which asked does not know."""


def prepare() -> None:
    os.environ["PREPARED"] = "before a request"


def answer(request: tuple[str, str]) -> bytes:
    what, text = request
    if what == "prepared":
        return os.environ["PREPARED"].encode()
    if what == "number":
        return str(os.getpid()).encode()
    if what == "imports":
        import_module(text)
        return " ".join(sys.modules).encode()
    if what == "prints":
        print("a word on standard output")
        os.write(1, b"and more")
        sys.stdout.flush()
    if what == "raises":
        raise OwnError(text)
    if what == "recurses":
        return answer(request)
    if what == "leaves":
        sys.exit(text)
    if what == "interrupts":
        raise KeyboardInterrupt(text)
    if what == "ends":
        os._exit(7)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hangs":
        time.sleep(600)
    if what == "garbage":
        for name in os.listdir("/proc/self/fd"):
            # The pipe of answers is a descriptor that only `serve` knows.
            if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}"):
                write(int(name), text.encode())
        time.sleep(600)
    if what == "waits":
        Path(text).touch()
        time.sleep(600)
    return text.encode()


def write(descriptor: int, data: bytes) -> None:
    try:
        os.write(descriptor, data)
    except OSError:
        return
