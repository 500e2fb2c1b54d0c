"""The code of an ISA: libraries of uKernels, kernels of graphs and the native runtime, compiled, or
read from the cache, when they are first needed."""

from __future__ import annotations

import ctypes
import logging
import mmap
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ftuner.codegen.llvm.native.symbols import (
    COPY_SYMBOL,
    DECIDE_SYMBOL,
    FILL_SYMBOL,
    FIND_SYMBOL,
    JOIN_SYMBOL,
    TEXTS_SYMBOL,
    WORDS_SYMBOL,
    driver_symbol,
    finish_symbol,
    reduce_symbol,
    widen_symbol,
)
from ftuner.codegen.llvm.objects.bundle import (
    Bundle,
    family_bundle,
    finish_bundle,
    reduce_bundle,
    runtime_bundle,
    widen_bundle,
)
from ftuner.codegen.llvm.objects.elf import parse
from ftuner.codegen.llvm.objects.jit import Target
from ftuner.codegen.llvm.objects.keys import COMPILER_MODULE, bundle_key
from ftuner.codegen.llvm.objects.linking import Image, Linked
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.caching import cached_attribute
from ftuner.core.cpu.tile import PACKED, ROW, UKernel
from ftuner.core.dtype import DTYPES, FLOAT32, DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.product import ProductTypes, product_types
from ftuner.errors import DTypeError
from ftuner.hardware.constants import part_of
from ftuner.hardware.isa import InstructionSet, instruction_set
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.tuning import CpuTuning, KLoopTuning, NativeTuning
from ftuner.runtime.backend import Tuned
from ftuner.runtime.cache import OBJECTS, Cache
from ftuner.runtime.cpu.arrays import DATA_WORD
from ftuner.runtime.cpu.plan_records import Functions
from ftuner.runtime.cpu.scratch import Workspaces
from ftuner.runtime.cpu.targets import known_target
from ftuner.runtime.cpu.threads import ThreadPool
from ftuner.runtime.shown_progress import Progress
from ftuner.ukernels.cpu.library import (
    Family,
    Library,
    LibraryName,
    build_library,
    families_of_calls,
)

if TYPE_CHECKING:
    from ftuner.runtime.compile_processes import Started
    from ftuner.runtime.cpu.compilation import Compiler, Object


log = logging.getLogger(__name__)


def _compilation() -> Any:
    """Imported by name: a model that the cache has compiles nothing."""
    return import_module("ftuner.runtime.cpu.compilation")


def started_with_runtime(isa: InstructionSet, cache: Cache) -> Started:
    """Processes, one of which compiles the runtime of a machine that is not known yet: until then,
    all that it depends on are defaults."""
    make, native = _compilation(), part_of(CpuTuning(), NativeTuning)
    runtime = runtime_bundle(isa.vector_bytes, DATA_WORD, native)
    target = known_target(isa.name, cache)
    started: Started = make.Started(COMPILER_MODULE)
    started.begin(make.requested(runtime, target))
    return started


class CompiledLibrary:
    """A library with the addresses of its loaded families, which are those requested so far."""

    def __init__(self, library: Library, loaded: LoadedObject, functions: Functions) -> None:
        self.library = library
        self.kernels: dict[str, Mapping[int, int]] = {}
        """Addresses of uKernels by family name and height."""
        self.functions = functions
        self._loaded = [loaded]
        self._code: CompiledLibrary | None = None
        """The library that has the uKernels, if it is another one."""

    def with_epilogue(self, library: Library, loaded: LoadedObject) -> CompiledLibrary:
        """A library that runs the code of this one; `loaded` has its finisher, if it has one."""
        like, functions = library.finisher, self.functions
        if like is not None:
            functions = functions._replace(finish=loaded.addresses[finish_symbol(like)])
        found = CompiledLibrary(library, loaded, functions)
        found.kernels, found._code = self.kernels, self
        return found

    def add(self, families: Iterable[Family], loaded: LoadedObject) -> None:
        """Add families that have been loaded."""
        self._loaded.append(loaded)
        for family in families:
            addresses = {k.mr: loaded.addresses[k.symbol] for k in family.kernels}
            self.kernels[family.name] = addresses


