"""ftuner: tensor programs with dynamic shapes at the hardware's limit.

Names other than errors are imported when they are first asked for: `import ftuner` and the command
line's help wait for nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ftuner.core.shown import draw_in
from ftuner.core.version import VERSION
from ftuner.errors import (
    CacheWarning,
    ClosedError,
    CompileError,
    ConfigurationError,
    DefinitionError,
    DTypeError,
    ExportError,
    ExpressionError,
    FTunerError,
    GraphError,
    HardwareError,
    IndexRangeError,
    InputError,
    IterationLimitError,
    MismatchError,
    MissingFileError,
    MissingMachineError,
    ObjectFileError,
    OperandError,
    ParseError,
    PickleError,
    QueueFullError,
    SavedModelError,
    ScheduleError,
    ShapeError,
    UnsupportedOperatorError,
)

if TYPE_CHECKING:
    from ftuner.api import (
        TuneReport,
        explain,
        export_hardware,
        get_num_threads,
        hardware,
        set_num_threads,
        tune,
    )
    from ftuner.inference import Model, compile, load, save
    from ftuner.operators import Operator, operator, register
    from ftuner.ops import Dense, attention, grouped_matmul, matmul
    from ftuner.ort import InferenceSession, SessionOptions
    from ftuner.quantised import Quantized, quantize
    from ftuner.serving.batcher import Batcher
    from ftuner.serving.generator import Generator
    from ftuner.serving.unpadding import unpad
    from ftuner.tasks.check import check
    from ftuner.tasks.schedule import schedule
else:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'ftuner' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found


__version__ = VERSION

__all__ = [
    "Batcher",
    "CacheWarning",
    "ClosedError",
    "CompileError",
    "ConfigurationError",
    "DTypeError",
    "DefinitionError",
    "Dense",
    "ExportError",
    "ExpressionError",
    "FTunerError",
    "Generator",
    "GraphError",
    "HardwareError",
    "IndexRangeError",
    "InferenceSession",
    "InputError",
    "IterationLimitError",
    "MismatchError",
    "MissingFileError",
    "MissingMachineError",
    "Model",
    "ObjectFileError",
    "OperandError",
    "Operator",
    "ParseError",
    "PickleError",
    "Quantized",
    "QueueFullError",
    "SavedModelError",
    "ScheduleError",
    "SessionOptions",
    "ShapeError",
    "TuneReport",
    "UnsupportedOperatorError",
    "__version__",
    "attention",
    "check",
    "compile",
    "explain",
    "export_hardware",
    "get_num_threads",
    "grouped_matmul",
    "hardware",
    "load",
    "matmul",
    "operator",
    "quantize",
    "register",
    "save",
    "schedule",
    "set_num_threads",
    "tune",
    "unpad",
]

_HOMES = {
    "Batcher": "ftuner.serving.batcher",
    "Dense": "ftuner.ops",
    "Generator": "ftuner.serving.generator",
    "InferenceSession": "ftuner.ort",
    "Model": "ftuner.inference",
    "Quantized": "ftuner.quantised",
    "Operator": "ftuner.operators",
    "SessionOptions": "ftuner.ort",
    "TuneReport": "ftuner.api",
    "attention": "ftuner.ops",
    "check": "ftuner.tasks.check",
    "compile": "ftuner.inference",
    "explain": "ftuner.api",
    "export_hardware": "ftuner.api",
    "get_num_threads": "ftuner.api",
    "grouped_matmul": "ftuner.ops",
    "hardware": "ftuner.api",
    "load": "ftuner.inference",
    "matmul": "ftuner.ops",
    "quantize": "ftuner.quantised",
    "operator": "ftuner.operators",
    "register": "ftuner.operators",
    "save": "ftuner.inference",
    "schedule": "ftuner.tasks.schedule",
    "set_num_threads": "ftuner.api",
    "tune": "ftuner.api",
    "unpad": "ftuner.serving.unpadding",
}
"""The module of each name that is imported when it is first asked for."""

# From now on, a child may be forked while other threads import.
import_module("ftuner.core.fork_safety")

# A package has the name of a function. Its import would replace the function, so it comes first.
import_module("ftuner.hardware")
globals().pop("hardware", None)

# Tables and charts are in a room above the values that are shown.
draw_in("ftuner.report.shown")


def __dir__() -> list[str]:
    """The public names, whether they are imported already or not."""
    return __all__
