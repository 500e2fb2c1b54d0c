"""Both ends of the pipes between this process and a compiling one.

A compiling process says hello, then answers one pickled request after the other with a frame: a
mark, the kind of answer, its length, and its bytes. Whatever fails in it is answered with the text
of the error. What anything in it prints goes to standard error: answers have the pipe to
themselves.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from contextlib import suppress
from importlib import import_module
from typing import BinaryIO, NamedTuple

from ftuner.core.operating_system import end_with_parent
from ftuner.errors import CompileError

HELLO, RESULT, ERROR = b"hello", b"right", b"wrong"
MAX_ANSWER_BYTES = 1 << 30
_FRAME = struct.Struct("<8s5sQ")
_MARK = b"ftuner\r\n"
_SHOWN_BYTES = 200


class Answer(NamedTuple):
    """What a compiling process said."""

    kind: bytes
    content: bytes
    """The result, or the text of an error."""


def write_answer(stream: BinaryIO, kind: bytes, content: bytes) -> None:
    """Write a frame. Raises OSError if the pipe has no reader."""
    stream.write(_FRAME.pack(_MARK, kind, len(content)) + content)
    stream.flush()


def read_answer(stream: BinaryIO) -> Answer:
    """The next frame.

    Raises:
        CompileError: the stream has ended, or holds something else.
    """
    head = stream.read(_FRAME.size)
    if not head:
        raise CompileError("a compiling process ended without an answer")
    if not head.startswith(_MARK[: len(head)]) or len(head) < _FRAME.size:
        raise CompileError(f"a compiling process answered {head!r}, and no frame")
    _, kind, size = _FRAME.unpack(head)
    if kind not in (HELLO, RESULT, ERROR) or size > MAX_ANSWER_BYTES:
        raise CompileError(f"a compiling process answered {kind!r} of {size} bytes")
    content = stream.read(size)
    if len(content) < size:
        raise CompileError(
            f"a compiling process ended within an answer, after {len(content)} of {size} bytes: "
            f"{content[:_SHOWN_BYTES]!r}"
        )
    return Answer(kind, content)


def serve(module: str) -> None:
    """Answer the requests of standard input until it ends, by the function `answer` of a module,
    which takes a request and gives bytes. Its function `prepare`, if it has one, is called before.
    The process ends with its parent."""
    end_with_parent()
    # Ctrl-C reaches all processes of a terminal; the one that asked decides what becomes of this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        write_answer(answers, HELLO, b"")
    except OSError:
        return
    with suppress(BaseException):
        # It may have to wait for its first request. What fails here fails again with that.
        import_module(module).prepare()
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            kind, content = RESULT, import_module(module).answer(request)
        except BaseException as error:
            kind, content = ERROR, f"{type(error).__name__}: {error}".encode(errors="replace")
        try:
            write_answer(answers, kind, content)
        except OSError:
            # The process that asked is gone.
            return
