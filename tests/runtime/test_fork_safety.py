"""Forks: whatever another thread is at, the child goes on, with sound state and free locks."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from tests.child import printed

from ftuner.core.caching import cached_attribute
from ftuner.core.fork_safety import fork_safe_lock, wait_before_fork
from ftuner.runtime.cache import CACHE_VARIABLE

pytest.importorskip("onnx")
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]
ACTIVITIES = (
    "tuning", "probing", "compiling_somewhere", "loading", "loading_a_model", "attending_first",
    "planning", "running_a_model", "within_llvm", "within_an_import",
    "meeting_a_kind_of_step", "with_every_lock", "with_processes",
)  # fmt: skip
SECONDS = 120


def run(name: str, folder: Path) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, CACHE_VARIABLE: str(folder), "FTUNER_NUM_THREADS": "2", "FTUNER_ISA": "",
        "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    arguments = "-X", "faulthandler", "-m", "tests.runtime.forking", name
    assert printed(*arguments, env=environment, cwd=ROOT, seconds=SECONDS).strip() == "done"


@pytest.mark.parametrize("name", ACTIVITIES)
def test_a_child_does_everything(name: str, cache_folder: Path) -> None:
    run(name, cache_folder)


def test_a_child_compiles(tmp_path: Path) -> None:
    """What its parent is compiling, in processes of its own."""
    run("tuning", tmp_path)


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a child that calls `work`, which has some seconds."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def in_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Another thread works until the block ends; it sets the event when the block may begin."""
    began = threading.Event()
    thread = threading.Thread(target=work, args=(began,))
    thread.start()
    assert began.wait(10)
    try:
        yield
    finally:
        thread.join(10)
        assert not thread.is_alive()


def test_locks_are_free_in_a_child() -> None:
    lock, end = fork_safe_lock(), threading.Event()

    def hold(began: threading.Event) -> None:
        with lock:
            began.set()
            end.wait()

    def enter() -> None:
        with lock, lock:
            pass

    with in_thread(hold):
        try:
            assert in_child(enter) == 0
        finally:
            end.set()
    enter()


def test_the_thread_that_forks_keeps_its_locks() -> None:
    lock = fork_safe_lock()

    def leave() -> None:
        lock.__exit__(None, None, None)
        with pytest.raises(RuntimeError):
            lock.__exit__(None, None, None)

    with lock:
        assert in_child(leave) == 0


def test_a_fork_waits_for_steps_of_libraries() -> None:
    """What is half done is never seen."""
    library = threading.RLock()
    wait_before_fork(library)
    steps: list[str] = []

    def step(began: threading.Event) -> None:
        with library:
            steps.append("first half")
            began.set()
            time.sleep(0.2)
            steps.append("second half")

    def look() -> None:
        assert len(steps) == 2
        with library:
            pass

    with in_thread(step):
        assert in_child(look) == 0


def test_threads_that_fork_at_once() -> None:
    statuses: list[int] = []

    def fork(began: threading.Event) -> None:
        began.set()
        statuses.extend(in_child(lambda: import_module("json")) for _ in range(5))

    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(in_thread(fork))
    assert statuses == [0] * 20


def test_attributes_are_computed_in_a_child_too() -> None:
    """Python's own way has one lock for all instances of a class, up to 3.11."""
    end = threading.Event()

    class Square:
        def __init__(self, side: int, began: threading.Event | None = None) -> None:
            self.side, self.began = side, began

        @cached_attribute
        def area(self) -> int:
            """Its area."""
            if self.began is not None:
                self.began.set()
                end.wait()
            return self.side**2

    def compute(began: threading.Event) -> None:
        assert Square(2, began).area == 4

    def compare() -> None:
        assert Square(3).area == 9

    with in_thread(compute):
        try:
            assert in_child(compare) == 0
        finally:
            end.set()
    found = Square(5)
    assert (found.area, found.area, vars(found)["area"]) == (25, 25, 25)
    assert Square.area.__doc__ == "Its area."
