"""Names of onnxruntime that do not exist here or refuse their work, and why. docs/onnxruntime.md
shows this table."""

from __future__ import annotations

from typing import NoReturn

from ftuner.ort.exceptions import NotImplemented

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


def missing(module: str, name: str) -> NoReturn:
    """Raises AttributeError, as a module does for a name that it does not have."""
    why = f": {REASONS[name]}" if name in REASONS else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{why}")
