"""Compiled models as files: written, and read for this machine, with their machine code."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ftuner.codegen.llvm.native import binding_records, records
from ftuner.codegen.llvm.objects.bundle import Bundle, runtime_bundle
from ftuner.codegen.llvm.objects.linking import Image
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.cpu.tile import UKernel
from ftuner.core.fork_safety import fork_safe_lock
from ftuner.core.operating_system import SYSTEM, instruction_flush
from ftuner.core.version import VERSION
from ftuner.errors import (
    ConfigurationError,
    DatasetError,
    FTunerError,
    HardwareError,
    ParseError,
    SavedModelError,
)
from ftuner.graph.buffers import is_hollow
from ftuner.graph.ir import Array
from ftuner.graph.schedules import modules
from ftuner.graph.sources import MAX_WITHIN_BYTES, Files, array_of, hollow_of, source_of
from ftuner.graph.splitting import SplitGraph
from ftuner.hardware import correction
from ftuner.hardware.isa import InstructionSet, instruction_set
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import from_document, to_document
from ftuner.hardware.system import SystemFacts, promised_isas
from ftuner.hardware.tuning import NativeTuning
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.arrays import DATA_WORD
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.kernels import Kernels
from ftuner.runtime.cpu.memory import long_lived
from ftuner.runtime.cpu.session import ISA_VARIABLE
from ftuner.runtime.model import Model
from ftuner.runtime.saved import container, values
from ftuner.runtime.shown_progress import Progress
from ftuner.runtime.specialization import SavedSpecialization, SpecializedModel

if TYPE_CHECKING:
    from ftuner.runtime.cpu.compilation import Object

_USED_FLAGS = (
    "abm", "adx", "avx", "bmi", "cx16", "f16c", "fma", "gfni", "lahf_lm", "movbe", "pni", "popcnt",
    "sse", "ssse3", "tbm", "vaes", "vpclmul", "xop",
)  # fmt: skip
"""Prefixes of the flags, as Linux lists them, of x86's instructions that LLVM may choose by itself
for integers, floats and vectors of them."""


@cache
def interface() -> str:
    """The version of ftuner, and a digest of the layouts of records and the symbols of the native
    runtime, in which its code and machine code meet."""
    slots = [
        (name, sorted((slot, x) for slot, x in vars(cls).items() if isinstance(x, int)))
        for module in (records, binding_records, *modules("cpu_record"))
        for name, cls in sorted(vars(module).items())
        if isinstance(cls, type)
    ]
    met = slots, runtime_bundle(0, DATA_WORD, NativeTuning()).symbols
    return f"{VERSION}-{hashlib.sha256(repr(met).encode()).hexdigest()[:12]}"


def needed_flags(
    row: InstructionSet, facts: SystemFacts, bundles: Iterable[Bundle] = ()
) -> list[str]:
    """The flags that a machine must list to run bundles that were compiled for an ISA on this one,
    as far as the system lists any."""
    if row.architecture != "x86_64":
        # The scheduling model is that of no CPU, which would bring instructions along.
        return sorted(row.flags if row.scheduling_model else facts.features)
    own = {flag for flag in facts.features if flag.startswith(_USED_FLAGS)}
    # LLVM never uses a matrix unit by itself.
    if row.matrix is not None and any(map(_multiplies_tiles, bundles)):
        own |= {multiply_add.flag for multiply_add in row.matrix.multiply_adds}
    return sorted(f for f in own if not f.startswith(row.features_off or ("-",)))


def _multiplies_tiles(bundle: Bundle) -> bool:
    """Whether a bundle has uKernels of a matrix unit."""
    kernels = (x for xs in bundle.arguments if isinstance(xs, tuple) for x in xs)
    return any(isinstance(x, UKernel) and x.tile.matrix for x in kernels)


def hardware_document(hardware: CpuHardware) -> dict[str, Any]:
    """All of a hardware model, as JSON can hold it."""
    learned = hardware.correction
    return {
        "machine": to_document(hardware),
        "correction": None if learned is None else learned.to_document(),
    }


class SavedKernels(Kernels):
    """Machine code from files alone: nothing is compiled."""

    def __init__(self, hardware: CpuHardware, isa: str, cache: Cache) -> None:
        super().__init__(hardware, isa, cache)
        self._files: list[Image] = []

    def add(self, image: Image) -> LoadedObject:
        names = image.entries.keys()
        with self._lock:
            found = super().add(image)
            if not any(names <= known.entries.keys() for known in self._files):
                self._files.append(image)
        return found

    def image(self, bundles: Sequence[Bundle]) -> Image:
        """The smallest of the files' images that has the bundles."""
        names = {symbol for bundle in bundles for symbol in bundle.symbols}
        found = [image for image in self._files if names <= image.entries.keys()]
        return min(found, key=lambda image: len(image.data))

    def _compiled_objects(
        self, bundles: Sequence[Bundle], progress: Progress | None
    ) -> dict[Bundle, Object]:
        names = ", ".join(symbol for bundle in bundles for symbol in bundle.symbols)
        raise SavedModelError(f"the file lacks the machine code of {names}; save the model again")


