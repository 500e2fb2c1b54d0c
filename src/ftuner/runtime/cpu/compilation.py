"""Compiles bundles that the cache lacks, in this process or in several, and loads objects."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from typing import NamedTuple

from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.codegen.llvm.objects.jit import Target
from ftuner.codegen.llvm.objects.keys import COMPILER_MODULE, bundle_key
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.errors import CompileError, ObjectFileError
from ftuner.runtime.cache import OBJECTS, Cache
from ftuner.runtime.compile_processes import Request, Started, answers, worthwhile_processes
from ftuner.runtime.shown_progress import Progress, shown


class Object(NamedTuple):
    """The machine code of a bundle."""

    data: bytes
    was_kept: bool
    """Whether it came from the cache, so that another process may have made it."""


class Compiler(NamedTuple):
    """Compiles bundles for a target, and keeps their objects in a cache."""

    target: Target
    cache: Cache
    bundles_per_process: int
    """Bundles for which a further process is worth starting; see `CpuTuning`."""

    def compile_missing(
        self, bundles: Sequence[Bundle], progress: Progress | None, started: Started | None = None
    ) -> dict[Bundle, Object]:
        """The objects of all bundles: from the cache, or compiled and kept there. `started`:
        processes of `COMPILER_MODULE`.

        Raises:
            CompileError: the compiler failed, or its process ended.
        """
        found: dict[Bundle, Object] = {}
        for bundle in bundles:
            data = self.cache.read(OBJECTS, bundle_key(bundle, self.target))
            if data is not None:
                found[bundle] = Object(data, was_kept=True)
        missing = [bundle for bundle in bundles if bundle not in found]
        if progress is not None:
            progress("compile", len(found), len(bundles))
        if not missing:
            return found
        with shown(progress) as show, closing(self._compiled(missing, started)) as made:
            for bundle, data in made:
                found[bundle] = Object(data, was_kept=False)
                show("compile", len(found), len(bundles))
        return found

    def load(self, bundles: Sequence[Bundle], objects: Mapping[Bundle, Object]) -> LoadedObject:
        """The objects of bundles in this process. An entry of the cache that is not the object of
        its bundle is compiled again, with a warning.

        Raises:
            ObjectFileError: what has just been compiled cannot be loaded.
            CompileError: the compiler failed.
        """
        symbols = [symbol for bundle in bundles for symbol in bundle.symbols]
        try:
            return LoadedObject([objects[bundle].data for bundle in bundles], symbols)
        except ObjectFileError as error:
            kept = [bundle for bundle in bundles if objects[bundle].was_kept]
            if not kept:
                raise
            # If each can be loaded by itself, they do not fit together: all are compiled again.
            spoiled = [b for b in kept if not _can_be_loaded(b, objects[b].data)] or kept
            for bundle in spoiled:
                self.cache.spoiled(OBJECTS, bundle_key(bundle, self.target), str(error))
        again = dict(self._compiled(spoiled))
        return LoadedObject([again.get(b, objects[b].data) for b in bundles], symbols)

    def _compiled(
        self, bundles: Sequence[Bundle], started: Started | None = None
    ) -> Generator[tuple[Bundle, bytes], None, None]:
        """Compile bundles, the largest first, and keep the objects in the cache; yields each when
        it is done."""
        left = sorted(bundles, key=lambda bundle: -bundle.size)
        # A compiling process may not find what is from outside ftuner.
        sent = [
            bundle
            for bundle in left
            if not bundle.functions and all(name.startswith("ftuner.") for name in bundle.modules)
        ]
        processes = worthwhile_processes(len(sent), self.bundles_per_process)
        if processes > 1 or (started is not None and started.wait):
            requests = [requested(bundle, self.target) for bundle in sent]
            with closing(answers(COMPILER_MODULE, requests, processes, started=started)) as found:
                for number, data in found:
                    left.remove(sent[number])
                    self.cache.write(OBJECTS, bundle_key(sent[number], self.target), data)
                    yield sent[number], data
        for bundle in left:
            compiler = import_module(COMPILER_MODULE)
            try:
                data = compiler.compile_bundle(bundle, self.target)
            except Exception as error:  # Whatever LLVM and llvmlite raise.
                raise CompileError(
                    f"cannot compile {_name(bundle)}: {type(error).__name__}: {error}"
                ) from error
            self.cache.write(OBJECTS, bundle_key(bundle, self.target), data)
            yield bundle, data


def _can_be_loaded(bundle: Bundle, data: bytes) -> bool:
    try:
        LoadedObject([data], bundle.symbols)
    except ObjectFileError:
        return False
    return True


def requested(bundle: Bundle, target: Target) -> Request:
    """What a compiling process is asked for to compile a bundle."""
    return Request(_name(bundle), (bundle, target))


def _name(bundle: Bundle) -> str:
    more = "" if len(bundle.symbols) == 1 else f" and {len(bundle.symbols) - 1} more"
    return f"{bundle.symbols[0]}{more}"
