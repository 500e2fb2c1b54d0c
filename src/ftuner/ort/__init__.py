"""onnxruntime's interface, for programs that are written for it.

`import ftuner.ort as onnxruntime` in the place of `import onnxruntime`, or `ftuner.ort.install()`
before others import it. docs/onnxruntime.md lists the members.
"""

from typing import NoReturn

from ftuner.frontends.onnx.records import ModelMetadata
from ftuner.ort import capi
from ftuner.ort.binding import IOBinding
from ftuner.ort.description import NodeArg
from ftuner.ort.enumerations import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtDevice,
    OrtDeviceVendorId,
    OrtMemType,
)
from ftuner.ort.exceptions import missing
from ftuner.ort.options import RunOptions, SessionOptions
from ftuner.ort.process import (
    __version__,
    disable_telemetry_events,
    enable_telemetry_events,
    get_build_info,
    get_version_string,
    has_collective_ops,
    install,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
)
from ftuner.ort.providers import get_all_providers, get_available_providers, get_device
from ftuner.ort.session import InferenceSession
from ftuner.ort.values import OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "capi",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "install",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]


def __getattr__(name: str) -> NoReturn:
    """Names of onnxruntime that do not exist here."""
    missing(__name__, name)
