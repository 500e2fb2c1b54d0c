"""The profile of a session: when its model was loaded and when it and its steps ran, in the format
of Chrome's trace viewer, with the fields of onnxruntime's profile."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from ftuner.core.files import write_whole
from ftuner.runtime.chain import Note, Timed

MAX_EVENTS = 1_000_000
"""Events that a profile keeps; later ones are dropped, as in onnxruntime."""


class Profile:
    """Events of one session, from its beginning on."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: how the name of the file begins."""
        now = datetime.now()
        self._path = Path(f"{prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03d}.json")
        self.start_ns = time.monotonic_ns()
        self._events: list[dict[str, object]] = []

    def add(self, name: str, began_ns: int) -> None:
        """Add an event of the session that ends now. `began_ns`: by `time.monotonic_ns`."""
        self._add("Session", name, began_ns, time.monotonic_ns(), {})

    def steps(self, provider: str) -> Note:
        """Returns what adds an event for each step of one run. `provider`: where it runs."""
        alike: Counter[str] = Counter()

        def note(step: Timed) -> None:
            alike[step.title] += 1
            # Tools sum the durations of events of one name; onnxruntime's end in this suffix.
            name = f"{step.title} {alike[step.title]}_kernel_time"
            args = {
                "op_name": step.title, "provider": provider, "node_index": str(alike.total()),
                "kind": step.kind,
            }  # fmt: skip
            self._add("Node", name, step.began_ns, step.began_ns + step.duration_ns, args)

        return note

    def _add(
        self, category: str, name: str, began_ns: int, ended_ns: int, args: dict[str, str]
    ) -> None:
        if len(self._events) >= MAX_EVENTS:
            return
        began_us, ended_us = ((ns - self.start_ns) // 1000 for ns in (began_ns, ended_ns))
        event = {
            "cat": category, "name": name, "ph": "X", "args": args,
            "ts": began_us, "dur": ended_us - began_us,
            "pid": os.getpid(), "tid": threading.get_native_id(),
        }  # fmt: skip
        self._events.append(event)

    def written(self) -> str:
        """Write the events to the file; returns its name."""
        # Runs of other threads may still add some.
        write_whole(self._path, json.dumps(list(self._events), indent=0))
        return str(self._path)
