"""Compiles sources ahead of time, in processes of their own: here kernels are interpreted."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from contextlib import closing

from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import Compiled, Target
from ftuner.runtime.compile_processes import Request, answers

PROCESSES = 2


def compile_all(pairs: Sequence[tuple[Source, Target]]) -> list[Compiled]:
    """What becomes of sources, in their order."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    requests = [Request(source.function, (source, target)) for source, target in pairs]
    module = "ftuner.codegen.triton.compile"
    with closing(answers(module, requests, PROCESSES, environment)) as found:
        compiled = {number: pickle.loads(answer) for number, answer in found}
    return [compiled[number] for number in range(len(pairs))]
