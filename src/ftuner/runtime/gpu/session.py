"""The state of one GPU in this process: its hardware model, its kernels, its products."""

from __future__ import annotations

import json
import logging
import threading

import torch
import triton

from ftuner.codegen.triton.targets import Target
from ftuner.core.block import Multiply
from ftuner.core.dtype import DType
from ftuner.errors import HardwareError
from ftuner.hardware.model import GpuHardware
from ftuner.hardware.recorded import from_document, to_document
from ftuner.runtime.cache import Cache, default_cache
from ftuner.runtime.gpu.attention import Attentions
from ftuner.runtime.gpu.grouped_products import GroupedProducts
from ftuner.runtime.gpu.launching import INTERPRETED, Kernels
from ftuner.runtime.gpu.probe import (
    DeviceFacts,
    hardware_of,
    measure,
    nearest_recorded,
    read_device,
)
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.workspace import Counters
from ftuner.runtime.session import HARDWARE
from ftuner.ukernels.blocks import BlockLibrary, build_block_library

log = logging.getLogger(__name__)


class GpuSession:
    """Everything of one device that outlives a call."""

    def __init__(self, device: torch.device, hardware: GpuHardware, target: Target | None) -> None:
        """`target`: None to interpret kernels, on tensors of any device that NumPy reads."""
        self.device = device
        self.hardware = hardware
        self.kernels = Kernels(device, target)
        counters = Counters(device)
        self.products = Products(device, self.kernels, counters, self.library)
        self.grouped = GroupedProducts(device, self.kernels, self.library)
        self.attentions = Attentions(device, self.kernels, counters, hardware)

    def library(self, dtype: DType, multiply: Multiply) -> BlockLibrary:
        """The block tiles kept for this device."""
        return build_block_library(self.hardware, dtype, multiply)


def known_gpu(facts: DeviceFacts, device: torch.device, cache: Cache) -> GpuHardware:
    """The hardware model of a device: from the cache, or probed (in a second or two) and kept.

    Raises:
        HardwareError: a chip of an architecture that no recorded machine has.
    """
    key = f"gpu-{facts.fingerprint}.json"
    data = cache.read(HARDWARE, key)
    if data is not None:
        try:
            found = from_document(json.loads(data))
            if isinstance(found, GpuHardware):
                return found
        except (HardwareError, ValueError) as error:
            log.warning("recorded hardware is not usable, probing again: %s", error)
    found = hardware_of(facts, measure(device, nearest_recorded(facts)))
    cache.write(HARDWARE, key, json.dumps(to_document(found), indent=1).encode())
    return found


_SESSIONS: dict[torch.device, GpuSession] = {}
_LOCK = threading.Lock()


def session_of(device: torch.device) -> GpuSession:
    """The session of a device, made on first use.

    Raises:
        HardwareError: no device that kernels can run on.
    """
    found = _SESSIONS.get(device)
    if found is None:
        with _LOCK:
            found = _SESSIONS.get(device)
            if found is None:
                found = _SESSIONS[device] = _new_session(device)
    return found


def _new_session(device: torch.device) -> GpuSession:
    if device.type != "cuda":
        raise HardwareError(f"no kernels for tensors on {device}; expected a CUDA device")
    if INTERPRETED:
        raise HardwareError("TRITON_INTERPRET is set: Triton would interpret kernels on the CPU")
    if torch.version.hip is not None:
        raise HardwareError("AMD GPUs are planned for and compiled for, but not run on yet")
    facts = read_device(device)
    with torch.cuda.device(device):
        found = triton.runtime.driver.active.get_current_target()
    target = Target(found.backend, found.arch, found.warp_size)
    return GpuSession(device, known_gpu(facts, device, default_cache()), target)
