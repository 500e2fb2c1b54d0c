"""What kernels with specialised warps share, as text in Gluon for sm_90.

One warp loads tiles by the copy engine into rings of buffers. Two warpgroups multiply them, each
with half of the rows of the result. Each buffer has mbarriers, which say that it is full, or that
it is free again. Registers move from the warp that loads to the warpgroups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftuner.codegen.triton.source import Argument, Source, function_source
from ftuner.core.gpu.tile import SPECIALISED_REGISTERS

VERSIONS = ("3.9.0",)
"""Versions of Triton of which tests have read the machine code of specialised warps."""
_GROUP_WARPS = 4
_REGISTERS = (240, 24)
"""Of a thread that multiplies and of one that loads: 2 x 240 + 24 are three times
`SPECIALISED_REGISTERS`."""


def barrier_lines(barriers: Mapping[str, tuple[str, int]]) -> list[str]:
    """Returns lines that make arrays of mbarriers: by name, how many, and the arrivals of a
    phase."""
    lines = []
    for name, (number, arrivals) in barriers.items():
        lines += [
            f"{name} = mbarrier.allocate_mbarrier({number})",
            f"for stage in tl.static_range({number}):",
            f"    mbarrier.init({name}.index(stage), {arrivals})",
        ]
    return [*lines, "fence_async_shared()"]


def specialised_function(
    name: str, prelude: str, arguments: Sequence[Argument], body: Sequence[str], multiply: str,
    stages: int,
) -> Source:  # fmt: skip
    """Returns the source of a kernel. After `body`, a warp runs `fetch(*fetched)`, and warpgroup
    `half` runs `multiply(half, *given)`; `prelude` has both functions. Elementwise functions may be
    in Triton: Gluon has the same language for them, all but one name."""
    prelude = prelude.replace("@triton.jit", "@gluon.jit")
    prelude = prelude.replace("tl.PropagateNan", "triton.language.PropagateNan")
    parts = [f"({multiply}, ({half},) + given)" for half in (0, 1)]
    lines = [
        *body,
        "tl.warp_specialize(",
        f"    [{', '.join(parts)}, (fetch, fetched)], [{_GROUP_WARPS}, 1],",
        f"    [{_REGISTERS[0]}, {_REGISTERS[1]}]",
        ")",
    ]
    return function_source(
        name, prelude, arguments, lines, _GROUP_WARPS, stages, SPECIALISED_REGISTERS
    )
