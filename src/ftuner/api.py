"""Public functions about the machine: tuning, hardware models, threads and plans. Operators are in
`ftuner.ops`, models in `ftuner.inference`."""

from __future__ import annotations

import time
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, SupportsIndex

from ftuner.core.dtype import DTYPES, GPU_DTYPES
from ftuner.core.given import ElementType, dtype_name
from ftuner.errors import ConfigurationError, DTypeError
from ftuner.hardware.constants import GIVEN, PRIOR
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.priors import with_given
from ftuner.hardware.recorded import load_recorded
from ftuner.report.tuned import Prior, TuneReport
from ftuner.runtime.backend import EFFORTS, Effort
from ftuner.runtime.cpu.backend import CpuBackend, default_backend
from ftuner.runtime.cpu.threads import checked_threads
from ftuner.runtime.devices import CPU, backend_of
from ftuner.runtime.ops.layer import Activation, layer_epilogue
from ftuner.runtime.shown_progress import Progress, shown

if TYPE_CHECKING:
    from ftuner.hardware.gpu_model import GpuHardware
    from ftuner.report.explain import BlockExplanation, Explanation

__all__ = [
    "Prior",
    "TuneReport",
    "explain",
    "export_hardware",
    "get_num_threads",
    "hardware",
    "set_num_threads",
    "take_prior",
    "tune",
]

_FILES = "ftuner.hardware.exported"
"""Imported by name: most processes neither read nor write such a file."""


def tune(
    dtype: ElementType = "float32",
    activation: Activation = None,
    bias: bool = False,
    residual: bool = False,
    progress: Progress | None = None,
    device: str = CPU,
    prior: str | PathLike[str] | None = None,
    calibrate: Effort = "default",
) -> TuneReport:
    """Make products of a dtype and epilogue ready for every shape: probe, calibrate, enumerate,
    filter, compile.

    A first call does this if it has not been done; tuning at installation or at the start of a
    service keeps it out of the calls. Entries of the cache are not made again.

    Args:
        dtype: `float32` or `float64`; on a GPU `float16`, `bfloat16` or `float32`, which is
            multiplied as `torch.set_float32_matmul_precision` says. By name, or as
            NumPy or torch has it.
        activation, bias, residual: the epilogue of a `Dense` layer; none of them for `matmul`.
        progress: called with (what, done, total). Without it, a bar is shown on stderr where that
            is a terminal; `FTUNER_PROGRESS=0` turns it off.
        device: `cpu`, or a GPU as torch names it: `cuda`, `cuda:1`. On a GPU, products of matrices
            with contiguous rows and contiguous or transposed matrices are made ready.
        calibrate: how long constants of the machine are measured with real uKernels: `default`,
            some three seconds (ten on a GPU, beside compiling), and not again once they are known;
            `thorough`, half a minute or more, even if they are known, and on a CPU half a minute
            more, in which products are sampled and a correction of the estimates is learned;
            `none`, so that those of the nearest recorded machine hold.
        prior: a file of `ftuner hardware --export`. If a machine with this one's fingerprint wrote
            it, its tuning is taken over as it is; if not, its portable constants (cycles, rates in
            each cycle, ratios) are this machine's until they are measured here. Facts of the
            hardware are never taken over.

    Raises:
        DTypeError, ExpressionError: unknown names.
        ConfigurationError: no such device, or its extra is not installed; `bias` or `residual` is
            not a boolean; `prior` is for a CPU, before this process computes; `calibrate` is none
            of the three.
        HardwareError: a GPU that kernels cannot run on; `prior` is no such file, or the CPUs that
            this process may use have changed. The cache stays as it was.
    """
    element = (DTYPES | GPU_DTYPES).get(dtype_name(dtype) or "")
    if element is None:
        raise DTypeError(f"dtype is {dtype!r}; supported are {', '.join(DTYPES | GPU_DTYPES)}")
    if not isinstance(calibrate, str) or calibrate not in EFFORTS:
        raise ConfigurationError(f"calibrate is {calibrate!r}; expected {', '.join(EFFORTS)}")
    began = time.perf_counter()
    epilogue = layer_epilogue(bias, activation, residual)
    taken = None if prior is None else take_prior(prior, device)
    with shown(progress) as show:
        backend = backend_of(device).calibrated(calibrate, show)
        learned = None
        if calibrate == "thorough" and isinstance(backend, CpuBackend):
            # By name: it needs what importing ftuner must not load.
            sampling = import_module("ftuner.learn.sampling")
            learned = sampling.improve(backend, sampling.SECONDS, show)
        library = backend.library(element, epilogue)
        tuned = backend.tune(element, epilogue, show)
    return TuneReport(
        dtype=element.name,
        isa=backend.target,
        funnel=library.funnel,
        compiled=tuned.compiled,
        cached=tuned.cached,
        seconds=time.perf_counter() - began,
        prior=taken,
        calibration=backend.calibration,
        learned=learned,
    )


