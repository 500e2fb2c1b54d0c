"""The resources of compiled product kernels beside those that the model of tiles has."""

from ftuner.codegen.triton.targets import Resources
from ftuner.core.gpu.tile import ProductKernel

MOST_REGISTERS = {32: 255, 64: 512}
"""Most registers of a thread, by threads of a warp, by the instruction sets: of NVIDIA's chips, and
of AMD's, for a wave that is alone on its SIMD."""
FEW_SPILLED_BYTES = 32
"""Spills that are tolerated: ptxas spills some loop counters even of threads that use far fewer
registers than the limit."""
_ACCUMULATES_IN_REGISTERS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
"""Other chips have tensor memory for accumulators, or count their registers separately."""
_SLACK_BYTES = 512
"""Shared memory beyond the model: barriers, and rows or columns during changes of layout."""
_HANDED_BYTES = 2048
"""The same, with what specialised warps exchange."""


def disagreements(
    kernel: ProductKernel, architecture: str, warp_threads: int, compiled: Resources
) -> tuple[str, ...]:
    """Returns the differences between a compiled product kernel and its model: spills, too many
    registers, fewer registers than accumulators, more shared memory. Less shared memory than
    modelled is accepted."""
    accumulators = kernel.main.accumulators_per_thread(warp_threads)
    modelled = kernel.shared_bytes(architecture)
    found = []
    if compiled.spilled_bytes > FEW_SPILLED_BYTES:
        found.append(f"spills {compiled.spilled_bytes} bytes of a thread's registers")
    if compiled.registers > MOST_REGISTERS[warp_threads]:
        found.append(f"takes {compiled.registers} registers of a thread")
    if compiled.registers < accumulators and architecture in _ACCUMULATES_IN_REGISTERS:
        found.append(f"has {compiled.registers} registers for {accumulators} accumulators")
    slack = _HANDED_BYTES if kernel.specialised else _SLACK_BYTES
    if compiled.shared_bytes > modelled + slack:
        found.append(f"takes {compiled.shared_bytes} bytes of shared memory, modelled {modelled}")
    return tuple(found)
