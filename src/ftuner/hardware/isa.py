"""Vector instruction sets as their manuals describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class VectorIsa:
    """What an ISA's manual fixes, whatever the core."""

    vector_bytes: int
    vector_registers: int
    fused: bool
    masked: bool


VECTOR_ISAS: Mapping[str, Mapping[str, VectorIsa]] = {
    "x86_64": {
        "sse2": VectorIsa(16, 16, fused=False, masked=False),
        # vmaskmov exists, but its stores are microcode on AMD (uops.info): not full speed.
        "avx2": VectorIsa(32, 16, fused=True, masked=False),
        "avx512": VectorIsa(64, 32, fused=True, masked=True),
    },
    "aarch64": {"neon": VectorIsa(16, 32, fused=True, masked=False)},
}
"""By architecture, narrow to wide; from the Intel SDM, the AMD APM and the Arm ARM."""