def take_prior(path: str | PathLike[str], device: str = CPU) -> Prior:
    """Take over from an exported file what `tune(prior=...)` does, without compiling anything.

    Raises:
        ConfigurationError, HardwareError: as of `tune`, of `prior`.
    """
    if device != CPU:
        raise ConfigurationError(f"a prior is of a CPU; device is {device!r}")
    source = import_module(_FILES).read_exported(path)
    backend = default_backend()
    found = with_given(backend.hardware, source)
    backend.adopt(found)
    same = source.fingerprint == found.fingerprint
    names = [
        name
        for name, origin in found.tuning.provenance.items()
        if origin.startswith(GIVEN) or (same and not origin.startswith(PRIOR))
    ]
    return Prior(source.name, same, tuple(names))


def export_hardware(path: str | PathLike[str]) -> None:
    """Write what is known of this machine to a file that `tune(prior=...)` reads here or elsewhere:
    its hardware model with its tuning, and the learned correction of its estimates if it has one.

    Raises:
        ConfigurationError: a name that does not end in .json, or the file cannot be written.
        HardwareError: as of `hardware`.
    """
    import_module(_FILES).write_exported(path, default_backend().hardware)


def hardware(device: str = CPU) -> CpuHardware | GpuHardware:
    """The hardware model of this machine, or of one of its GPUs. It is probed once, in a second or
    two, and kept in the cache folder.

    Args:
        device: as of `tune`.

    Raises:
        ConfigurationError, HardwareError: as of `tune`.
    """
    return backend_of(device).hardware


def set_num_threads(threads: SupportsIndex) -> None:
    """Set the number of threads that a call may use, including the caller's: 1 to 1024.

    Raises:
        ConfigurationError: `threads` is not an integer in this range.
    """
    default_backend().threads = checked_threads(threads)


def get_num_threads() -> int:
    """The number of threads that a call may use: as set, else `FTUNER_NUM_THREADS`, else the
    usable cores."""
    return default_backend().threads


def explain(
    m: SupportsIndex,
    n: SupportsIndex,
    k: SupportsIndex,
    batch: SupportsIndex = 1,
    dtype: ElementType = "float32",
    workers: SupportsIndex | None = None,
    hardware: str | PathLike[str] | None = None,
) -> Explanation | BlockExplanation:
    """The plan of a product, the terms of its estimate, and its place under the roofline.

    Args:
        m, n, k, batch: extents, positive; NumPy's integers, too.
        dtype: a name, or NumPy's or torch's type.
        workers: threads; by default the number in use here, or all cores of a recorded machine.
        hardware: a recorded machine, by its name or by the path of its `.toml` file; by default
            this machine.

    Raises:
        ShapeError, DTypeError, HardwareError: arguments out of range or unknown.
    """
    machine: CpuHardware | GpuHardware
    machine = default_backend().hardware if hardware is None else load_recorded(hardware)
    if workers is None and hardware is None:
        workers = default_backend().threads
    # By name: most processes explain nothing.
    room = import_module("ftuner.report.explain")
    found: Explanation | BlockExplanation
    found = room.explain(m, n, k, batch, dtype, workers, machine)
    return found