class NativeRuntime:
    """What all libraries of an ISA share: the thread pool, the drivers and packing."""

    def __init__(self, loaded: LoadedObject) -> None:
        self.addresses = addresses = loaded.addresses
        self.pool = ThreadPool(loaded)
        self.workspaces = Workspaces(addresses)
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        entry = ctypes.CFUNCTYPE(None, *[pointer] * 7)
        self.entries: dict[DType, Any] = {
            t: entry(addresses[driver_symbol("call", t)]) for t in DTYPES.values()
        }
        """`entry(plan, pool, workspace, &a, &b, &c, operands)` by dtype."""
        pack = ctypes.CFUNCTYPE(None, pointer, integer, integer, pointer, *[integer] * 3)
        self.pack_addresses = {t: addresses[driver_symbol("pack", t)] for t in DTYPES.values()}
        self.packs: dict[DType, Any] = {t: pack(a) for t, a in self.pack_addresses.items()}
        """`pack(source, k_stride, column_stride, target, k, width, padded)` by dtype."""

        def held(symbol: str, result: Any, *arguments: Any) -> Any:
            """A function that is called with the interpreter's lock held."""
            return ctypes.PYFUNCTYPE(result, *arguments)(addresses[symbol])

        self.find = held(FIND_SYMBOL, integer, *[pointer] * 3, integer)
        """`find(deciding, words, known, done)`: see `codegen.llvm.native.binding`."""
        self.decide = held(DECIDE_SYMBOL, integer, *[pointer] * 3, integer, pointer)
        """`decide(sharing, words, sources, most_chunks, later)`: see there."""
        given = pointer, integer, pointer, pointer, integer, pointer, pointer
        self.fill = held(FILL_SYMBOL, None, *given)
        """`fill(sharing, base, records, fills, count, sources, words)`: see there."""
        self.copy = held(COPY_SYMBOL, None, pointer)
        """`copy(copies)`: see `codegen.llvm.native.joining`."""
        self.join = held(JOIN_SYMBOL, None, pointer, integer, pointer, pointer)
        """`join(turns, count, copies, table)`: see there."""
        words = pointer, pointer, integer, pointer, integer
        self.find_words = held(WORDS_SYMBOL, integer, *words)
        """`find_words(table, items, count, out, most)`: see `codegen.llvm.native.words`."""
        self.are_texts = held(TEXTS_SYMBOL, integer, pointer, integer, pointer)
        """`are_texts(items, count, type)`: see there."""
        self._loaded = loaded


def _linked(objects: Sequence[bytes]) -> Image:
    return Linked([parse(data) for data in objects], mmap.PAGESIZE).image()


def _any_kernel(library: Library) -> UKernel:
    """One uKernel, for the reduction, which depends only on what all of a library have in
    common."""
    return library.family(library.widths[0], False, ROW, PACKED).kernels[0]


