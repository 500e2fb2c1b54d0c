"""Compiling what the cache does not hold: here, or in several processes at once."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from ftuner.codegen.llvm.bundle import Bundle, KernelBundle, bundle_key
from ftuner.codegen.llvm.jit import Target
from ftuner.runtime.backend import Progress
from ftuner.runtime.cache import Cache

log = logging.getLogger(__name__)
OBJECTS = "objects"
"""Kind of cache entry."""
BUNDLES_WORTH_A_PROCESS = 3
"""Starting a process takes about as long as compiling one bundle: fewer than this for each are not
worth it."""
COMPILER_MODULE = "ftuner.codegen.llvm.compile"
"""Imported by name when there is something to compile: a warm start never pays for it."""

PACKAGE = Path(__file__).resolve().parents[1]
CHILD = f"""
import sys
sys.path[:] = [path for path in sys.path if path] + [{str(PACKAGE.parent)!r}]
package = type(sys)({PACKAGE.name!r})
package.__path__ = [{str(PACKAGE)!r}]
sys.modules[package.__name__] = package
from {COMPILER_MODULE} import serve
serve()
"""
"""A compiling process. The folder that it is started in is no place to look for modules: one there
could take the place of another. The package's front, which holds all that users ask for, is left
out: it would be a third of what the process takes to start."""

RUNTIME_SIZE = 1000
"""The runtime takes longer to compile than any family."""

Finished = Callable[[int, bytes], None]
Work = tuple[int, Bundle]


def compile_missing(
    bundles: Sequence[Bundle], target: Target, cache: Cache, progress: Progress | None
) -> list[bytes]:
    """The objects of all bundles: from the cache, or compiled and kept there."""
    keys = [bundle_key(b, target) for b in bundles]
    objects = [cache.read(OBJECTS, key) for key in keys]
    missing = [(i, bundles[i]) for i, data in enumerate(objects) if data is None]
    done = len(bundles) - len(missing)
    lock = threading.Lock()

    def finished(index: int, data: bytes) -> None:
        nonlocal done
        cache.write(OBJECTS, keys[index], data)
        with lock:
            objects[index] = data
            done += 1
            if progress is not None:
                progress("compile", done, len(bundles))

    if progress is not None:
        progress("compile", done, len(bundles))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = min(cores or 1, len(missing) // BUNDLES_WORTH_A_PROCESS)
    if processes > 1 and sys.executable:
        missing = _compile_in_processes(missing, target, processes, finished)
    if missing:
        compiler = import_module(COMPILER_MODULE)
        for index, bundle in missing:
            finished(index, compiler.compile_bundle(bundle, target))
    return [data for data in objects if data is not None]


def _compile_in_processes(
    work: Sequence[Work], target: Target, processes: int, finished: Finished
) -> list[Work]:
    """Compile in child processes, the largest bundles first; returns what they could not do."""
    waiting: queue.SimpleQueue[Work] = queue.SimpleQueue()
    for item in sorted(work, key=lambda w: -_size(w[1])):
        waiting.put(item)
    left: list[Work] = []

    def feed() -> None:
        command = [sys.executable, "-c", CHILD]
        item: Work | None = None
        try:
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
                assert child.stdin is not None
                assert child.stdout is not None
                while not waiting.empty():
                    try:
                        item = waiting.get_nowait()
                    except queue.Empty:
                        break
                    pickle.dump((item[1], target), child.stdin)
                    child.stdin.flush()
                    data = pickle.load(child.stdout)
                    finished(item[0], data)
                    item = None
                child.stdin.close()
        except (OSError, EOFError, pickle.PickleError) as error:
            log.warning("a compiling process ended early (%s); going on in this one", error)
            if item is not None:
                left.append(item)

    feeders = [threading.Thread(target=feed) for _ in range(processes)]
    for feeder in feeders:
        feeder.start()
    for feeder in feeders:
        feeder.join()
    while not waiting.empty():
        left.append(waiting.get_nowait())
    return left


def _size(bundle: Bundle) -> int:
    """Roughly how much code a bundle is: multiply-adds written out."""
    if isinstance(bundle, KernelBundle):
        return sum(k.tile.accumulators for k in bundle.kernels)
    return RUNTIME_SIZE
