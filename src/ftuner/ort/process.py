"""Settings of the process, and what onnxruntime says of itself."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from operator import index
from os import PathLike
from pathlib import Path
from types import ModuleType

from ftuner.api import set_num_threads
from ftuner.errors import ConfigurationError
from ftuner.ort.exceptions import ArgumentError, ArgumentTypeError

__version__ = "1.31.1"
"""The version of onnxruntime whose interface this is; packages compare it."""
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Python's levels by onnxruntime's severities: verbose, info, warning, error, fatal."""


def get_version_string() -> str:
    """The version of onnxruntime whose interface this is."""
    return __version__


def get_build_info() -> str:
    """That this is ftuner."""
    return f"ftuner, with the interface of onnxruntime {__version__}"


def set_default_logger_severity(severity: int, /) -> None:
    """Set the least severity that ftuner's loggers report, from 0, verbose, to 4, fatal.

    Raises:
        ArgumentTypeError, ArgumentError: no integer, or out of range.
    """
    number = _integer(severity, "severity")
    if not 0 <= number < len(_LEVELS):
        raise ArgumentError(
            f"severity is {number}; expected 0 (verbose), 1 (info), 2 (warning), 3 (error) or 4 "
            "(fatal)"
        )
    logging.getLogger("ftuner").setLevel(_LEVELS[number])


def set_default_logger_verbosity(verbosity: int, /) -> None:
    """No effect: ftuner's loggers have one level below information."""
    _integer(verbosity, "verbosity")


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Set the threads of the process, as `ftuner.set_num_threads` does; 0 leaves them as they are.

    Raises:
        ArgumentTypeError: no integers.
        ConfigurationError: more threads than 1024.
    """
    _integer(inter_op_num_threads, "inter_op_num_threads")
    if threads := _integer(intra_op_num_threads, "intra_op_num_threads"):
        set_num_threads(threads)


class _Seed:
    """The seed of sessions that are made from now on; None for new numbers in each run."""

    value: int | None = None


def set_seed(seed: int, /) -> None:
    """Set the seed of operators that draw random numbers, of sessions that are made afterwards."""
    _Seed.value = _integer(seed, "seed") % 2**64


def random_seed() -> int | None:
    """What `set_seed` was given last."""
    return _Seed.value


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Does nothing: torch loads the libraries of CUDA."""


def enable_telemetry_events() -> None:
    """No effect: ftuner sends nothing."""


disable_telemetry_events = enable_telemetry_events


def has_collective_ops() -> bool:
    """Whether there are operators across processes: there are none."""
    return False


def _integer(value: object, what: str) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(f"{what} is {value!r}; expected an integer") from None


NAME = "onnxruntime"
_OURS = __name__.rpartition(".")[0]
TRANSFORMERS = ".transformers"
SUBMODULES = (
    "", ".capi", ".capi._pybind_state", ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state", TRANSFORMERS, f"{TRANSFORMERS}.io_binding_helper",
)  # fmt: skip
"""Modules that programs import by onnxruntime's names."""


def install() -> None:
    """Make `import onnxruntime` find this package, in this process and from now on. Modules that
    ftuner does not have, such as `onnxruntime.quantization`, are those of an installed onnxruntime.

    Raises:
        ConfigurationError: onnxruntime was imported before.
    """
    there = sys.modules.get(NAME)
    ours = import_module(_OURS)
    if there is ours:
        return
    if there is not None:
        raise ConfigurationError(
            f"onnxruntime has been imported, from {getattr(there, '__file__', None)}; call "
            f"{_OURS}.install() before anything imports it"
        )
    real = PathFinder.find_spec(NAME)
    folders = [] if real is None else list(real.submodule_search_locations or ())
    for name in SUBMODULES:
        # The package of transformers is used as a whole: its modules import each other.
        if not (folders and name.startswith(TRANSFORMERS)):
            sys.modules[NAME + name] = import_module(_OURS + name)
    sys.meta_path.insert(0, _Others(folders))
    sys.meta_path.append(_Finder())


class _Others(MetaPathFinder):
    """Finds the modules of an installed onnxruntime that are not ftuner's, which are in
    `sys.modules`."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, *parents = fullname.split(".")[:-1] or [""]
        if package != NAME:
            return None
        folders = [str(Path(folder, *parents)) for folder in self._folders]
        return PathFinder.find_spec(fullname, folders, target)


class _Finder(DistributionFinder):
    """Answers packages that ask which version of onnxruntime is installed. It is asked after the
    folders of `sys.path`, so that a real one goes first."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """No module is found here."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        if context is None or context.name in (None, NAME):
            yield _Installed()


class _Installed(Distribution):
    """The distribution that packages look up."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {__version__}\n"

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(__file__).parent / path
