"""Takes from this process what Linux has and the system named in `FOREIGN_SYSTEM` lacks.

A `sitecustomize` imports it, so that the processes which ftuner starts lack the same. What stays
is NumPy's, LLVM's and the standard library's own use of Linux: they are imported before.
"""

import asyncio  # noqa: F401
import concurrent.futures.thread  # noqa: F401
import ctypes
import logging.handlers  # noqa: F401
import mmap
import multiprocessing.connection  # noqa: F401
import os
import platform
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile  # noqa: F401
import time

import filelock  # noqa: F401
import llvmlite.binding as llvm
import numpy.random
import numpy.testing  # noqa: F401
import onnx.helper  # noqa: F401
import platformdirs

LACKING = {
    os: ("sched_getaffinity", "sched_setaffinity", "memfd_create", "fork", "register_at_fork"),
    mmap: ("MADV_HUGEPAGE", "MAP_POPULATE", "MAP_NORESERVE"),
}
LACKING_ON_WINDOWS = {
    os: ("geteuid", "getuid", "sysconf", "killpg", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"),
    mmap: ("MAP_PRIVATE", "MAP_ANONYMOUS", "PROT_EXEC", "PROT_READ", "PROT_WRITE"),
    time: ("CLOCK_MONOTONIC", "clock_gettime"),
}
HIDDEN = ("/proc", "/sys")


def _hide(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(HIDDEN):
        raise PermissionError(13, "hidden", str(arguments[0]))


def _no_library(*_: object, **__: object) -> None:
    raise OSError("no library of this system")


def become(system: str) -> None:
    """Take all that a system lacks, for the rest of the process."""
    platformdirs.user_cache_dir()
    sysconfig.get_config_vars()
    # What LLVM finds by the name of the function that Windows has.
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value
    llvm.add_symbol("Sleep", usleep)
    lacking = [*LACKING.items(), *(LACKING_ON_WINDOWS.items() if system == "win32" else ())]
    for module, names in lacking:
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    platform.libc_ver = lambda *_, **__: ("", "")  # type: ignore[assignment]
    ctypes.CDLL = _no_library  # type: ignore[assignment,misc]
    sys.addaudithook(_hide)
    sys.platform = system  # type: ignore[misc]


become(os.environ["FOREIGN_SYSTEM"])
