"""The named errors that ftuner raises at its boundary.

Each also derives from the built-in error a caller would expect, so that code written for NumPy
(`except ValueError`, `except TypeError`) keeps working.
"""

from __future__ import annotations

MAX_MESSAGE = 2000
"""Characters of a message. Names and lists in messages come from files and callers, and may have
any length."""


class FTunerError(Exception):
    """Base of every error that ftuner raises on purpose. A long message is cut in its middle, and
    characters that are not printable are written as escapes."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(_shown(p) if isinstance(p, str) else p for p in parts))


def _shown(text: str) -> str:
    if len(text) > MAX_MESSAGE:
        end = MAX_MESSAGE // 4
        begin = MAX_MESSAGE - end
        text = f"{text[:begin]} ... ({len(text)} characters) ... {text[-end:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ShapeError(FTunerError, ValueError):
    """Extents that do not fit together, or that are negative."""


class DTypeError(FTunerError, TypeError):
    """An element type that is not supported, or operands of different ones."""


class OperandError(FTunerError, TypeError):
    """An object that is not an array, or an output that cannot be written."""


class ExpressionError(FTunerError, ValueError):
    """An epilogue expression that is malformed or names operands that were not given."""


class DefinitionError(FTunerError, ValueError):
    """A definition of an operator that is malformed; the message begins with its file and line."""


class GraphError(FTunerError, ValueError):
    """A model or graph that is malformed: types that do not fit, missing values, cycles."""


class MissingFileError(GraphError, FileNotFoundError):
    """A model file that does not exist."""


class ParseError(GraphError):
    """A model that is not a file of a known format, or not all of one."""


class UnsupportedOperatorError(GraphError):
    """A model with operators that ftuner does not have; the message lists all of them."""


class ExportError(GraphError):
    """A PyTorch module that `torch.export` makes no program of, or arguments and results that it
    cannot have; the message says what to do."""


class UnsupportedKernelError(FTunerError, NotImplementedError):
    """A definition that a back end has no schedule for; the message lists what is in the way."""


class SavedModelError(GraphError):
    """A model that cannot be saved, or a saved one that another version of ftuner has written; the
    message says what to do."""


class InputError(FTunerError, ValueError):
    """Inputs of a model that are missing, unknown, or not of the type the model declares."""


class IndexRangeError(FTunerError, IndexError):
    """An index in a tensor that is outside the axis it selects from."""


class MismatchError(FTunerError, AssertionError):
    """A result that differs from what it is compared with: PyTorch's result, where the option
    `check` asked for that, or the definition of a schedule."""


class IterationLimitError(FTunerError, RuntimeError):
    """A loop of a model that has not ended after the most iterations that are allowed."""


class AllocationError(FTunerError, MemoryError):
    """Memory that the system does not give, or more than it can address."""


class MemoryLimitError(AllocationError):
    """A run needs more memory than the `memory_limit` of its model."""


class QueueFullError(FTunerError, TimeoutError):
    """A request for which the queue of a `Batcher` or `Generator` has had no place in time."""


class ClosedError(FTunerError, RuntimeError):
    """A request to a `Batcher` or `Generator` that has been closed."""


class HardwareError(FTunerError, RuntimeError):
    """A machine, ISA or recorded machine that ftuner does not know or cannot use."""


class MissingMachineError(HardwareError, FileNotFoundError):
    """The file of a machine that is not there."""


class PickleError(FTunerError, TypeError):
    """An object that cannot be pickled; the message says how to move it."""


class ObjectFileError(FTunerError, ValueError):
    """Machine code that cannot be loaded: damaged, for another machine, or of an unknown kind."""


class CompileError(FTunerError, RuntimeError):
    """Code that could not be compiled: the compiler failed, or its process ended or hung."""


class ConfigurationError(FTunerError, ValueError):
    """A setting (thread count, environment variable, option) outside its range, or a name that is
    taken."""


class DatasetError(FTunerError, ValueError):
    """A dataset of measured samples, or a model learned from one, that is malformed, of another
    schema or of another machine."""


class CacheWarning(UserWarning):
    """The cache on disk could not be used as it is; ftuner went on without it or rebuilt it."""


class DatasetWarning(UserWarning):
    """A part of a dataset of samples could not be used; ftuner went on without it."""


class ScheduleError(FTunerError, ValueError):
    """A schedule that cannot be compiled; the message has the file and the line."""


class UnsupportedStatementError(ScheduleError):
    """A statement or an expression that the language of schedules does not have."""


class UndefinedNameError(ScheduleError):
    """A name that a schedule has not defined, or not on every way to where it is used."""


class MappingError(ScheduleError):
    """A task mapping of another number of axes, or with impossible extents."""


class BoundsError(ScheduleError):
    """An element outside of an array or of a tile."""


class CoverageError(ScheduleError):
    """Elements of an output that no task stores, or that are stored more than once."""


class RaceError(ScheduleError):
    """Elements that several workers may write, or that one reads before they are written."""
