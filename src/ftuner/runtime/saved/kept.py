"""Compiled models in the cache: a file that was loaded before is loaded as a saved model is, so
that nothing is read, compiled or packed again."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ftuner.codegen.llvm.objects.jit import compiler_build
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.extensions import EXTENSIONS
from ftuner.core.files import FileState, state_of, within
from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import instruction_flush
from ftuner.core.version import VERSION
from ftuner.errors import FTunerError, GraphError, ParseError
from ftuner.graph.sources import Files
from ftuner.graph.splitting import SplitGraph
from ftuner.hardware.isa import instruction_set
from ftuner.runtime.backend import Backend
from ftuner.runtime.cache import MODELS
from ftuner.runtime.chosen_model import UnrankedModel
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.threads import checked_threads
from ftuner.runtime.model import Model
from ftuner.runtime.request import Request
from ftuner.runtime.saved import container, models
from ftuner.runtime.specialization import SavedSpecialization

MODEL_SHARE = 0.5
"""Of the cache's bound, which one model may take. Assumed. The weights of larger ones are made of
their file again, as far as that is known."""
CHUNK_BYTES = 16 << 20
"""Bytes of a file that one thread digests at a time: about 10 ms with SHA instructions."""
_BLOCK_BYTES = 1 << 20
_PACKAGE = Path(__file__).parents[2]
"""Of ftuner."""
_IMPORTED_S = time.time()

_LOG = logging.getLogger(__name__)


class Read(NamedTuple):
    """What is to be known of a file that was read."""

    header: Callable[[], Any]
    """What the file declares, as the front end has it."""
    repeated: bool
    """Whether it names several dims of its inputs alike."""
    files: Mapping[str, FileState]
    """The states of data outside the file, by location, before it was read."""


class Found(NamedTuple):
    """A model that the cache has."""

    graph: SplitGraph | SavedSpecialization
    code: LoadedObject
    """Its machine code, which the back end has as long as this is kept."""
    read: Read
    data: Files
    """Of what weights are made, as long as this is kept."""


@dataclass(frozen=True)
class Place:
    """Where the cache has, or may have, the model of a file as it was asked for."""

    backend: CpuBackend
    path: str
    key: str
    """Of a file that holds all of the model."""
    key_here: str
    """Of one with data outside, which is found by its folder."""
    content: str
    """The digest of the file."""
    state: FileState
    """Of the file before it was read."""

    def found(self) -> Found | None:
        """The model of the cache; None if there is none. One that is damaged is dropped with a
        CacheWarning."""

        def read(file: BinaryIO) -> Found | None:
            try:
                content, sections = container.read_open(file.fileno(), self.backend.cores)
                try:
                    states = self._states(content["files"])
                    if self._digests(states) != content["files"]:
                        return None
                except OSError:
                    return None
                header = cache(partial(models.value_of, content["header"], sections))
                known = Read(header, bool(content["repeated"]), states)
                data = Files(lambda location: self._outside(location) if location else self.path)
                try:
                    graph = models.graph_of(content, sections, data)
                except OSError as error:  # Of the model's files: the entry is as it was.
                    _LOG.info("%s: %s", self.path, error)
                    return None
                except (ParseError, *container.MALFORMED):
                    if self.is_unchanged(known):
                        raise
                    return None
                code = self.backend.kernels.add(models.image_of(content, sections))
                return Found(graph, code, known, data)
            except container.MALFORMED as error:
                raise ParseError(f"{type(error).__name__}: {error}") from error

        found = self.backend.cache.read_file(MODELS, self.key, read)
        return found or self.backend.cache.read_file(MODELS, self.key_here, read)

    def spoiled(self, found: Found, error: Exception) -> None:
        """Drop what was found, with a CacheWarning."""
        key = self.key_here if found.read.files else self.key
        self.backend.cache.spoiled(MODELS, key, f"{type(error).__name__}: {error}")

    def keep(self, model: Model, read: Read) -> None:
        """Have the cache keep what was compiled of the file, unless it is of a kind that cannot be
        kept, too much of it is not made of the file, or one of the files has changed meanwhile."""
        # A model without variants, though its file names dims alike, is logged at each load.
        whole = read.repeated == (model.variants is not None)
        most = MODEL_SHARE * self.backend.cache.max_bytes
        if not whole or EXTENSIONS or isinstance(model, UnrankedModel):
            return
        if not self.backend.cache.state().writeable:
            return
        try:
            kernels, bundles = models.code_of(model)
            image = kernels.kept_image(bundles)
            if image is None:
                return
            files = self._digests(read.files)
            # Graphs of one model may share weights, which are written once.
            largest = max(x.weights_bytes for x in model.all_executables())
            for makes in (False, True) if largest <= most else (True,):
                sections = models.Sections(makes)
                entries = models.steps_section(model, sections)
                header = models.section_of(read.header(), sections)
                code = models.image_document(image, sections)
                size = sum(view.nbytes for view in sections.views)
                if size <= most:
                    break
            if not self.is_unchanged(read):
                return
        except (FTunerError, OSError, MemoryError, RecursionError) as error:
            _LOG.info("%s is not kept in the cache: %r", self.path, error)
            return
        content = {
            "header": header, "repeated": read.repeated, "files": files, "entries": entries,
            "code": code, "made": sections.made,
        }  # fmt: skip
        if size > most:
            _LOG.info("%s is not kept in the cache: of its weights, %d bytes are not made of the "
                      "file as products read them", self.path, size)  # fmt: skip
            return
        key = self.key_here if files else self.key
        self.backend.cache.write_file(
            MODELS, key, size, lambda file: container.fill(file, content, sections.views)
        )

    def expect_same(self) -> None:
        """Raises GraphError if the file has changed. Reading says if it is gone."""
        path, cores = self.path, self.backend.cores
        if os.path.isfile(path) and digest_of(path, cores) != self.content:
            raise GraphError("the model's file has changed since it was loaded")

    def is_unchanged(self, read: Read) -> bool:
        """Whether the files are as they were before they were read."""
        try:
            return state_of(self.path) == self.state and self._states(read.files) == read.files
        except OSError:
            return False

    def _outside(self, location: str) -> Path:
        """The path of data outside the file. Raises FileNotFoundError if there is none."""
        path = Path(self.path)
        found = within([path.parent.resolve(), path.resolve().parent], location)
        if found is None:
            raise FileNotFoundError(f"no file {location!r} beside {path}")
        return found

    def _states(self, locations: Iterable[str]) -> dict[str, FileState]:
        """The states of data outside the file. Raises OSError."""
        return {location: state_of(self._outside(location)) for location in locations}

    def _digests(self, locations: Iterable[str]) -> dict[str, str]:
        """The digests of data outside the file. Raises OSError."""
        return {x: digest_of(self._outside(x), self.backend.cores) for x in locations}


def place_of(path: str, request: Request, backend: Backend, given: object) -> Place | None:
    """The place of a model; None where none is kept: on a GPU, where the path is not that of a
    regular file, or where not all is known that its program depends on. `given`: what decides it
    beside the file and the request, of which the text says all.

    Raises:
        ConfigurationError: a number of threads out of range.
    """
    if not isinstance(backend, CpuBackend) or EXTENSIONS or instruction_flush() is None:
        return None
    facts, threads, sources = backend.facts, request.threads, _sources(_PACKAGE)
    # Reading a FIFO would block, and reading a device may not end.
    if not facts.features or not sources or not os.path.isfile(path):
        return None
    try:
        state = state_of(path)
        content = digest_of(path, backend.cores)
    except OSError:
        return None  # Reading it says what is wrong.
    axis = request.batch_axis
    asked = (
        content, VERSION, sources, np.__version__, compiler_build(), facts.fingerprint,
        models.hardware_document(backend.hardware), instruction_set(backend.target),
        backend.threads if threads is None else checked_threads(threads),
        request.append_in_place, request.precision, request.unpad,
        sorted(map(repr, axis.items())) if isinstance(axis, Mapping) else axis, given,
    )  # fmt: skip
    folder = os.path.realpath(os.path.dirname(path))
    key, key_here = (
        hashlib.sha256(repr(x).encode()).hexdigest()[:32] for x in (asked, (asked, folder))
    )
    return Place(backend, path, key, key_here, content, state)


@cache
def _sources(folder: Path) -> str:
    """Names the sources in a folder by their sizes and the seconds of their times, by which Python
    decides, too, whether a compiled module is of its source. Empty where there are none, in a
    frozen program, and where one was written after this process imported modules."""
    found, left = [], [os.fspath(folder)]
    try:
        while left:
            for entry in os.scandir(left.pop()):
                if entry.is_dir():
                    left += [entry.path] * (entry.name != "__pycache__")
                elif entry.name.endswith(".py"):
                    status = entry.stat()
                    found.append((entry.path, status.st_size, int(status.st_mtime)))
    except OSError:
        return ""
    if not found or max(written for *_, written in found) > _IMPORTED_S:
        return ""
    return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()


def digest_of(path: str | Path, threads: int) -> str:
    """The digest of a file: the SHA-256 of the SHA-256 digests of its chunks, which several threads
    compute. Raises OSError."""
    chunks = range(0, max(os.stat(path).st_size, 1), CHUNK_BYTES)

    def digest(at: int) -> bytes:
        found, block = hashlib.sha256(), memoryview(bytearray(_BLOCK_BYTES))
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            left = CHUNK_BYTES
            while count := file.readinto(block[:left]):
                found.update(block[:count])
                left -= count
        return found.digest()

    return hashlib.sha256(b"".join(container.by_threads(digest, chunks, threads))).hexdigest()
