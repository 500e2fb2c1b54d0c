"""Compiles sources ahead of time, in processes of their own: here kernels are interpreted."""

import atexit
import pickle
from collections.abc import Sequence
from functools import cache

from tests.isolation import Done, Limits, Workers

from ftuner.codegen.triton.source import Source
from ftuner.codegen.triton.targets import Compiled, Target

PROCESSES = 2
LIMITS = Limits(seconds=600.0, grown_bytes=4 << 30)


@cache
def _compilers() -> Workers:
    """Processes for all tests: each takes seconds to import Triton."""
    environment = {"TRITON_INTERPRET": "0"}
    workers = Workers("ftuner.codegen.triton.compile:answer", PROCESSES, LIMITS, 5000, environment)
    atexit.register(workers.__exit__, None, None, None)
    return workers


def compile_all(pairs: Sequence[tuple[Source, Target]]) -> list[Compiled]:
    """What becomes of sources, in their order."""
    results = dict(_compilers().run(pairs))
    lost = [result for result in results.values() if not isinstance(result, Done)]
    assert not lost, lost
    found = {n: pickle.loads(result.value) for n, result in results.items()}
    return [found[number] for number in range(len(pairs))]
