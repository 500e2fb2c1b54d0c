"""Compiles sources ahead of time, in processes of their own: here kernels are interpreted."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import Compiled, Target

PROCESSES = 2
SECONDS = 300


def compile_all(pairs: Sequence[tuple[Source, Target]]) -> list[Compiled]:
    """What becomes of sources, in their order."""
    parts = [pairs[i::PROCESSES] for i in range(PROCESSES)]
    with ThreadPoolExecutor(PROCESSES) as threads:
        answers = [iter(found) for found in threads.map(_compile_part, parts)]
    return [next(answers[i % PROCESSES]) for i in range(len(pairs))]


def _compile_part(pairs: Sequence[tuple[Source, Target]]) -> list[Compiled]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # Written and read at once: neither a hundred sources nor their machine code fit in a pipe.
    done = subprocess.run(
        [sys.executable, "-m", "ftuner.codegen.triton.compile"],
        input=b"".join(map(pickle.dumps, pairs)), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment, timeout=SECONDS, check=True,
    )  # fmt: skip
    output = io.BytesIO(done.stdout)
    return [pickle.load(output) for _ in pairs]
