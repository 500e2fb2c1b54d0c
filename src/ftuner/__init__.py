"""ftuner: tensor programs with dynamic shapes at the hardware's limit."""

from ftuner.api import (
    Dense,
    TuneReport,
    explain,
    get_num_threads,
    hardware,
    matmul,
    set_num_threads,
    tune,
)
from ftuner.errors import (
    CacheWarning,
    ConfigurationError,
    DTypeError,
    ExpressionError,
    FTunerError,
    HardwareError,
    OperandError,
    ShapeError,
)

__version__ = "0.1.0"

__all__ = [
    "CacheWarning",
    "ConfigurationError",
    "DTypeError",
    "Dense",
    "ExpressionError",
    "FTunerError",
    "HardwareError",
    "OperandError",
    "ShapeError",
    "TuneReport",
    "__version__",
    "explain",
    "get_num_threads",
    "hardware",
    "matmul",
    "set_num_threads",
    "tune",
]
