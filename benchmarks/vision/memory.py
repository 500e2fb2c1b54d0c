"""Resident memory of a network: each engine in a process of its own.

`python -m benchmarks.vision.memory` is one of the processes. It imports what an engine needs, and
no other part of the benchmarks.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ftuner_tools.onnx_engines import ONNX_ENGINES, Feeds

CALLS = 2
"""After which memory is read: engines allocate in the second call, too."""


@dataclass(frozen=True)
class Resident:
    """Bytes that are resident in a process."""

    start_bytes: int
    """With NumPy and the input."""
    imported_bytes: int
    """With the engine's library."""
    loaded_bytes: int
    called_bytes: int

    @property
    def text(self) -> str:
        parts = (self.called_bytes, self.start_bytes, self.imported_bytes, self.loaded_bytes)
        called, start, imported, loaded = (f"{n / 1e6:.0f}" for n in parts)
        return f"{called:>4} MB; {start} at the start, {imported} imported, {loaded} loaded"


def resident(
    path: Path, feeds: Feeds, engine: str, threads: int, variables: Mapping[str, str]
) -> Resident:
    """The memory of a process that calls an engine. `variables`: its environment. What the engine
    keeps on disk is there: another process has called it before."""
    inputs = path.with_suffix(".npz")
    np.savez(inputs, **feeds)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "benchmarks.vision.memory", str(path), str(inputs), engine,
               str(threads)]  # fmt: skip
    for _ in range(2):
        done = subprocess.run(command, env=dict(variables), check=True, text=True,
                              cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)  # fmt: skip
    return Resident(**json.loads(done.stdout))


def here(path: Path, feeds: Feeds, engine: str, threads: int) -> Resident:
    """The memory of this process before and after it calls an engine."""
    start = resident_bytes()
    importlib.import_module(engine)
    imported = resident_bytes()
    bind = ONNX_ENGINES[engine].one(path, threads, None)
    loaded = resident_bytes()
    call = bind(feeds)
    for _ in range(CALLS):
        call()
    gc.collect()
    return Resident(start, imported, loaded, resident_bytes())


def resident_bytes() -> int:
    """Of this process, as Linux counts them."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    model, given, name, count = sys.argv[1:]
    found = here(Path(model), dict(np.load(given)), name, int(count))
    print(json.dumps(asdict(found)))
