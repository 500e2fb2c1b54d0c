"""The contract between a back end and the rest of ftuner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from ftuner.core.dtype import DType
from ftuner.core.expr import Expr
from ftuner.hardware.model import CpuHardware, GpuHardware
from ftuner.ukernels.cpu.library import Library
from ftuner.ukernels.gpu.library import GpuLibrary

Progress = Callable[[str, int, int], None]
"""Told of long work: what is done, how much of it, of how much."""


class Tuned(NamedTuple):
    """What tuning did, in objects of machine code: bundles of uKernels, or single ones."""

    compiled: int
    cached: int
    """Found in a cache."""


class Backend(ABC):
    """One device: its model, its uKernels, and how they are made ready."""

    @property
    @abstractmethod
    def hardware(self) -> CpuHardware | GpuHardware:
        """The device's hardware model."""

    @property
    @abstractmethod
    def target(self) -> str:
        """What code is generated for: the name of an ISA, or of a chip's architecture."""

    @abstractmethod
    def library(self, dtype: DType, epilogue: Expr) -> Library | GpuLibrary:
        """The uKernels kept for this device, dtype and epilogue: enumerated, not compiled.

        Raises:
            DTypeError: elements of this dtype are not multiplied on the device.
        """

    @abstractmethod
    def tune(self, dtype: DType, epilogue: Expr, progress: Progress | None = None) -> Tuned:
        """Make every uKernel of a library ready to run: compile what no cache holds."""
