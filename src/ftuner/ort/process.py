"""Settings of the process, and what onnxruntime says of itself."""

from __future__ import annotations

import logging
from operator import index

from ftuner.api import set_num_threads
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


def disable_telemetry_events() -> None:
    """No effect: ftuner sends nothing."""


def has_collective_ops() -> bool:
    """Whether there are operators across processes: there are none."""
    return False


def _integer(value: object, what: str) -> int:
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(f"{what} is {value!r}; expected an integer") from None
