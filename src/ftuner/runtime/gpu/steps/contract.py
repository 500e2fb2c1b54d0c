"""What the GPU back end knows of a kind of step. Each kind is one module of this folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ftuner.codegen.triton.source import Source
from ftuner.core.dim import Shape
from ftuner.core.dtype import DType
from ftuner.graph.steps import Step
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.program import KernelLaunch, Launch
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.gpu.steps.operand import Places
from ftuner.runtime.shapes.evaluation import Dims, Layouts

S = TypeVar("S", bound=Step)


class Setting(NamedTuple):
    """What the steps of one graph are compiled with."""

    session: GpuSession
    tf32: bool
    """Whether float32 may be multiplied as tf32."""
    dims: Dims
    """Steps number here the dims that they bind, before any are evaluated."""
    layouts: Layouts


class Rehearsal(KernelLaunch):
    """A launch whose kernels depend on the strides of its operands. It may be asked for them at
    extents that stand for others, of operands without data."""

    @property
    @abstractmethod
    def exists(self) -> bool:
        """Whether no extent is negative."""

    @abstractmethod
    def wanted(self) -> list[Source]:
        """All kernels that it may launch."""


class CompiledStep(ABC):
    """A step whose dims and layouts have numbers."""

    sources: Sequence[Source] = ()
    """The kernels that it may launch whatever the extents are."""
    checks: tuple[str, ...] = ()
    """What a status of n + 1 means; none if the step checks nothing."""

    @abstractmethod
    def bind(self, values: Sequence[int], memory: Places, status: Tensor | None) -> Launch | None:
        """The launch for values of the dims; None if there is nothing to do. `status`: the word
        that checks write to, if the step has some."""

    def rehearsal(self, values: Sequence[int], memory: Places) -> Rehearsal | None:
        """The launch for values of the dims, if its kernels depend on the strides of operands."""
        return None


class StepKind(ABC, Generic[S]):
    """One kind of step. The module of a kind has one, `KIND`."""

    def loops(self, step: S) -> Shape:
        """The extents of loops that may have more iterations than the operands have elements;
        binding refuses too many. Empty if the step has no such loops."""
        return ()

    def supports(self, dtype: DType) -> bool:
        """Whether there are kernels for elements of a dtype. Lowering asks this of kinds that it
        can do without."""
        return True

    def multiplied(self, step: S) -> DType | None:
        """The element type of the matrices that the step multiplies; None if there are none."""
        return None

    def arranged(self, step: S) -> S:
        """The step with its constants in the layout that kernels read."""
        return step

    @abstractmethod
    def compiled(self, step: S, setting: Setting) -> CompiledStep:
        """The step with all that does not depend on extents.

        Raises:
            UnsupportedKernelError: it has no schedule on a GPU.
        """
