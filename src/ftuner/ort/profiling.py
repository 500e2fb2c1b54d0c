"""The profile of a session: when its model was loaded and when it ran, as Chrome's trace viewer
reads it."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from pathlib import Path

from ftuner.core.files import write_whole


class Profile:
    """Events of one session, from its beginning on."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: how the name of the file begins."""
        now = datetime.now()
        self._path = Path(f"{prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03d}.json")
        self.start_ns = time.monotonic_ns()
        self._events: list[dict[str, object]] = []

    def add(self, name: str, began_ns: int) -> None:
        """An event that ends now. `began_ns`: by `time.monotonic_ns`."""
        event = {
            "cat": "Session", "name": name, "ph": "X", "args": {},
            "ts": (began_ns - self.start_ns) // 1000,
            "dur": (time.monotonic_ns() - began_ns) // 1000,
            "pid": os.getpid(), "tid": threading.get_native_id(),
        }  # fmt: skip
        self._events.append(event)

    def written(self) -> str:
        """Write the events to the file; returns its name."""
        write_whole(self._path, json.dumps(self._events, indent=0))
        return str(self._path)
