"""Progress of long work on a terminal, where a caller gives no function for it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ftuner.errors import ConfigurationError

VARIABLE = "FTUNER_PROGRESS"
"""0: nothing is shown; 1: also where stderr is not a terminal."""
PATIENCE_S = 0.5
"""Work that is shorter is not shown."""
REFRESHES_PER_S = 4

Progress = Callable[[str, int, int], None]
"""Called during long work with what is done, how much of it, and of how much."""

_process_that_shows = [0]
"""The process that has a bar, which work within other work shares; 0 for none."""


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """What long work reports to: `progress` if it is given, else a bar on stderr if that is a
    terminal. An interrupt leaves one line there.

    Raises:
        ConfigurationError: `FTUNER_PROGRESS` is neither 0 nor 1.
    """
    if progress is not None:
        yield progress
        return
    if not _is_wanted() or _process_that_shows[0] == os.getpid():
        yield _silent
        return
    _process_that_shows[0] = os.getpid()
    bar = _Bar()
    try:
        yield bar
    except KeyboardInterrupt:
        bar.end()
        bar.say_interrupted()
        raise
    finally:
        bar.end()
        _process_that_shows[0] = 0


def _is_wanted() -> bool:
    text = os.environ.get(VARIABLE, "").strip()
    if text not in ("", "0", "1"):
        raise ConfigurationError(f"{VARIABLE} is {text!r}; expected 0 or 1")
    return text != "0" and (text == "1" or _on_terminal())


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # There is none, or it is closed.
        return False


def _silent(what: str, done: int, total: int) -> None:
    """Show nothing."""


class _Bar:
    """A bar that appears after `PATIENCE_S`, drawn by rich, which has locks of its own."""

    def __init__(self) -> None:
        self._state = ("ftuner", 0, 0)
        self._drawn: Any = None
        self._ended = False
        self._timer = threading.Timer(PATIENCE_S, self._begin)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._state = (what, done, total)
        self._draw()

    def _begin(self) -> None:
        room = import_module("rich.progress")
        console = import_module("rich.console").Console(
            stderr=True, force_terminal=None if _on_terminal() else True
        )
        columns = room.TextColumn("{task.description}"), room.BarColumn(), room.MofNCompleteColumn()
        drawn = room.Progress(
            *columns, console=console, transient=True, refresh_per_second=REFRESHES_PER_S
        )
        drawn.add_task("ftuner", total=None)
        if not self._ended:
            drawn.start()
            self._drawn = drawn
            self._draw()
        # The end came meanwhile, and found no bar to stop.
        if self._ended:
            drawn.stop()

    def _draw(self) -> None:
        what, done, total = self._state
        if self._drawn is not None:
            task = self._drawn.task_ids[0]
            self._drawn.update(task, description=what, completed=done, total=total or None)

    def end(self) -> None:
        self._timer.cancel()
        self._ended = True
        if self._drawn is not None:
            self._drawn.stop()

    def say_interrupted(self) -> None:
        what, done, total = self._state
        print(
            f"ftuner: interrupted at {what}, {done} of {total}; what was compiled is kept",
            file=sys.stderr,
        )
