"""What a section of `benchmarks.gpu` has measured, kept so that it survives what is measured.

A section runs in a process of its own. It writes down which case and which engine it is about to
run. When a kernel hangs, or takes the process with it, `benchmarks.gpu` reads that, and starts the
section again, without what failed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import Document, load, save

SUBJECT, LAUNCHES = "ftuner", "ftuner, launches"
"""Ours, as users get it; and models of which nothing is recorded."""
MOST_ENDED = 2
"""Cases that an engine may end before a section goes on without it."""


class AvoidedError(Exception):
    """An engine ended the process before, and is not tried again."""


class Fault(NamedTuple):
    """What a dry run does in place of a case, to show that nothing else is lost."""

    section: str
    number: int
    """Of the case, in the order of the section."""
    kind: str
    """raise, hang or abort; `peer-` in front: when the first peer of the case runs."""

    @classmethod
    def read(cls, text: str) -> Fault:
        section, number, kind = text.split(":")
        if kind.removeprefix("peer-") not in ("raise", "hang", "abort"):
            raise ValueError(f"{kind!r} is no kind of fault")
        return cls(section, int(number), kind)

    def __str__(self) -> str:
        return ":".join(map(str, self))

    def act(self) -> None:
        if self.kind.endswith("abort"):
            os.abort()
        if self.kind.endswith("hang"):
            time.sleep(3600.0)
        raise RuntimeError("a fault for the test")


class Journal:
    """The document of a section, written after each case."""

    def __init__(self, path: Path, fault: Fault | None = None) -> None:
        self.path, self._fault, self._label = path, fault, ""
        self.document: Document = load(path)

    @property
    def marker(self) -> Path:
        """The file that names the case and the engine that run."""
        return self.path.with_suffix(".running")

    def known(self, label: str) -> bool:
        """Whether a case was measured before, or cannot be."""
        return label in self.document["lost"] or any(
            case["label"] == label for case in self.document["cases"]
        )

    def begin(self, label: str) -> None:
        """Write down that a case begins."""
        self._label = label
        self.enter()
        self._inject("")

    def enter(self, engine: str = "") -> None:
        """Write down which engine runs; none while all are timed.

        Raises:
            AvoidedError: it ended this case, or others, before.
        """
        ended = [entry for entry in self.document["avoided"] if entry["engine"] == engine]
        for entry in ended:
            if entry["label"] == self._label or len(ended) >= MOST_ENDED:
                raise AvoidedError(entry["reason"])
        self.marker.write_text(json.dumps([self._label, engine]))
        if engine not in ("", SUBJECT, LAUNCHES) and not self.document["avoided"]:
            self._inject("peer-")

    def _inject(self, prefix: str) -> None:
        fault, reached = self._fault, len(self.document["cases"]) + len(self.document["lost"])
        if fault and fault.number == reached and fault.kind.startswith("peer-") == bool(prefix):
            self._fault = None
            fault.act()

    def add(self, label: str, result: Mapping[str, Any]) -> None:
        """Keep the result of a case."""
        self.document["cases"].append({"label": label, **result})
        self.save()

    def lose(self, label: str, reason: str) -> None:
        """Keep why a case has no result."""
        self.document["lost"][label] = reason
        self.save()

    def save(self) -> None:
        save(self.document, self.path)
        self.marker.unlink(missing_ok=True)

    def ended(self, reason: str) -> bool:
        """Keep how the section's process ended; returns whether the rest can still be measured."""
        try:
            label, engine = json.loads(self.marker.read_text())
        except (OSError, ValueError):
            self.document.setdefault("error", reason)
            label = None
        else:
            if engine in ("", SUBJECT, LAUNCHES):
                self.document["lost"][label] = reason
            else:
                entry = {"label": label, "engine": engine, "reason": reason}
                self.document["avoided"].append(entry)
        self.save()
        return label is not None
