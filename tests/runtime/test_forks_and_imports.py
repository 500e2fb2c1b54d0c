"""Forks beside imports: neither the process nor its children wait for ever, and none is left."""

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from ftuner.runtime.cache import CACHE_VARIABLE

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")]
ROOT = Path(__file__).parents[2]
SECONDS = 120
ENDING_S = 20
CALL = """
def call():
    import numpy as np
    import ftuner
    a = np.ones((8, 8), np.float32)
    assert (ftuner.matmul(a, a) == 8).all()
"""
BESIDE = """
import os, threading, time
stop = False
def fork():
    while not stop:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
thread = threading.Thread(target=fork)
thread.start()
try:
    {imports}
    call()
finally:
    stop = True
    thread.join()
"""
AMIDST = """
import os, signal, threading, time
import ftuner
thread = threading.Thread(target=call)
thread.start()
time.sleep({delay_s})
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    call()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
thread.join()
"""
FORKER = """
import logging, os, subprocess, sys
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-S", "-c", ""])
    logging.getLogger(f"forker.{pid}")
    os.waitpid(pid, 0)
DONE = True
"""
IMPORTING = """
import threading
from importlib import import_module
import ftuner
thread = threading.Thread(target=import_module, args=("forker",))
thread.start()
call()
thread.join()
import forker
assert forker.DONE
"""
POOL = """
import multiprocessing
if __name__ == "__main__":
    call()
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        for result in [pool.apply_async(call) for _ in range(4)]:
            result.get(60)
"""


def run(text: str, folder: Path, cache: Path) -> None:
    """Run a program in a session of its own, in which no process is left."""
    program = folder / "program.py"
    program.write_text(CALL + text)
    environment = {**os.environ, CACHE_VARIABLE: str(cache), "FTUNER_NUM_THREADS": "2"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(program)], env=environment, text=True,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as started:  # fmt: skip
        try:
            _, errors = started.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, 9)
            raise
    # Python reports locks that a module registers in the midst of a fork; they do no harm.
    assert started.returncode == 0, errors
    # The helpers of `multiprocessing` end by themselves.
    began = time.monotonic()
    while is_alive(started.pid):
        assert time.monotonic() - began < ENDING_S
        time.sleep(0.05)


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


OTHERS = [name for name in ("onnxruntime", "openvino", "torch") if find_spec(name) is not None]


@pytest.mark.parametrize(
    "modules",
    [
        ["ftuner"],
        ["numpy", "ftuner"],
        ["logging", "ftuner"],
        *(
            pytest.param(order, marks=pytest.mark.full)
            for name in OTHERS
            for order in ([name, "ftuner"], ["ftuner", name, "ftuner.ort"])
        ),
    ],
    ids=" ".join,
)
def test_a_thread_that_forks(modules: list[str], tmp_path: Path, cache_folder: Path) -> None:
    """In the background, while others import and call for the first time."""
    run(BESIDE.format(imports="import " + ", ".join(modules)), tmp_path, cache_folder)


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_a_fork_amidst_the_first_call(delay_s: float, tmp_path: Path, cache_folder: Path) -> None:
    """The child calls as well, though the parent was importing what it needs."""
    run(AMIDST.format(delay_s=delay_s), tmp_path, cache_folder)


def test_a_module_that_forks_when_it_is_imported(tmp_path: Path, cache_folder: Path) -> None:
    (tmp_path / "forker.py").write_text(FORKER)
    run(IMPORTING, tmp_path, cache_folder)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_pools_of_processes(method: str, tmp_path: Path, cache_folder: Path) -> None:
    run(POOL.format(method=method), tmp_path, cache_folder)
