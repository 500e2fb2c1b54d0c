"""Compiles sources ahead of time, in a process of its own: here kernels are interpreted."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import Compiled, Target

SECONDS = 300


def compiled(wanted: Sequence[tuple[Source, Target]]) -> list[Compiled]:
    """What becomes of sources, in their order."""
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "ftuner.codegen.triton.compile"],
        input=b"".join(map(pickle.dumps, wanted)), capture_output=True, env=variables,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    answers = io.BytesIO(done.stdout)
    return [pickle.load(answers) for _ in wanted]
