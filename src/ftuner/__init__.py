"""ftuner: tensor programs with dynamic shapes at the hardware's limit."""

from typing import TYPE_CHECKING

from ftuner.api import (
    TuneReport,
    explain,
    export_hardware,
    get_num_threads,
    hardware,
    set_num_threads,
    tune,
)
from ftuner.core.forks import import_undivided
from ftuner.errors import (
    CacheWarning,
    CompileError,
    ConfigurationError,
    DTypeError,
    ExpressionError,
    FTunerError,
    GraphError,
    HardwareError,
    IndexRangeError,
    InputError,
    IterationLimitError,
    MissingMachineError,
    MissingModelError,
    ObjectFileError,
    OperandError,
    PickleError,
    ShapeError,
    UnsupportedOperatorError,
)
from ftuner.ops.attention import attention
from ftuner.ops.dense import Dense
from ftuner.ops.grouped_matmul import grouped_matmul
from ftuner.ops.matmul import matmul

if TYPE_CHECKING:
    from ftuner.inference import InferenceSession, Model, SessionOptions, compile, load
else:

    def __getattr__(name: str) -> object:
        """Models are imported on first use: importing ftuner for its operators stays fast."""
        if name in ("InferenceSession", "Model", "SessionOptions", "compile", "load"):
            return getattr(import_undivided("ftuner.inference"), name)
        raise AttributeError(f"module 'ftuner' has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "CacheWarning",
    "CompileError",
    "ConfigurationError",
    "DTypeError",
    "Dense",
    "ExpressionError",
    "FTunerError",
    "GraphError",
    "HardwareError",
    "IndexRangeError",
    "InferenceSession",
    "InputError",
    "IterationLimitError",
    "MissingMachineError",
    "MissingModelError",
    "Model",
    "ObjectFileError",
    "OperandError",
    "PickleError",
    "SessionOptions",
    "ShapeError",
    "TuneReport",
    "UnsupportedOperatorError",
    "__version__",
    "attention",
    "compile",
    "explain",
    "export_hardware",
    "get_num_threads",
    "grouped_matmul",
    "hardware",
    "load",
    "matmul",
    "set_num_threads",
    "tune",
]


def __dir__() -> list[str]:
    """The public names, whether they are imported already or not."""
    return __all__