class SavedBackend(CpuBackend):
    """A CPU whose hardware model and machine code are those of files. It has as many threads as
    the process says."""

    def __init__(self, hardware: CpuHardware, isa: str) -> None:
        process = default_backend()
        super().__init__(process.cache, isa, process.facts)
        self._hardware = hardware
        self._kernels = self.saved = SavedKernels(hardware, isa, process.cache)
        self.thread_word = process.thread_word


_backends: WeakValueDictionary[str, SavedBackend] = WeakValueDictionary()
_lock = fork_safe_lock()


def backend_for(document: Any, isa: str, image: Image) -> tuple[CpuBackend, LoadedObject]:
    """The back end of the hardware model in a document, which has the code of an image, and that
    code; models that were saved on one machine share it, and with it the workers.

    Raises:
        DatasetError, HardwareError: the document is malformed.
        ObjectFileError: the image is.
    """
    key = hashlib.sha256(json.dumps([document, isa]).encode()).hexdigest()
    with _lock:
        found = _backends.get(key)
        if found is None:
            hardware = from_document(document["machine"])
            if not isinstance(hardware, CpuHardware):
                raise HardwareError("a model of a GPU; expected one of a CPU")
            if document["correction"] is not None:
                learned = correction.from_document(document["correction"])
                hardware = replace(hardware, correction=learned)
            found = _backends[key] = SavedBackend(hardware, isa)
    return found, found.saved.add(image)


_LOG = logging.getLogger(__name__)
_COMPILER = "llvmlite"


class Saved(NamedTuple):
    """What a file holds for this machine."""

    graph: SplitGraph | SavedSpecialization
    backend: CpuBackend
    """That of the file's machine code, or the process's own, which compiles the steps again."""
    code: LoadedObject | None
    """The file's machine code, if the back end has it."""
    append_in_place: bool


class Sections:
    """Bytes of a file; equal ones are one section."""

    def __init__(self, makes: bool = False) -> None:
        """`makes`: whether arrays that can be made of files are not written."""
        self.views: list[memoryview] = []
        self.made: list[int] = []
        """The sections that say how an array is made."""
        self._makes = makes
        self._numbers: dict[bytes, int] = {}
        self._arrays: dict[int, int] = {}

    def bytes(self, data: Any) -> int:
        """The number of the section with these bytes."""
        view = memoryview(data).cast("B")
        digest = hashlib.sha256(view).digest()
        number = self._numbers.setdefault(digest, len(self.views))
        if number == len(self.views):
            self.views.append(view)
        return number

    def array(self, array: Array) -> int:
        """The number of the section of an array, which lives as long as this does."""
        number = self._arrays.get(id(array))
        if number is None:
            elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            number = self._arrays[id(array)] = self.bytes(elements)
        return number

    def source(self, array: Array) -> int | None:
        """The number of the section that says how an array is made; None if it is written."""
        found = source_of(array) if self._makes and array.nbytes > MAX_WITHIN_BYTES else None
        if found is None:
            return None
        table = values.Table(self.array)
        table.add((found, not is_hollow(array)))
        number = self.bytes(encoded(table.entries))
        if number not in self.made:
            self.made.append(number)
        return number


