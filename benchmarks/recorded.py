"""The results that are kept: a folder for each machine, with what is to be said of it."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report_decoding, report_zoo
from benchmarks.comparisons import FORMS, compared
from benchmarks.report_gpu import KIND as GPU
from benchmarks.results import Document, load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PEERS_KINDS = ("model", "vision", "speech", "recurrent", "conv", "gemm", "bmm", *FORMS)
"""Kinds of document that compare ftuner with its peers, in the order of the pages."""
KINDS = (
    *PEERS_KINDS, "unseen", "int8", "metaschedule", "regret", "overhead", "start", "first", GPU,
    report_zoo.KIND, report_decoding.KIND, "clients",
)  # fmt: skip
"""Kinds of document that the pages and summaries show; other results may stand beside them."""
ABOUT = "about.toml"
"""The file of a folder with the name of its machine, `title`; the name of its page, `page`; and if
an earlier version of ftuner was measured, what it lacked, `state`."""


@dataclass(frozen=True)
class Recorded:
    """The results of one machine."""

    title: str
    page: str
    """Name of its page and its pictures, without their suffixes."""
    state: str
    """What the version that was measured lacked; empty if it is a recent one."""
    documents: tuple[Document, ...]
    """By kind, set and threads."""

    @property
    def newest(self) -> str:
        """The date of the newest result."""
        return str(max(document["date"] for document in self.documents))

    def of_kind(self, *kinds: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] in kinds]


def read_recorded(results: Path) -> list[Recorded]:
    """The machines of the folders of `results`: recent versions of ftuner first, newest first."""
    found = [_read(folder) for folder in sorted(results.iterdir()) if folder.is_dir()]
    machines = [machine for machine in found if machine.documents]
    machines.sort(key=lambda machine: machine.newest, reverse=True)
    return sorted(machines, key=lambda machine: machine.state != "")


def _read(folder: Path) -> Recorded:
    documents = _documents(folder)
    about: dict[str, str] = {}
    if (folder / ABOUT).exists():
        about = tomllib.loads((folder / ABOUT).read_text())
    title = about.get("title") or (documents[0]["machine"]["cpu_model"] if documents else "")
    slug = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    return Recorded(title, about.get("page", slug), about.get("state", ""), tuple(documents))


def _documents(folder: Path) -> Sequence[Document]:
    paths = [
        path
        for path in sorted(folder.glob("*.json"))
        if json.loads(path.read_text()).get("kind") in KINDS
    ]
    documents = compared(load(path) for path in paths)
    return sorted(documents, key=lambda d: (KINDS.index(d["kind"]), d["set"], d["threads"]))
