"""The classes, functions and exceptions of onnxruntime that packages import from here."""

from ftuner.frontends.onnx.records import ModelMetadata
from ftuner.ort.description import NodeArg
from ftuner.ort.enumerations import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtDevice,
    OrtMemType,
)
from ftuner.ort.exceptions import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from ftuner.ort.options import RunOptions, SessionOptions
from ftuner.ort.process import (
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from ftuner.ort.providers import get_all_providers, get_available_providers, get_device
from ftuner.ort.session import InferenceSession
from ftuner.ort.values import OrtValue

__all__ = [
    "DeviceReset",
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelMetadata",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotFound",
    "NotImplemented",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "RuntimeException",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]