def save(models: Sequence[Model], path: str | os.PathLike[str]) -> None:
    """Write models of one file, each for another ISA, as one file.

    Raises:
        SavedModelError: a model that cannot be saved, or two for one ISA.
        ConfigurationError: another suffix than .ftuner, or the file cannot be written.
        CompileError: the compiler failed.
    """
    target = Path(path)
    if target.suffix != container.SUFFIX:
        raise ConfigurationError(
            f"cannot save a model as {target.name!r}; expected a name that ends in "
            f"{container.SUFFIX}"
        )
    sections = Sections()
    bodies = [_body(model, sections) for model in models]
    isas = [body["isa"] for body in bodies]
    if len(set(isas)) < len(isas) or not isas:
        raise SavedModelError(
            f"models for {', '.join(isas) or 'no ISA'}; expected one for each ISA"
        )
    content = {"ftuner": interface(), "schema": values.schema(), "bodies": bodies}
    container.write(target, content, sections.views)


def _body(model: Model, sections: Sections) -> dict[str, Any]:
    """One model, whose bytes are in sections."""
    entries = steps_section(model, sections)
    kernels, bundles = code_of(model)
    row = instruction_set(kernels.isa.name)
    return {
        "isa": row.name,
        "architecture": row.architecture,
        "system": SYSTEM,
        "flags": needed_flags(row, _facts(), bundles),
        "hardware": hardware_document(kernels.hardware),
        "append_in_place": model.append_in_place,
        "code": image_document(kernels.image(bundles), sections),
        "entries": entries,
    }


def steps_section(model: Model, sections: Sections) -> int:
    """Add what was compiled of a model to sections; returns the number of the table.

    Raises:
        SavedModelError: a model that cannot be saved.
    """
    whole = model.saved() if isinstance(model, SpecializedModel) else model.split_graph()
    return section_of(whole, sections)


def section_of(value: object, sections: Sections) -> int:
    """Add a value to sections; returns the number of its table. Raises SavedModelError."""
    table = values.Table(sections.array, sections.source)
    table.add(value)
    return sections.bytes(encoded(table.entries))


def code_of(model: Model) -> tuple[Kernels, list[Bundle]]:
    """The kernels that a model on a CPU runs, and the bundles that it needs of them."""
    executables = [x for x in model.all_executables() if isinstance(x, CompiledGraph)]
    bundles = list(dict.fromkeys(b for x in executables for b in x.bundles()))
    return executables[0].session.kernels, bundles


def image_document(image: Image, sections: Sections) -> dict[str, Any]:
    """Machine code whose bytes are in sections."""
    return {**image._asdict(), "data": sections.bytes(image.data)}


def encoded(entries: object) -> bytes:
    """A table as a section has it."""
    return json.dumps(entries, separators=(",", ":")).encode()


def read(path: str | os.PathLike[str], isa: str | None = None) -> Saved:
    """The model of a file for an ISA of this machine: by default that of `FTUNER_ISA`, or the
    widest in the file. Where the file has no machine code for it, it is compiled again if there is
    a compiler, with a warning.

    Raises:
        MissingFileError: there is no such file.
        ParseError: it is damaged, or no saved model.
        SavedModelError: another version of ftuner has written it.
        HardwareError: it has no machine code for this machine.
        ConfigurationError: the machine does not have the ISA.
    """
    facts = _facts()
    content, sections = container.read(Path(path), facts.cores)
    try:
        code = None
        try:
            body = _fitting(content, facts, str(path), isa or os.environ.get(ISA_VARIABLE))
        except (HardwareError, SavedModelError) as refused:
            body, backend = _compiled_again(content, refused, isa)
        else:
            backend, code = backend_for(body["hardware"], body["isa"], image_of(body, sections))
        graph = graph_of(body, sections)
        return Saved(graph, backend, code, bool(body["append_in_place"]))
    except (ConfigurationError, SavedModelError):
        raise
    except (DatasetError, ParseError, *container.MALFORMED) as error:
        raise ParseError(f"{path} is malformed: {error}") from error


def image_of(body: Any, sections: Sequence[memoryview]) -> Image:
    """The machine code of a body. Raises what `container.MALFORMED` lists."""
    return Image(**{**body["code"], "data": _section(sections, body["code"]["data"])})


def graph_of(
    body: Any, sections: Sequence[memoryview], files: Files | None = None
) -> SplitGraph | SavedSpecialization:
    """The steps of a body, with its weights. `files`: of which it makes some, and which is kept
    until these are packed. Raises ParseError, and what `container.MALFORMED` lists."""
    made: dict[int, Array] = {}
    if files is not None:
        made = {number: _made_again(number, sections, files) for number in body["made"]}
    graph = value_of(body["entries"], sections, made)
    if not isinstance(graph, SplitGraph | SavedSpecialization):
        raise ParseError("its last entry is not a graph")
    return graph


