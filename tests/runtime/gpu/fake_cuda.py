"""A CUDA driver without a device: Triton's own launchers run, and calls of the driver are counted.

Imported where Triton compiles, so in a process of its own. Tensors are in the CPU's memory.
"""

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia

from ftuner.codegen.triton.targets import TARGETS
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.runtime.gpu import kernels
from ftuner.runtime.gpu.backend import GpuBackend

COUNTED = """
#include "cuda.h"
#include <string.h>
long launches, encodes, pointers[3];
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) {
  for (int i = 0; i < 3; i++) memcpy(pointers + i, p[i], sizeof *pointers);
  __atomic_add_fetch(&launches, 1, __ATOMIC_SEQ_CST); return 0;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *m, CUtensorMapDataType t, cuuint32_t r, void *a,
    const cuuint64_t *d, const cuuint64_t *s, const cuuint32_t *b, const cuuint32_t *e,
    CUtensorMapInterleave i, CUtensorMapSwizzle w, CUtensorMapL2promotion l,
    CUtensorMapFloatOOBfill o) {
  memcpy(m, &a, sizeof a);
  __atomic_add_fetch(&encodes, 1, __ATOMIC_SEQ_CST); return 0;
}
CUresult cuPointerGetAttribute(void *v, CUpointer_attribute a, CUdeviceptr p) {
  memcpy(v, &p, sizeof p); return 0;
}
CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
"""
UNUSED = """
cuCtxGetDevice cuCtxGetLimit cuCtxSetCurrent cuCtxSetLimit cuDeviceGet cuDeviceGetAttribute
cuDeviceGetCount cuDevicePrimaryCtxRetain cuDriverGetVersion cuFuncGetAttribute cuFuncSetAttribute
cuFuncSetCacheConfig cuGetErrorString cuInit cuModuleGetFunction cuModuleLoadData cuModuleUnload
cuOccupancyMaxActiveClusters cuPointerGetAttributes cuStreamIsCapturing cuTensorMapEncodeIm2col
"""
"""What Triton links to, and no test calls."""


class Driver:
    """The counts of a driver that Triton uses from now on."""

    def __init__(self, folder: Path) -> None:
        lines = (
            f'long {n}_(void) __asm__("{n}");\nlong {n}_(void) {{ return 0; }}'
            for n in UNUSED.split()
        )
        source, library = folder / "cuda.c", folder / "libcuda.so.1"
        source.write_text(COUNTED + "\n".join(lines) + "\n")
        flags = ["-shared", "-fPIC", "-w", f"-I{nvidia.include_dirs[0]}"]
        flags += ["-Wl,-soname,libcuda.so.1", "-o", str(library)]
        subprocess.check_call(["cc", *flags, str(source)])
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        triton.knobs.nvidia.libcuda_path = str(folder)
        found: Any = nvidia.CudaDriver()
        functions = {n: getattr(found.utils, n) for n in dir(found.utils) if n[0] != "_"}
        functions["load_binary"] = lambda *given: (1, 2, 100, 0, 1024)
        functions["unload_module"] = lambda module: None
        functions["get_device_properties"] = lambda device: {"max_shared_mem": 232448}
        found.utils = SimpleNamespace(**functions)
        found.get_current_device = lambda: None
        found.get_current_stream = lambda index: 0
        found.get_current_target = lambda: GPUTarget("cuda", 90, 32)
        triton.runtime.driver.set_active(found)

    def count(self, name: str) -> int:
        """Of `launches` or `encodes`."""
        return ctypes.c_long.in_dll(self._library, name).value

    @property
    def pointers(self) -> list[int]:
        """The first three arguments of the last launch; of a descriptor, the address within."""
        return list((ctypes.c_long * 3).in_dll(self._library, "pointers"))


class _Late(kernels.Kernel):
    """A kernel that is compiled when it is first launched: plans choose few of a library."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        super().__init__(*self._given)
        return getattr(self, name)


def h200() -> GpuBackend:
    """The back end of a recorded chip, whose kernels are compiled for it."""
    without_device: Any = kernels
    without_device.Kernel = _Late
    without_device.Kernels.prepare = lambda self, sources, progress=None: None
    without_device.torch.cuda.device = lambda device: torch.inference_mode()
    without_device.torch.cuda.current_device = lambda: None
    hardware = load_recorded("h200")
    assert isinstance(hardware, GpuHardware)
    return GpuBackend(torch.device("cpu"), hardware, TARGETS["sm_90"])
