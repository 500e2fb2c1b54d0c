"""A compiler outside of the emulator, which makes an object twenty times as fast as within.

What a `sitecustomize` imports in an emulated process sends bundles to one process of `HOST_PYTHON`,
a program of the machine itself, which takes the emulated architecture for its own.
"""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
import threading
from functools import cache
from types import SimpleNamespace

from ftuner.codegen import compile_server
from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.codegen.llvm.objects.jit import Target
from ftuner.codegen.llvm.objects.keys import COMPILER_MODULE
from ftuner.runtime import compile_processes

_SERVER = """
import platform, sys
platform.machine = lambda: sys.argv[1]
from ftuner.codegen import compile_server
compile_server.end_with_parent = lambda: None  # Any thread may ask first.
compile_server.serve("ftuner.codegen.llvm.objects.compile")
"""
_lock = threading.RLock()


@cache
def _server(_process: int) -> subprocess.Popen[bytes]:
    tree = os.path.dirname(os.path.dirname(__file__))
    found = subprocess.Popen(
        [os.environ["HOST_PYTHON"], "-c", _SERVER, platform.machine()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tree}/src:{tree}/tools:{tree}"},
    )  # fmt: skip
    assert found.stdout is not None
    compile_server.read_answer(found.stdout)
    return found


def _compile_bundle(bundle: Bundle, target: Target) -> bytes:
    """In the place of `objects.compile.compile_bundle`."""
    with _lock:
        server = _server(os.getpid())
        assert server.stdin is not None
        assert server.stdout is not None
        pickle.dump((bundle, target), server.stdin)
        server.stdin.flush()
        kind, content = compile_server.read_answer(server.stdout)
    if kind != compile_server.RESULT:
        raise RuntimeError(content.decode())
    return content


if "HOST_PYTHON" in os.environ:
    sys.modules[COMPILER_MODULE] = SimpleNamespace(  # type: ignore[assignment]
        compile_bundle=_compile_bundle, answer=lambda request: _compile_bundle(*request)
    )
    # Emulated compiling processes would only pass requests on.
    compile_processes.usable_processes = lambda: 1