def _made_again(number: int, sections: Sequence[memoryview], files: Files) -> Array:
    """The array that a section says how to make; a hollow one, if it is packed."""
    source, is_read = value_of(number, sections)
    if not is_read:
        return hollow_of(source, files)
    found = array_of(source, files)
    memory = long_lived(found.nbytes + container.SLACK_BYTES)[: found.nbytes]
    kept = memory.view(found.dtype).reshape(found.shape)
    kept[...] = found
    return kept


def value_of(
    table: int, sections: Sequence[memoryview], made: Mapping[int, Array] = MappingProxyType({})
) -> Any:
    """The value of the table in a section. `made`: arrays of numbers that are made of files. Raises
    ParseError, and what `container.MALFORMED` lists."""

    def array(number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        if number in made:
            return made[number]
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.frombuffer(_section(sections, number), dtype).reshape(shape)

    return values.read(json.loads(bytes(_section(sections, table))), array)


def _section(sections: Sequence[memoryview], number: int) -> memoryview:
    if number < 0:
        raise IndexError("a negative section")
    return sections[number]


def _facts() -> SystemFacts:
    return default_backend().facts


def _fitting(content: Any, facts: SystemFacts, path: str, asked: str | None) -> Any:
    """The part of a file that runs on this machine. `asked`: the only ISA that is wanted.

    Raises:
        SavedModelError: another version of ftuner has written it.
        HardwareError: there is none.
    """
    written = content["ftuner"]
    if written != interface():
        raise SavedModelError(
            f"{path} was saved by ftuner {written}; this is {interface()}: save the model "
            "again with this version"
        )
    reasons = []
    found = None
    for body in content["bodies"]:
        isa = body["isa"]
        row = instruction_set(isa)
        missing = set(body["flags"]) - facts.features if facts.features else set()
        if body["architecture"] != facts.architecture:
            reasons.append(f"{isa}: of {body['architecture']}, and this is {facts.architecture}")
        elif body["system"] != SYSTEM:
            reasons.append(f"{isa}: of {body['system']}, and this is {SYSTEM}")
        elif instruction_flush() is None:
            reasons.append(f"{isa}: this process cannot place code by itself")
        elif missing:
            reasons.append(f"{isa}: this machine lacks {', '.join(sorted(missing))}")
        elif asked and asked != isa:
            reasons.append(f"{isa}: {asked!r} is asked for")
        elif found is None or row.vector_bytes > instruction_set(found["isa"]).vector_bytes:
            found = body
    if found is None:
        raise HardwareError(
            f"{path} has no machine code for this machine ({'; '.join(reasons)}). Save the model "
            "on a machine like this one, or for an ISA that both have: ftuner save MODEL --isa ISA"
        )
    widest = promised_isas(facts)[-1]
    if facts.features and not asked and found["isa"] != widest:
        _warn(
            f"{path} has no machine code for {widest}, so that its code for {found['isa']} is "
            f"used; for full speed add it: ftuner save MODEL --isa {found['isa']},{widest}"
        )
    return found


def _compiled_again(content: Any, refused: FTunerError, isa: str | None) -> tuple[Any, CpuBackend]:
    """The part of a file that is compiled again for this machine, and its back end. `refused`: why
    the machine code of the file cannot be used. `isa`: if it is not that of the process.

    Raises:
        HardwareError, SavedModelError: there is no compiler, or this version cannot read the
            steps: `refused` is raised again.
    """
    if content.get("schema") != values.schema() or not content["bodies"]:
        raise refused
    if find_spec(_COMPILER) is None:
        raise type(refused)(f"{refused}. Where {_COMPILER} is installed, it is compiled again")
    _warn(f"{refused}. It is compiled again for this machine")
    backend = default_backend() if isa is None else CpuBackend(isa=isa)
    alike = (body for body in content["bodies"] if body["isa"] == backend.target)
    return next(alike, content["bodies"][0]), backend


@lru_cache(maxsize=256)
def _warn(text: str) -> None:
    """Log a warning once."""
    _LOG.warning(text)
