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


def compile_missing(
    bundles: Sequence[Bundle], target: Target, cache: Cache, progress: Progress | None,
    bundles_per_process: int, started: Started | None = None,
) -> dict[Bundle, Object]:  # fmt: skip
    """The objects of all bundles: from the cache, or compiled and kept there.

    `bundles_per_process`: as in `CpuTuning`. `started`: processes of `COMPILER_MODULE`.

    Raises:
        CompileError: the compiler failed, or its process ended.
    """
    found: dict[Bundle, Object] = {}
    for bundle in bundles:
        data = cache.read(OBJECTS, bundle_key(bundle, target))
        if data is not None:
            found[bundle] = Object(data, was_kept=True)
    missing = [bundle for bundle in bundles if bundle not in found]
    if progress is not None:
        progress("compile", len(found), len(bundles))
    if not missing:
        return found
    made = _compiled(missing, target, cache, bundles_per_process, started)
    with shown(progress) as show, closing(made):
        for bundle, data in made:
            found[bundle] = Object(data, was_kept=False)
            show("compile", len(found), len(bundles))
    return found


def load(
    bundles: Sequence[Bundle], objects: Mapping[Bundle, Object], target: Target, cache: Cache,
    bundles_per_process: int,
) -> LoadedObject:  # fmt: skip
    """The objects of bundles in this process. An entry of the cache that is not the object of its
    bundle is compiled again, with a warning. `bundles_per_process`: as in `CpuTuning`.

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
            cache.spoiled(OBJECTS, bundle_key(bundle, target), str(error))
    again = dict(_compiled(spoiled, target, cache, bundles_per_process))
    return LoadedObject([again.get(b, objects[b].data) for b in bundles], symbols)


def _can_be_loaded(bundle: Bundle, data: bytes) -> bool:
    try:
        LoadedObject([data], bundle.symbols)
    except ObjectFileError:
        return False
    return True


def _compiled(
    bundles: Sequence[Bundle], target: Target, cache: Cache, bundles_per_process: int,
    started: Started | None = None,
) -> Generator[tuple[Bundle, bytes], None, None]:  # fmt: skip
    """Compile bundles, the largest first, and keep the objects in the cache; yields each when it is
    done."""
    left = sorted(bundles, key=lambda bundle: -bundle.size)
    # A compiling process may not find what is from outside ftuner.
    sent = [
        bundle
        for bundle in left
        if not bundle.functions and all(name.startswith("ftuner.") for name in bundle.modules)
    ]
    processes = worthwhile_processes(len(sent), bundles_per_process)
    if processes > 1 or (started is not None and started.wait):
        requests = [_request(bundle, target) for bundle in sent]
        with closing(answers(COMPILER_MODULE, requests, processes, started=started)) as found:
            for number, data in found:
                left.remove(sent[number])
                cache.write(OBJECTS, bundle_key(sent[number], target), data)
                yield sent[number], data
    for bundle in left:
        compiler = import_module(COMPILER_MODULE)
        try:
            data = compiler.compile_bundle(bundle, target)
        except Exception as error:  # Whatever LLVM and llvmlite raise.
            raise CompileError(
                f"cannot compile {_name(bundle)}: {type(error).__name__}: {error}"
            ) from error
        cache.write(OBJECTS, bundle_key(bundle, target), data)
        yield bundle, data


def begin(started: Started, bundle: Bundle, target: Target) -> None:
    """Have a process compile a bundle, as `Started.begin`."""
    started.begin(_request(bundle, target))


def _request(bundle: Bundle, target: Target) -> Request:
    return Request(_name(bundle), (bundle, target))


def _name(bundle: Bundle) -> str:
    more = "" if len(bundle.symbols) == 1 else f" and {len(bundle.symbols) - 1} more"
    return f"{bundle.symbols[0]}{more}"
