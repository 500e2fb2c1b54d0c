"""The contract between a back end and the rest of ftuner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from ftuner.core.dtype import DType
from ftuner.core.expr import Expr
from ftuner.hardware.model import CpuHardware, GpuHardware
from ftuner.ukernels.library import Library

Progress = Callable[[str, int, int], None]
"""Told of long work: what is done, how much of it, of how much."""


class Backend(ABC):
    """One device: what it supports, its uKernels, and how they are compiled and launched."""

    @property
    @abstractmethod
    def hardware(self) -> CpuHardware | GpuHardware:
        """The device's hardware model."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """What identifies the device and its code generator in cache keys."""

    @abstractmethod
    def supports(self, dtype: DType) -> bool:
        """Whether uKernels of this element type can be generated."""

    @abstractmethod
    def library(self, dtype: DType, epilogue: Expr) -> Library:
        """The uKernels kept for this device, dtype and epilogue: enumerated, not compiled."""

    @abstractmethod
    def tune(self, dtype: DType, epilogue: Expr, progress: Progress | None = None) -> None:
        """Make every uKernel of a library ready to run: compile what the cache does not hold."""
