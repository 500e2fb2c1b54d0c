"""What kernels for a GPU of this machine are compiled for."""

from __future__ import annotations

import torch
import triton

from ftuner.codegen.triton.targets import Target


def target_of(device: torch.device) -> Target:
    """Returns the target of a CUDA device, as its driver describes it."""
    with torch.cuda.device(device):
        found = triton.runtime.driver.active.get_current_target()
    return Target(found.backend, found.arch, found.warp_size)
