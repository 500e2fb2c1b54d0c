"""Kernels that a probe times."""

from __future__ import annotations

from ftuner.codegen.triton.source import HEADER, Argument, Source

READ_AT_ONCE = 8192
"""Float32 elements of a block."""
_WARPS = 8
_READS = f"""{HEADER}

@triton.jit
def reads(source, target, blocks, rounds):
    program, programs = tl.program_id(0), tl.num_programs(0)
    lanes = tl.arange(0, {READ_AT_ONCE})
    total = tl.zeros(({READ_AT_ONCE},), tl.float32)
    for turn in range(rounds):
        begin = (program + turn * programs) % blocks * {READ_AT_ONCE}
        total += tl.load(source + begin + lanes, cache_modifier=".cg")
    tl.store(target + program * {READ_AT_ONCE} + lanes, total)
"""


def reads_source() -> Source:
    """Returns a kernel whose programs read `blocks` blocks of `READ_AT_ONCE` elements in turns,
    `rounds` times each, bypassing L1, and store the sums of the blocks they read."""
    arguments = (
        Argument("source", "*fp32", 16), Argument("target", "*fp32", 16),
        Argument("blocks", "i32"), Argument("rounds", "i32"),
    )  # fmt: skip
    return Source("reads", _READS, arguments, _WARPS, 1)
