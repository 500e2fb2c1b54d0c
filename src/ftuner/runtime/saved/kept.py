"""Compiled models in the cache: a file that was loaded before is loaded as a saved model is, so
that nothing is read, compiled or packed again."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ftuner.codegen.llvm.objects.jit import compiler_build
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.extensions import EXTENSIONS
from ftuner.core.files import FileState, state_of, within
from ftuner.core.frozen import dataclass
from ftuner.core.operating_system import instruction_flush
from ftuner.core.version import VERSION
from ftuner.errors import FTunerError, GraphError, ParseError
from ftuner.graph.splitting import SplitGraph
from ftuner.hardware.isa import instruction_set
from ftuner.runtime.backend import Backend
from ftuner.runtime.cache import MODELS
from ftuner.runtime.chosen_model import ChosenModel
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.threads import checked_threads
from ftuner.runtime.model import Model
from ftuner.runtime.request import Request
from ftuner.runtime.saved import container, models

MODEL_SHARE = 0.5
"""Of the cache's bound, which the packed weights of one model may take. Assumed."""
_BLOCK_BYTES = 1 << 20
_PACKAGE = Path(__file__).parents[2]
"""Of ftuner."""
_IMPORTED_S = time.time()

_LOG = logging.getLogger(__name__)
Inputs = tuple[tuple[str, str, tuple[int | str | None, ...]], ...]
"""The name, dtype and dims of each input as a file has them."""


class Read(NamedTuple):
    """What is to be known of a file that was read."""

    inputs: Inputs | None
    """If it names several of their dims alike."""
    files: Mapping[str, FileState]
    """The states of data outside the file, by location, before it was read."""


class Found(NamedTuple):
    """A model that the cache has."""

    graph: SplitGraph
    code: LoadedObject
    """Its machine code, which the back end has as long as this is kept."""
    inputs: Inputs | None
    """As of `Read`."""


@dataclass(frozen=True)
class Place:
    """Where the cache has, or may have, the model of a file as it was asked for."""

    backend: CpuBackend
    path: str
    key: str
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
                if not self._are_same(content["files"]):
                    return None
                graph = models.graph_of(content, sections)
                if not isinstance(graph, SplitGraph):
                    raise ParseError("its last entry is not a graph")
                code = self.backend.kernels.add(models.image_of(content, sections))
                inputs = content["inputs"]
                if inputs is not None:
                    inputs = tuple((name, dtype, tuple(dims)) for name, dtype, dims in inputs)
                return Found(graph, code, inputs)
            except models.MALFORMED as error:
                raise ParseError(f"{type(error).__name__}: {error}") from error

        return self.backend.cache.read_file(MODELS, self.key, read)

    def spoiled(self, error: Exception) -> None:
        """Drop what was found, with a CacheWarning."""
        self.backend.cache.spoiled(MODELS, self.key, f"{type(error).__name__}: {error}")

    def keep(self, model: Model, read: Read) -> None:
        """Have the cache keep what was compiled of the file, unless it is large, of a kind that
        cannot be kept, or one of the files has changed meanwhile."""
        sections = models.Sections()
        # A model without variants, though its file names dims alike, is logged at each load.
        whole = (read.inputs is None) == (model.variants is None)
        read_bytes = sum(size for size, *_ in read.files.values())
        most = MODEL_SHARE * self.backend.cache.max_bytes
        large = max(model.weights_bytes, read_bytes) > most
        if large or not whole or EXTENSIONS or isinstance(model, ChosenModel):
            return
        if not self.backend.cache.state().writeable:
            return
        try:
            entries = models.steps_section(model, sections)
            kernels, bundles = models.code_of(model)
            image = kernels.kept_image(bundles)
            paths = {location: self._outside(location) for location in read.files}
            files = {location: _digest(path) for location, path in paths.items()}
            states = {location: state_of(path) for location, path in paths.items()}
            changed = state_of(self.path) != self.state or read.files != states
        except (FTunerError, OSError, MemoryError) as error:
            _LOG.info("%s is not kept in the cache: %s", self.path, error)
            return
        if image is None or changed:
            return
        content = {
            "inputs": read.inputs, "files": files, "entries": entries,
            "code": models.image_document(image, sections),
        }  # fmt: skip
        size = sum(view.nbytes for view in sections.views)
        self.backend.cache.write_file(
            MODELS, self.key, size, lambda file: container.fill(file, content, sections.views)
        )

    def expect_same(self) -> None:
        """Raises GraphError if the file has changed. Reading says if it is gone."""
        if os.path.isfile(self.path) and _digest(self.path) != self.content:
            raise GraphError("the model's file has changed since it was loaded")

    def _outside(self, location: str) -> Path:
        """The path of data outside the file. Raises FileNotFoundError if there is none."""
        path = Path(self.path)
        found = within([path.parent.resolve(), path.resolve().parent], location)
        if found is None:
            raise FileNotFoundError(f"no file {location!r} beside {path}")
        return found

    def _are_same(self, files: Mapping[str, str]) -> bool:
        """Whether data outside the file has these digests."""
        try:
            return all(_digest(self._outside(x)) == known for x, known in files.items())
        except OSError:
            return False


def place_of(path: str, request: Request, backend: Backend) -> Place | None:
    """The place of a model; None where none is kept: on a GPU, of a large file, or where not all is
    known that its program depends on.

    Raises:
        ConfigurationError: a number of threads out of range.
    """
    if not isinstance(backend, CpuBackend) or EXTENSIONS or instruction_flush() is None:
        return None
    facts, threads, sources = backend.facts, request.threads, _sources(_PACKAGE)
    try:
        state = state_of(path)
        large = state[0] > MODEL_SHARE * backend.cache.max_bytes
        if large or not facts.features or not sources:
            return None
        content = _digest(path)
    except OSError:
        return None  # Reading it says what is wrong.
    axis = request.batch_axis
    asked = (
        content, VERSION, sources, np.__version__, compiler_build(), facts.fingerprint,
        models.hardware_document(backend.hardware), instruction_set(backend.target),
        backend.threads if threads is None else checked_threads(threads),
        request.append_in_place, request.precision, request.unpad,
        sorted(map(repr, axis.items())) if isinstance(axis, Mapping) else axis,
    )  # fmt: skip
    key = hashlib.sha256(repr(asked).encode()).hexdigest()[:32]
    return Place(backend, path, key, content, state)


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


def _digest(path: str | Path) -> str:
    """The SHA-256 of a file's bytes."""
    digest, block = hashlib.sha256(), bytearray(_BLOCK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()
