"""Compiles sources ahead of time, in processes of their own: here kernels are interpreted."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import Compiled, Target

PROCESSES = 2
SECONDS = 300


def compile_all(pairs: Sequence[tuple[Source, Target]]) -> list[Compiled]:
    """What becomes of sources, in their order."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "ftuner.codegen.triton.compile"]
    children = []
    for i in range(PROCESSES):
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
        assert child.stdin is not None
        # A few kibibytes of text: less than a pipe holds, but a child reads as it goes anyway.
        for pair in pairs[i::PROCESSES]:
            pickle.dump(pair, child.stdin)
        child.stdin.close()
        children.append(child)
    answers: list[Compiled | None] = [None] * len(pairs)
    for i, child in enumerate(children):
        assert child.stdout is not None
        output = io.BytesIO(child.stdout.read())
        assert child.wait(SECONDS) == 0
        for j in range(i, len(pairs), PROCESSES):
            answers[j] = pickle.load(output)
    return [answer for answer in answers if answer is not None]
