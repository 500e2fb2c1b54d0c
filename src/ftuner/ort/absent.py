"""Names of onnxruntime that do not exist here, and why."""

from __future__ import annotations

from typing import NoReturn

_SPARSE = "sparse tensors do not exist in ftuner; give dense arrays"
_PLUGINS = (
    "execution providers are no libraries in ftuner; their names are in get_available_providers()"
)
_MEMORY = "NumPy and torch manage the memory of tensors"
_COMPILED = "ftuner keeps compiled code in its cache folder; models have no compiled form as files"
_LORA = "LoRA adapters are not read; merge the adapter into the model's weights"
_INSIDE = "a class inside onnxruntime's session; use the public class without the prefix"

ABSENT: dict[str, str] = {
    "SparseTensor": _SPARSE,
    "OrtSparseFormat": _SPARSE,
    "LoraAdapter": _LORA,
    "AdapterFormat": _LORA,
    "ModelCompiler": _COMPILED,
    "OrtCompileApiFlags": _COMPILED,
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtExternalInitializerInfo": _COMPILED,
    "OrtEpAssignedNode": _PLUGINS,
    "OrtEpAssignedSubgraph": _PLUGINS,
    "OrtEpDevice": _PLUGINS,
    "OrtHardwareDevice": _PLUGINS,
    "OrtHardwareDeviceType": _PLUGINS,
    "OrtExecutionProviderDevicePolicy": _PLUGINS,
    "get_ep_devices": _PLUGINS,
    "register_execution_provider_library": _PLUGINS,
    "unregister_execution_provider_library": _PLUGINS,
    "preload_dlls": "ftuner loads no libraries of CUDA itself; torch does",
    "OrtMemoryInfo": _MEMORY,
    "OrtMemoryInfoDeviceType": _MEMORY,
    "OrtDeviceMemoryType": _MEMORY,
    "OrtArenaCfg": _MEMORY,
    "OrtSyncStream": _MEMORY,
    "copy_tensors": f"{_MEMORY}; OrtValue.update_inplace copies",
    "create_and_register_allocator": _MEMORY,
    "create_and_register_allocator_v2": _MEMORY,
    "SessionIOBinding": _INSIDE,
    "print_debug_info": "`ftuner hardware` prints what ftuner knows of the machine",
}
"""Why a name of the module `onnxruntime` does not exist here."""


def refuse(module: str, name: str) -> NoReturn:
    """Raises AttributeError, as a module does for a name that it does not have."""
    why = ABSENT.get(name)
    ending = f": {why}" if why else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}{ending}")
