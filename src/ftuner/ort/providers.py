"""Execution providers: onnxruntime's names of devices that compute."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field

from ftuner.core.frozen import dataclass
from ftuner.ort.cuda import has_cuda
from ftuner.ort.exceptions import ArgumentError
from ftuner.runtime.devices import CPU

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
_DEVICE_ID = "device_id"
OTHERS = (
    "NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider", "MIGraphXExecutionProvider",
    "ROCMExecutionProvider", "OpenVINOExecutionProvider", "DnnlExecutionProvider",
    "VitisAIExecutionProvider", "QNNExecutionProvider", "NnapiExecutionProvider",
    "VSINPUExecutionProvider", "JsExecutionProvider", "CoreMLExecutionProvider",
    "ACLExecutionProvider", "DmlExecutionProvider", "RknpuExecutionProvider",
    "WebNNExecutionProvider", "WebGpuExecutionProvider", "XnnpackExecutionProvider",
    "CANNExecutionProvider", "AzureExecutionProvider",
)  # fmt: skip
"""Providers of onnxruntime that ftuner does not have."""

Given = Sequence["str | tuple[str, Mapping[str, object]]"]
"""Providers as a caller gives them: names, or pairs of a name and options."""


@dataclass(frozen=True)
class Chosen:
    """The device that a session computes on."""

    device: str = CPU
    """As torch names it."""
    options: dict[str, dict[str, str]] = field(default_factory=lambda: {CPU_PROVIDER: {}})
    """Options by the names of the providers that are used."""


def get_available_providers() -> list[str]:
    """The providers that sessions can use here, best first."""
    return [CUDA_PROVIDER, CPU_PROVIDER] if has_cuda() else [CPU_PROVIDER]


def get_all_providers() -> list[str]:
    """The providers that ftuner knows, whether or not this machine has their devices."""
    return [CUDA_PROVIDER, CPU_PROVIDER]


def get_device() -> str:
    """`GPU` if sessions can use one, else `CPU`."""
    return "GPU" if has_cuda() else "CPU"


def chosen(providers: Given | None, options: Sequence[Mapping[str, object]] | None) -> Chosen:
    """The device for what a caller gives. Providers that are not available are left out with a
    warning. Without any, it is the CPU.

    Raises:
        ArgumentError: no sequence of names or pairs, options that do not belong to them, or a
            provider that not even onnxruntime has.
    """
    wanted = _normalised(providers, options)
    available = get_available_providers() if set(wanted) - {CPU_PROVIDER} else [CPU_PROVIDER]
    for name in wanted:
        if name not in available:
            warnings.warn(
                f"provider {name!r} is not available; available are {', '.join(available)}",
                stacklevel=4,
            )
        if name not in (*OTHERS, *get_all_providers()):
            raise ArgumentError(
                f"no provider is called {name!r}; available are {', '.join(available)}"
            )
    usable = [name for name in wanted if name in available]
    if usable[:1] != [CUDA_PROVIDER]:
        return Chosen()
    number = wanted[CUDA_PROVIDER].get(_DEVICE_ID, "0")
    if not number.isdecimal():
        raise ArgumentError(f"{_DEVICE_ID} of {CUDA_PROVIDER} is {number!r}; expected a number")
    given = {**wanted[CUDA_PROVIDER], _DEVICE_ID: number}
    return Chosen(f"cuda:{number}", {CUDA_PROVIDER: given, CPU_PROVIDER: {}})


def _normalised(
    providers: Given | None, options: Sequence[Mapping[str, object]] | None
) -> dict[str, dict[str, str]]:
    """Options by provider, in the caller's order."""
    pairs: list[tuple[str, Mapping[str, object]]] = []
    if providers is None:
        return {}
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise ArgumentError(
            f"providers is {providers!r}; expected a list of names, such as [{CPU_PROVIDER!r}]"
        )
    if options is not None and (
        not isinstance(options, Sequence) or len(options) != len(providers)
        or not all(isinstance(x, str) for x in providers)
        or not all(isinstance(x, Mapping) for x in options)
    ):  # fmt: skip
        raise ArgumentError(
            f"provider_options is {options!r}; expected a mapping for each name in {providers!r}"
        )
    for number, given in enumerate(providers):
        if isinstance(given, str):
            pairs.append((given, options[number] if options is not None else {}))
        elif (
            isinstance(given, tuple) and len(given) == 2
            and isinstance(given[0], str) and isinstance(given[1], Mapping)
        ):  # fmt: skip
            pairs.append(given)
        else:
            raise ArgumentError(
                f"a provider is {given!r}; expected a name, or a name and a mapping of options"
            )
    found: dict[str, dict[str, str]] = {}
    for name, chosen_options in pairs:
        if name in found:
            warnings.warn(f"provider {name!r} is given twice; the first counts", stacklevel=4)
        else:
            found[name] = {str(key): str(value) for key, value in chosen_options.items()}
    return found
