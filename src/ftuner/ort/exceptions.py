"""onnxruntime's exceptions, each also one of ftuner's, and the translation into them.

A caller who catches what onnxruntime raises in a case catches what is raised here. Where it raises
different exceptions for what is one error in ftuner, one class derives from all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

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

C = TypeVar("C", bound=type)


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


_SPARSE = "there are no sparse tensors; give dense arrays"
_PLUGINS = (
    "execution providers are no libraries here; `get_available_providers()` has their names, and "
    "`providers` of `InferenceSession` takes them"
)
_MEMORY = "NumPy and torch manage the memory of tensors"
_COMPILED = "models have no compiled form as files; compiled code is in ftuner's cache folder"
_LORA = "LoRA adapters are not read; merge the adapter into the model's weights"
_INSIDE = "a class inside onnxruntime's session; use the class without the prefix"

REASONS: dict[str, str] = {
    "AdapterFormat": _LORA,
    "InferenceSession.get_input_epdevices": _PLUGINS,
    "InferenceSession.get_input_memory_infos": _MEMORY,
    "InferenceSession.get_output_memory_infos": _MEMORY,
    "InferenceSession.get_provider_graph_assignment_info":
        "a whole model runs on one device; `ftuner explain model.onnx` shows its steps",
    "InferenceSession.run_with_ortvaluevector":
        "vectors of values are a class of onnxruntime; use `run_with_ort_values`, or "
        "`run_with_iobinding` for outputs on a GPU",
    "LoraAdapter": _LORA,
    "ModelCompiler": _COMPILED,
    "OrtArenaCfg": _MEMORY,
    "OrtCompileApiFlags": _COMPILED,
    "OrtDeviceMemoryType": _MEMORY,
    "OrtEpAssignedNode": _PLUGINS,
    "OrtEpAssignedSubgraph": _PLUGINS,
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtEpDevice": _PLUGINS,
    "OrtExecutionProviderDevicePolicy": _PLUGINS,
    "OrtExternalInitializerInfo": _COMPILED,
    "OrtHardwareDevice": _PLUGINS,
    "OrtHardwareDeviceType": _PLUGINS,
    "OrtMemoryInfo": _MEMORY,
    "OrtMemoryInfoDeviceType": _MEMORY,
    "OrtSparseFormat": _SPARSE,
    "OrtSyncStream": _MEMORY,
    "OrtValue.as_sparse_tensor": _SPARSE,
    "OrtValue.ort_value_from_sparse_tensor": _SPARSE,
    "RunOptions.add_active_adapter": _LORA,
    "SessionIOBinding": _INSIDE,
    "SessionOptions.add_free_dimension_override_by_denotation":
        "denotations of dims are not read; `add_free_dimension_override_by_name` takes names",
    "SessionOptions.add_provider_for_devices": _PLUGINS,
    "SessionOptions.register_custom_ops_library":
        "operators in libraries are made for onnxruntime's binary interface; docs/extending.md "
        "shows how an operator is added in Python",
    "SessionOptions.set_ep_context_data_read_func": _COMPILED,
    "SessionOptions.set_load_cancellation_flag":
        "loading a model cannot be cancelled; only False is taken",
    "SessionOptions.set_provider_selection_policy": _PLUGINS,
    "SessionOptions.set_provider_selection_policy_delegate": _PLUGINS,
    "SparseTensor": _SPARSE,
    "copy_tensors": f"{_MEMORY}; `OrtValue.update_inplace` copies",
    "create_and_register_allocator": _MEMORY,
    "create_and_register_allocator_v2": _MEMORY,
    "get_ep_devices": _PLUGINS,
    "print_debug_info": "`ftuner hardware` prints what ftuner knows of the machine",
    "register_execution_provider_library": _PLUGINS,
    "unregister_execution_provider_library": _PLUGINS,
}  # fmt: skip
"""Names without a dot do not exist; members of classes exist, and raise NotImplemented."""


def refuse(name: str) -> NoReturn:
    """Raises NotImplemented for a member of a class in the table."""
    raise NotImplemented(f"{name}: {REASONS[name]}")  # noqa: F901


def refusing(owner: C) -> C:
    """Returns a class with those of its members in the table that it does not define."""
    for name in REASONS:
        of, _, member = name.partition(".")
        if of == owner.__name__ and not hasattr(owner, member):
            setattr(owner, member, _refused(name, member))
    return owner


def _refused(name: str, member: str) -> Callable[..., NoReturn]:
    def refused(*given: object, **named: object) -> NoReturn:
        refuse(name)

    refused.__name__, refused.__qualname__, refused.__doc__ = member, name, REASONS[name]
    return refused


def missing(module: str, name: str) -> NoReturn:
    """Raises AttributeError, as a module does for a name that it does not have."""
    why = f": {REASONS[name]}" if name in REASONS else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{why}")
