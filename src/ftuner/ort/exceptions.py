"""onnxruntime's exceptions, each also one of ftuner's, and the translation into them.

A caller who catches what onnxruntime raises in a case catches what is raised here. Where it raises
different exceptions for what is one error in ftuner, one class derives from all of them.
"""

from __future__ import annotations

from ftuner.errors import (
    AllocationError,
    FTunerError,
    GraphError,
    IndexRangeError,
    InputError,
    IterationLimitError,
    MissingFileError,
    ParseError,
    ShapeError,
    UnsupportedOperatorError,
)


class Fail(FTunerError):
    """What onnxruntime calls a failure without a more precise code."""


class InvalidArgument(InputError):
    """A name, value, element type or shape that the model does not take."""


class NoSuchFile(MissingFileError):
    """A model file that does not exist."""


class InvalidProtobuf(ParseError):
    """A file, or bytes, that are not an ONNX model, or not all of one."""


class InvalidGraph(GraphError):
    """A model that breaks a rule of ONNX."""


class NotImplemented(FTunerError, NotImplementedError):
    """What onnxruntime does and ftuner does not; the message says why."""


class RuntimeException(FTunerError, RuntimeError):
    """An error of a run."""


class NoModel(FTunerError):
    """No model was loaded. Never raised: a session without a model does not exist."""


class ModelLoaded(FTunerError):
    """A model was loaded twice. Never raised: a session loads its model once."""


class ModelLoadCanceled(FTunerError):
    """Loading was cancelled. Never raised: loading a model is not cancelled."""


class ModelRequiresCompilation(FTunerError):
    """A model must be compiled first. Never raised: a session compiles its model."""


class NotFound(FTunerError):
    """Something was not found. Never raised: see `NoSuchFile` and `InvalidArgument`."""


class EngineError(FTunerError):
    """An engine failed. Never raised."""


class EPFail(FTunerError):
    """An execution provider failed. Never raised: errors of a device keep ftuner's types."""


class DeviceReset(FTunerError):
    """A device was reset. Never raised."""


class ArgumentError(InvalidArgument, Fail, RuntimeException):
    """A value that a run cannot use. onnxruntime raises one of the three, by where it finds out."""


class ArgumentTypeError(InvalidArgument, TypeError):
    """An argument of the wrong Python type."""


class ArgumentShapeError(ArgumentError, ShapeError):
    """Extents that contradict the model, or each other."""


class ArgumentIndexError(ArgumentError, IndexRangeError):
    """An index in the data of an input that is outside the axis it selects from."""


class MalformedModel(InvalidGraph, InvalidArgument, Fail):
    """A model that breaks a rule of ONNX. onnxruntime raises one of the three, by the rule."""


class UnsupportedModel(NotImplemented, InvalidGraph, Fail, UnsupportedOperatorError):
    """A model with operators that ftuner does not have. onnxruntime raises one of the first three:
    an operator without a kernel, one that ONNX does not have, one of an unknown domain."""


class MemoryRanOut(RuntimeException, AllocationError):
    """The device does not have the memory for a run."""


class EndlessLoop(RuntimeException, Fail, IterationLimitError):
    """A loop of the model has not ended after the most iterations that are allowed."""


_TRANSLATIONS: tuple[tuple[type[FTunerError], type[FTunerError]], ...] = (
    (MissingFileError, NoSuchFile),
    (ParseError, InvalidProtobuf),
    (UnsupportedOperatorError, UnsupportedModel),
    (GraphError, MalformedModel),
    (InputError, InvalidArgument),
    (ShapeError, ArgumentShapeError),
    (IndexRangeError, ArgumentIndexError),
    (AllocationError, MemoryRanOut),
    (IterationLimitError, EndlessLoop),
)
"""The first row whose left side an error is an instance of decides."""


def translated(error: FTunerError) -> FTunerError:
    """The error as onnxruntime's users catch it: as it is if it is one of theirs, or if they have
    none for it, such as a setting of ftuner's own that is out of range."""
    if type(error).__module__ == __name__:
        return error
    for given, wanted in _TRANSLATIONS:
        if isinstance(error, given):
            return wanted(*error.args)
    return error
