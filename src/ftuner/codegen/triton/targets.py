"""The chips that kernels are compiled for, by Triton's names, and the result of compiling."""

from __future__ import annotations

from dataclasses import dataclass

from ftuner.codegen.triton.resources import Resources


@dataclass(frozen=True)
class Target:
    """One architecture."""

    backend: str
    """`cuda` or `hip`."""
    arch: int | str
    """The compute capability as a number (90), or AMD's name."""
    warp_threads: int

    @property
    def name(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)


TARGETS = {
    target.name: target
    for target in (
        *(Target("cuda", arch, 32) for arch in (70, 75, 80, 86, 89, 90, 100, 120)),
        Target("hip", "gfx942", 64),
    )
}
"""By name, as in `GpuHardware.architecture`."""


@dataclass(frozen=True)
class Compiled:
    """One kernel compiled for one target, or the compiler's error."""

    binary: bytes
    """The cubin or hsaco; empty if there is an error."""
    assembly: str
    """The PTX, or AMD's assembly."""
    resources: Resources | None
    error: str = ""
    cached: bool = False
    """Whether Triton's cache had it."""
