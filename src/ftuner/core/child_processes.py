"""Child processes of Python: which program runs them, what each may start, and how they end.

`sys.executable` need not be Python. In a frozen program (PyInstaller, cx_Freeze, Nuitka) and where
Python is embedded it is the user's program, which would start itself again and again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

VARIABLE = "FTUNER_CHILD"
"""The tasks of this process and of those that started it. None of them is given to a child again,
whatever program the child turns out to be."""
_PYTHON = re.compile(r"(python|pypy)w?[\d.]*t?d?(\.exe)?", re.IGNORECASE)


class Child(NamedTuple):
    """How to start a child."""

    command: list[str]
    """The interpreter and its options; what it runs is to follow."""
    environment: dict[str, str]


def python_child(task: str, environment: Mapping[str, str] | None = None) -> Child | None:
    """How to start this Python for a task (a word); None if there is no interpreter to start, or if
    this process has the task itself. `environment`: by default that of this process.

    The child ignores what this process was told to ignore: `PYTHONPATH`, user packages, `site`.
    """
    tasks = os.environ.get(VARIABLE, "").split()
    if task in tasks or not has_interpreter():
        return None
    flags = {
        "-I": sys.flags.isolated, "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site, "-S": sys.flags.no_site,
    }  # fmt: skip
    command = [sys.executable, *(flag for flag, is_set in flags.items() if is_set)]
    given = os.environ if environment is None else environment
    return Child(command, {**given, VARIABLE: " ".join((*tasks, task))})


def has_interpreter() -> bool:
    """Whether `sys.executable` is the interpreter of this Python's installation: a file with an
    interpreter's name in the folder of programs of a prefix, in a program that is not frozen."""
    compiled = any(
        hasattr(sys.modules.get(name), "__compiled__") for name in (__name__, "__main__")
    )
    if compiled or getattr(sys, "frozen", False) or not sys.executable:
        return False
    # An environment's interpreter is a link to one elsewhere; so may its folder be.
    real = os.path.realpath(sys.executable)
    found = {os.path.dirname(real), os.path.realpath(os.path.dirname(sys.executable))}
    prefixes = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    folders = ("bin", "Scripts", "") if os.name == "nt" else ("bin",)
    expected = {os.path.realpath(os.path.join(p, inner)) for p in prefixes for inner in folders}
    is_named = _PYTHON.fullmatch(os.path.basename(sys.executable)) is not None
    return is_named and os.access(real, os.X_OK) and not found.isdisjoint(expected)
