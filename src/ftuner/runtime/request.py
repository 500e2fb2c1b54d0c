"""What a model is asked for, checked against the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import SupportsIndex

from ftuner.core.dtype import FLOAT32, HALF_DTYPES, DType
from ftuner.core.frozen import dataclass
from ftuner.core.given import BatchAxis, ElementType, checked_integer, dtype_name
from ftuner.errors import ConfigurationError
from ftuner.runtime.backend import Backend, Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.devices import CPU, backend_of
from ftuner.runtime.kept_memory import KeptMemory
from ftuner.runtime.preparing import Extents
from ftuner.runtime.shown_progress import Progress


@dataclass(frozen=True)
class Request:
    """What `ftuner.load` is asked for; it documents the fields."""

    threads: SupportsIndex | None = None
    progress: Progress | None = None
    device: str = CPU
    dtype: ElementType | None = None
    append_in_place: bool = False
    random_seed: SupportsIndex | None = None
    memory_limit: SupportsIndex | None = None
    warm: Mapping[str, Extents] | None = None
    precision: str = FLOAT32.name
    unpad: str | None = None
    batch_axis: BatchAxis | None = None
    isa: str | None = None
    """One of this machine's CPU; by default as the process says."""

    def __post_init__(self) -> None:
        # An unknown element type is named before a device that is missing.
        _half(self.dtype)
        if self.unpad not in (None, "auto"):
            raise ConfigurationError(f"unpad is {self.unpad!r}; expected None or 'auto'")

    def backend(self) -> Backend:
        """The back end of the device.

        Raises:
            ConfigurationError: no such device or ISA, or nothing is appended in place there.
            HardwareError: a GPU that kernels cannot run on.
        """
        backend = backend_of(self.device)
        if self.append_in_place and not backend.appends_in_place:
            raise ConfigurationError(
                "append_in_place is for models on a CPU, and the device is "
                f"{self.device!r}; leave it out"
            )
        return backend if self.isa is None else CpuBackend(isa=self.isa)

    def options(self, backend: Backend, made_by: Callable[[], object] | None = None) -> Options:
        """How the model is compiled on a back end. `made_by`: as of `Options`.

        Raises:
            ConfigurationError: an element type that is not held there, a limit that is not a number
                of bytes, or one for a GPU.
        """
        held = _half(self.dtype)
        if held is not None and held.name not in backend.held_dtypes:
            raise ConfigurationError(
                f"dtype is {self.dtype!r}, which only a GPU multiplies here: a CPU runs a model as "
                "the file says; leave dtype out, or give device='cuda'"
            )
        limit = self.memory_limit
        if limit is not None:
            if not backend.limits_memory:
                raise ConfigurationError("memory_limit is for models on a CPU; leave it out")
            limit = checked_integer(limit, "memory_limit", 0, error=ConfigurationError)
        return Options(
            self.threads, held, self._known_precision(backend), self.progress,
            self.append_in_place, self.unpad is not None, self.random_seed,
            KeptMemory(limit), made_by=made_by,
        )  # fmt: skip

    def _known_precision(self, backend: Backend) -> str:
        """The precision as `Options` has it.

        Raises:
            ConfigurationError: an unknown one, or one that the device has no instruction for.
        """
        if self.precision in (None, FLOAT32.name):
            return ""
        # By name: most models are asked for none.
        precisions = import_module("ftuner.graph.passes.word_products").PRECISIONS
        found = precisions.get(self.precision) if isinstance(self.precision, str) else None
        if found is None:
            known = ", ".join((FLOAT32.name, *precisions))
            raise ConfigurationError(f"precision is {self.precision!r}; expected one of {known}")
        if found.rows not in backend.narrow_dtypes:
            raise ConfigurationError(
                f"precision is {self.precision!r}, for which {backend.target} has no instruction "
                "here that is faster than float32's; leave it out, and on a GPU give dtype"
            )
        return self.precision


def _half(dtype: ElementType | None) -> DType | None:
    """The element type that float32 is held in, or None for float32 itself.

    Raises:
        ConfigurationError: not the name of an element type.
    """
    name = dtype_name(dtype)
    if dtype is None or name == FLOAT32.name:
        return None
    found = HALF_DTYPES.get(name or "")
    if found is None:
        raise ConfigurationError(
            f"dtype is {dtype!r}; expected None, {', '.join((FLOAT32.name, *HALF_DTYPES))}"
        )
    return found
