"""Interrupts at chosen places of ours, of all those at which Python sees to signals."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import ftuner

PACKAGE = str(Path(ftuner.__file__).parent)
STATEFUL = tuple(
    f"{PACKAGE}/runtime/{name}.py:"
    for name in (
        "cache", "cpu/backend", "cpu/call_cache", "cpu/compilation", "cpu/executable",
        "cpu/kernels", "cpu/memory", "cpu/products", "cpu/run_states", "cpu/scratch", "cpu/session",
        "cpu/threads",
    )
)  # fmt: skip
"""Modules with something that outlives a call."""
assert all(Path(module[:-1]).is_file() for module in STATEFUL), STATEFUL
TESTS = str(Path(__file__).parents[1])


class Interrupter:
    """Calls functions, and knows the places at which Python would see to a signal: where a function
    begins, and where a built-in one has returned."""

    def __init__(self) -> None:
        self._left = 0
        self._seen: list[str] = []

    def places(self, work: Callable[[], object]) -> list[int]:
        """Numbers of places of `work`, from 1: the first one at each line of `STATEFUL`."""
        self._seen, self._left = [], 0
        self._watched(work)
        numbered = reversed(list(enumerate(self._seen, 1)))
        first = {place: number for number, place in numbered if place.startswith(STATEFUL)}
        return sorted(first.values())

    def interrupted(self, work: Callable[[], object], number: int) -> bool:
        """Call `work` and raise KeyboardInterrupt at its place of that number; whether it came so
        far, and let the interrupt through."""
        self._seen, self._left = [], number
        try:
            self._watched(work)
        except KeyboardInterrupt:
            return True
        return False

    @property
    def place(self) -> str:
        """The last one: file, line and function."""
        return self._seen[self._left - 1]

    def _watched(self, work: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self._see)
        try:
            work()
        finally:
            sys.setprofile(before)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event in ("call", "c_return") and not name.startswith(TESTS):
            what = frame.f_code.co_name if event == "call" else argument.__name__
            line = f"{name}:{frame.f_lineno}" if name.startswith(PACKAGE) else name
            self._seen.append(f"{line} {event} {what}")
            if len(self._seen) == self._left:
                raise KeyboardInterrupt


def is_free(lock: Any) -> bool:
    """Whether nobody has a lock, this thread included."""
    with suppress(RuntimeError):
        # A reentrant lock of this thread can be released; one that nobody has cannot.
        if hasattr(lock, "_is_owned") and lock._is_owned():
            return False
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