class Kernels:
    """The code of one ISA: libraries of uKernels, kernels of graphs, the native runtime. Safe to
    use from several threads."""

    def __init__(self, hardware: CpuHardware, isa: str, cache: Cache) -> None:
        self.hardware = hardware
        self.isa = hardware.isa(isa)
        self.cache = cache
        self._k_loop = part_of(hardware.tuning, KLoopTuning)
        self._native = part_of(hardware.tuning, NativeTuning)
        self._lock = fork_safe_lock()
        self._compiled: dict[Library, CompiledLibrary] = {}
        self._objects: dict[Bundle, Object] = {}
        """Objects that are prepared and not yet loaded."""
        self._runtime: NativeRuntime | None = None
        self._images: weakref.WeakSet[LoadedObject] = weakref.WeakSet()
        """The code of images, which models keep."""
        self._variants: list[LoadedObject] = []
        self._started: Started | None = None
        """Processes that have been started ahead."""

    @cached_attribute
    def _llvm_target(self) -> Target:
        return known_target(self.isa.name, self.cache)

    @cached_attribute
    def _compiler(self) -> Compiler:
        per_process = self.hardware.tuning.bundles_per_process
        found: Compiler = _compilation().Compiler(self._llvm_target, self.cache, per_process)
        return found

    @property
    def runtime(self) -> NativeRuntime:
        """Compiled and loaded on first use, usually together with the first library."""
        if self._runtime is None:
            with self._lock:
                if self._runtime is None:
                    self._compile([], None)
                    assert self._runtime is not None
        return self._runtime

    def library(self, types: ProductTypes, epilogue: Expr) -> Library:
        """The uKernels kept for some dtypes and an epilogue: enumerated, not compiled.

        Raises:
            DTypeError: elements of A's dtype are not multiplied on a CPU.
        """
        if types.a.name not in DTYPES:
            raise DTypeError(f"dtype is {types.a}; supported on a CPU are {', '.join(DTYPES)}")
        return build_library(self.hardware, self.isa.name, types, epilogue)

    def tune(self, types: ProductTypes, epilogue: Expr, progress: Progress | None = None) -> Tuned:
        """Load the families of calls; compiles those that are not in the cache."""
        reports: list[tuple[int, int]] = []

        def count(what: str, done: int, of: int) -> None:
            reports.append((done, of))
            if progress is not None:
                progress(what, done, of)

        self.compiled(types, epilogue, count)
        # The first report counts what the cache had, before anything is compiled.
        every = len(families_of_calls(self.library(types, epilogue))) + 1
        cached, total = reports[0] if reports else (every, every)
        return Tuned(total - cached, cached)

    def compiled(
        self, types: ProductTypes, epilogue: Expr, progress: Progress | None = None,
        families: Sequence[Family] | None = None,
    ) -> CompiledLibrary:  # fmt: skip
        """The library of some dtypes and an epilogue, with some families compiled if need be and
        loaded: by default those of calls."""
        library = build_library(self.hardware, self.isa.name, types, epilogue)
        wanted = families_of_calls(library) if families is None else families
        with self._lock:
            missing = self._missing(library, wanted)
            if missing or library not in self._compiled:
                self._load(library, missing, progress)
            return self._compiled[library]

    @contextmanager
    def compiled_ahead(self, started: Started | None = None) -> Iterator[None]:
        """While the block finds out what to compile, processes start and compile what any model
        needs, if the cache lacks the runtime. `started`: processes that compile that already."""
        own = None
        with self._lock:
            if (
                self._runtime is None
                and self._started is None
                and self._lacks(runtime := self._runtime_bundle())
            ):
                make = _compilation()
                self._started = own = started or make.Started(COMPILER_MODULE)
                own.begin(make.requested(runtime, self._llvm_target))
                if self._lacks(family := self._first_family()):
                    own.begin(make.requested(family, self._llvm_target))
        try:
            yield
        finally:
            if own is not None:
                with self._lock:
                    self._started = None
                own.end()

    def add(self, image: Image) -> LoadedObject:
        """The code of an image, loaded unless another one has all of it. As long as the caller
        keeps it, nothing of it is compiled or looked for in the cache.

        Raises:
            ObjectFileError: it is damaged.
        """
        with self._lock:
            found = self._loaded_image(image.entries)
            if found is None:
                found = LoadedObject.of_image(image)
                self._images.add(found)
            if self._runtime is None:
                self._runtime = NativeRuntime(found)
        return found

    def _loaded_image(self, symbols: Collection[str]) -> LoadedObject | None:
        """The code of an image that has all of some symbols, if there is one."""
        images = (x for x in self._images if all(name in x.addresses for name in symbols))
        return next(images, None)

    def bundles(
        self, libraries: Mapping[LibraryName, Sequence[Family]], bundles: Iterable[Bundle]
    ) -> list[Bundle]:
        """The bundles of families of libraries, some more, and what they need."""
        wanted = dict.fromkeys([self._runtime_bundle(), *bundles])
        for name, families in libraries.items():
            library = build_library(self.hardware, self.isa.name, *name)
            wanted.update(dict.fromkeys(self._bundles(library, families, whole=True)))
        return list(wanted)

    def image(self, bundles: Sequence[Bundle]) -> Image:
        """The machine code of bundles as it is saved.

        Raises:
            CompileError: the compiler failed.
            ObjectFileError: the system has objects of another format than ELF.
        """
        found = self._compiled_objects(bundles, None)
        return _linked([found[bundle].data for bundle in bundles])

    def kept_image(self, bundles: Sequence[Bundle]) -> Image | None:
        """The image of objects that the cache has; None if it lacks one."""
        found: list[bytes] = []
        for bundle in bundles:
            data = self.cache.read(OBJECTS, bundle_key(bundle, self._llvm_target))
            if data is None:
                return None
            found.append(data)
        return _linked(found)

    def prepare(
        self, libraries: Mapping[LibraryName, Sequence[Family]], bundles: Iterable[Bundle],
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Compile in parallel all that a graph needs: families of libraries, and its own kernels.
        They are loaded on demand."""
        wanted: list[Bundle] = list(bundles)
        with self._lock:
            for name, families in libraries.items():
                library = build_library(self.hardware, self.isa.name, *name)
                wanted += self._bundles(library, self._missing(library, families))
            if self._runtime is None:
                wanted.append(self._runtime_bundle())
            wanted = [b for b in dict.fromkeys(wanted) if self._loaded_image(b.symbols) is None]
            if wanted:
                self._objects.update(self._compiled_objects(wanted, progress))

    def _missing(self, library: Library, families: Sequence[Family]) -> list[Family]:
        """The families that are not loaded yet."""
        found = self._compiled.get(library.code)
        return [f for f in families if found is None or f.name not in found.kernels]

    def _bundles(
        self, library: Library, families: Sequence[Family], whole: bool = False
    ) -> list[Bundle]:
        """Bundles of families of a library, the first time and if it is `whole` with the other
        functions that it needs."""
        row = instruction_set(self.isa.name)
        bundles = [self._family_bundle(f.kernels, self._k_loop) for f in families]
        if library.finisher is not None and (whole or library not in self._compiled):
            bundles.append(finish_bundle(library.finisher, row))
        if whole or library.code not in self._compiled:
            bundles.append(reduce_bundle(_any_kernel(library), row.fused))
            if library.types.widens:
                bundles.append(widen_bundle(library.types, library.lanes, row))
        return bundles

    def _family_bundle(self, kernels: tuple[UKernel, ...], tuning: KLoopTuning) -> Bundle:
        line_bytes = self.hardware.levels[0].line_bytes
        return family_bundle(kernels, instruction_set(self.isa.name), tuning, line_bytes)

    def _lacks(self, bundle: Bundle) -> bool:
        """Whether the cache has no object of a bundle."""
        return self.cache.read(OBJECTS, bundle_key(bundle, self._llvm_target)) is None

    def _first_family(self) -> Bundle:
        """The uKernels of float32 that multiply rows of A by panels of weights."""
        library = self.library(product_types(FLOAT32), ACCUMULATOR)
        first, *_ = self._bundles(library, [library.family(library.widths[0], False, ROW, PACKED)])
        return first

    def _runtime_bundle(self) -> Bundle:
        return runtime_bundle(self.isa.vector_bytes, DATA_WORD, self._native)

    def variants(
        self, kernels: Sequence[Sequence[UKernel]], tunings: Sequence[KLoopTuning]
    ) -> list[tuple[int, ...]]:
        """The addresses of some uKernels in several codes: of `kernels[i]` with `tunings[i]`. They
        are loaded apart from the libraries, as long as this object lives."""
        pairs = zip(kernels, tunings, strict=True)
        bundles = [self._family_bundle(tuple(some), tuning) for some, tuning in pairs]
        with self._lock:
            objects = self._compiled_objects(bundles, None)
            found = []
            for bundle in bundles:
                loaded = self._compiler.load([bundle], objects)
                self._variants.append(loaded)
                found.append(tuple(loaded.addresses[symbol] for symbol in bundle.symbols))
        return found

    def _load(
        self, library: Library, families: Sequence[Family], progress: Progress | None
    ) -> None:
        began = time.perf_counter()
        loaded = self._compile(self._bundles(library, families), progress)
        log.info("library %s ready in %.3f s", library.types, time.perf_counter() - began)
        found = self._compiled.get(library.code)
        if found is None:
            addresses = [loaded.addresses[reduce_symbol(_any_kernel(library))]]
            if library.types.widens:
                addresses.append(loaded.addresses[widen_symbol(library.types)])
            found = CompiledLibrary(library.code, loaded, Functions(*addresses))
            self._compiled[library.code] = found
        found.add(families, loaded)
        if library not in self._compiled:
            self._compiled[library] = found.with_epilogue(library, loaded)

    def loaded(self, bundles: Sequence[Bundle], progress: Progress | None = None) -> LoadedObject:
        """Load kernels of a graph; compiles those that are missing."""
        with self._lock:
            return self._compile(list(bundles), progress)

    def _compile(self, bundles: list[Bundle], progress: Progress | None) -> LoadedObject:
        """Load bundles, after the runtime, which is compiled with them if it is missing."""
        image = self._loaded_image([symbol for bundle in bundles for symbol in bundle.symbols])
        if self._runtime is not None and image is not None:
            return image
        runtime = self._runtime_bundle()
        first: list[Bundle] = [runtime] if self._runtime is None else []
        wanted = [*first, *bundles]
        missing = [b for b in wanted if b not in self._objects]
        objects = self._compiled_objects(missing, progress) if missing else {}
        objects.update((b, self._objects.pop(b)) for b in wanted if b in self._objects)
        if first:
            self._runtime = NativeRuntime(self._compiler.load(first, objects))
        return self._compiler.load(bundles, objects)

    def _compiled_objects(
        self, bundles: Sequence[Bundle], progress: Progress | None
    ) -> dict[Bundle, Object]:
        return self._compiler.compile_missing(bundles, progress, self._started)
