"""Programs of Python in a process of their own."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def printed(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    seconds: float = 300,
) -> str:  # fmt: skip
    """Returns what `python ARGUMENTS` prints.

    Raises:
        AssertionError: it failed; says what it wrote to stderr.
    """
    done = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, timeout=seconds, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
