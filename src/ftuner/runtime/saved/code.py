"""Machine code of saved models: what it needs of a machine, and the back end that it runs on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from ftuner.codegen.llvm.native import kernel_records, records
from ftuner.codegen.llvm.objects.bundle import Bundle
from ftuner.codegen.llvm.objects.linking import Image
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core.forks import fork_safe_lock
from ftuner.core.version import VERSION
from ftuner.errors import HardwareError, SavedModelError
from ftuner.hardware import correction
from ftuner.hardware.isa import InstructionSet
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import from_document, to_document
from ftuner.hardware.system import SystemFacts
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.cpu.kernels import Kernels, NativeRuntime
from ftuner.runtime.shown_progress import Progress
from ftuner.ukernels.cpu.library import Family, LibraryName

_USED_FLAGS = (
    "abm", "adx", "avx", "bmi", "cx16", "f16c", "fma", "gfni", "lahf_lm", "movbe", "pni", "popcnt",
    "sse", "ssse3", "tbm", "vaes", "vpclmul", "xop",
)  # fmt: skip
"""Prefixes of the flags, as Linux lists them, of x86's instructions that LLVM may choose by itself
for integers, floats and vectors of them."""


@cache
def interface() -> str:
    """The version of ftuner, and a digest of the layouts of records, in which its code and machine
    code meet."""
    slots = [
        (name, sorted((slot, x) for slot, x in vars(cls).items() if isinstance(x, int)))
        for module in (records, kernel_records)
        for name, cls in sorted(vars(module).items())
        if isinstance(cls, type)
    ]
    return f"{VERSION}-{hashlib.sha256(repr(slots).encode()).hexdigest()[:12]}"


def needed_flags(row: InstructionSet, facts: SystemFacts) -> list[str]:
    """The flags that a machine must list to run what was compiled for an ISA on this one, as far as
    the system lists any."""
    if row.architecture != "x86_64":
        # The scheduling model is that of no CPU, which would bring instructions along.
        return sorted(row.flags if row.scheduling_model else facts.features)
    own = {flag for flag in facts.features if flag.startswith(_USED_FLAGS)}
    return sorted(f for f in own if not f.startswith(row.features_off or ("-",)))


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
        self._images: list[Image] = []
        self._code = LoadedObject((), ())
        """All that is loaded."""

    def add(self, image: Image) -> None:
        """Load the code of a file, unless other files have all of it.

        Raises:
            ObjectFileError: it is damaged.
        """
        names = image.entries.keys()
        with self._lock:
            if not names <= self._code.addresses.keys():
                self._code.add(LoadedObject.of_image(image))
            if not any(names <= known.entries.keys() for known in self._images):
                self._images.append(image)
            if self._runtime is None:
                self._runtime = NativeRuntime(self._code)

    def image(self, bundles: Sequence[Bundle]) -> Image:
        """The smallest of the files' images that has the bundles."""
        names = {symbol for bundle in bundles for symbol in bundle.symbols}
        found = [image for image in self._images if names <= image.entries.keys()]
        return min(found, key=lambda image: len(image.data))

    def prepare(
        self, libraries: Mapping[LibraryName, Sequence[Family]], bundles: Iterable[Bundle],
        progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Everything is there."""

    def _compile(self, bundles: list[Bundle], progress: Progress | None) -> LoadedObject:
        known = self._code.addresses
        missing = [name for bundle in bundles for name in bundle.symbols if name not in known]
        if missing:
            raise SavedModelError(
                f"the file lacks the machine code of {', '.join(missing)}; save the model again"
            )
        return self._code


class SavedBackend(CpuBackend):
    """A CPU whose hardware model and machine code are those of files. It has as many threads as
    the process says."""

    is_saved = True

    def __init__(self, hardware: CpuHardware, isa: str) -> None:
        process = default_backend()
        super().__init__(process.cache, isa, process.facts)
        self._hardware = hardware
        self._kernels = self.saved = SavedKernels(hardware, isa, process.cache)
        self.thread_word = process.thread_word


_backends: WeakValueDictionary[str, SavedBackend] = WeakValueDictionary()
_lock = fork_safe_lock()


def backend_for(document: Any, isa: str, image: Image) -> SavedBackend:
    """The back end of the hardware model in a document, which has the code of an image; models that
    were saved on one machine share it, and with it the workers.

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
    found.saved.add(image)
    return found
