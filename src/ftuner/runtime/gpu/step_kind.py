"""The contract of kinds of steps: operands, launches and compiled steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ftuner.codegen.triton.source import Source
from ftuner.core.dtype import FLOAT32
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ragged import Rows
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor
from ftuner.runtime.gpu.kernels import BoundKernel, Kernel
from ftuner.runtime.gpu.program import KernelLaunch, Launch
from ftuner.runtime.gpu.scratch import Scratch
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.shapes.evaluation import Dims, Layouts
from ftuner.runtime.step_kinds import CommonKind, S, StepKinds

MAX_LAUNCHED = 1 << 20
"""Programs of a launch: those beyond take several tiles each."""
_NOWHERE = torch.empty(1 << 62, dtype=torch.uint8, device="meta")[1 << 61 :]
"""Extents that contradict a graph may lead to lower addresses, and still have valid layouts."""
Places = Callable[[Buffer], Tensor | int]
"""The elements of a buffer, or the number of an array of the run."""


def nowhere(buffer: Buffer) -> Tensor:
    """A tensor without data, with addresses relative to an aligned one."""
    return _NOWHERE.view(TORCH_DTYPES[buffer.dtype.name])


class BoundOperand(NamedTuple):
    """A tensor in a buffer, for concrete extents."""

    memory: Tensor | int
    """The elements of the buffer, or the number of an array of the run."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def tensor(self, arrays: Sequence[Tensor]) -> Tensor:
        memory = arrays[self.memory] if isinstance(self.memory, int) else self.memory
        if 0 in self.shape:
            return memory.new_empty(self.shape)
        begin = memory.storage_offset() + self.offset
        backwards = self.backwards
        if not backwards:
            return memory.as_strided(self.shape, self.strides, begin)
        # Tensors have no negative strides: this is a copy of the elements at the time of the call.
        begin += sum((self.shape[axis] - 1) * self.strides[axis] for axis in backwards)
        strides = [abs(stride) for stride in self.strides]
        return memory.as_strided(self.shape, strides, begin).flip(backwards)

    @property
    def backwards(self) -> list[int]:
        """Axes of negative strides."""
        return [axis for axis, stride in enumerate(self.strides) if stride < 0]


def reversed_bytes(operands: Sequence[BoundOperand], arrays: Sequence[Tensor]) -> int:
    """Returns the bytes of the copies of operands that have negative strides."""
    return sum(x.tensor(arrays).nbytes for x in operands if x.backwards)


def are_read_in_place(operands: Sequence[BoundOperand]) -> bool:
    """Whether none has negative strides, for which a call copies it."""
    return not any(x.backwards for x in operands)


class Operands(NamedTuple):
    """The views of a step, by the numbers of their layouts."""

    views: tuple[View, ...]
    numbers: tuple[int, ...]
    layouts: Layouts

    @classmethod
    def of(cls, views: Sequence[View], layouts: Layouts) -> Operands:
        return cls(tuple(views), tuple(layouts.number(v.layout) for v in views), layouts)

    def bound(self, values: Sequence[int], memory: Places) -> list[BoundOperand]:
        """The operands for values of the dims."""
        found = []
        for view, number in zip(self.views, self.numbers, strict=True):
            strided = self.layouts.strided(number, values)
            size = view.layout.dtype.itemsize
            strides = tuple(stride // size for stride in strided.strides)
            offset = values[self.layouts.offsets[number]]
            found.append(BoundOperand(memory(view.buffer), strided.shape, strides, offset))
        return found


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

    def __init__(self, operands: Sequence[BoundOperand]) -> None:
        super().__init__([x.memory for x in operands])
        self._operands = operands

    @property
    def exists(self) -> bool:
        """Whether no extent is negative, as it may be where extents contradict the graph."""
        return all(n >= 0 for x in self._operands for n in x.shape)

    @abstractmethod
    def wanted(self) -> list[Source]:
        """All kernels that it may launch."""


class TiledLaunch(KernelLaunch):
    """A kernel of tiles at known extents."""

    def __init__(
        self, kernel: Kernel, programs: int, buffers: Sequence[Tensor | int],
        rest: Sequence[Any], scratch: Scratch | None = None,
        taken: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """`buffers`: tensors, or the numbers of arrays of the run. `rest`: the other arguments.
        `scratch`: where several programs share a tile, with what they take of it."""
        super().__init__(buffers)
        self._kernel = kernel
        self._programs = programs
        self._buffers = buffers
        self._rest = rest
        self._late = None if scratch is None else partial(scratch.take, *taken)
        self._taken = taken

    def launched(self, arrays: Sequence[Tensor]) -> Sequence[BoundKernel]:
        tensors = [arrays[x] if isinstance(x, int) else x for x in self._buffers]
        given = [*map(_bytes, tensors), *self._rest]
        found = [self._kernel.argument(x) if isinstance(x, Tensor) else x for x in given]
        bound = BoundKernel(self._kernel, self._programs, found, self._late, self._taken)
        bound.launch()
        return [bound]

    def workspace_bytes(self, arrays: Sequence[Tensor]) -> int:
        return self._taken[0] * FLOAT32.itemsize


def _bytes(x: Tensor) -> Tensor:
    """Booleans as bytes, which kernels read them as."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


class Alike(NamedTuple):
    """What one launch asks of the requests that it is for."""

    past: int | None
    """As of `core.attention_softmax.AttentionSoftmax.causal`: equal for all of them."""
    bits: Any
    """Equal, too, if each has the bits that it has alone."""
    rows: int
    """Of each sequence."""


class Together(ABC):
    """A step that works within a request, in one launch for several requests whose rows follow each
    other."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        """`buffers`: ragged ones (`graph.ragged`), which the step accesses."""
        self.buffers = buffers

    @abstractmethod
    def alike(self, values: Sequence[int]) -> Alike | None:
        """What a launch asks of a request, for its values of the dims; None if there is nothing to
        do."""

    @abstractmethod
    def wanted(self, values: Sequence[int]) -> list[Source]:
        """All kernels that launches for requests may need, for values of the dims that stand for
        others."""

    @abstractmethod
    def launch(
        self, memories: Sequence[Tensor], first: int, offsets: Sequence[int], like: Alike,
        exact: bool,
    ) -> None:  # fmt: skip
        """Launch the step for sequences that begin at `offsets` from the row `first` on, and of
        which the last one ends at the last offset. `memories`: of `buffers`; `exact`: whether each
        request has the bits that it has alone.

        Raises:
            ShapeError: more rows than a kernel takes.
        """


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

    def order_of_sums(self, values: Sequence[int]) -> Hashable:
        """What decides the order in which sums are taken, for values of the dims; None if that is
        not known."""
        return None

    def together(self, rows: Rows) -> Together | None:
        """The step for several requests; None if it is launched for one after the other."""
        return None

    def rehearsal(self, values: Sequence[int], memory: Places) -> Rehearsal | None:
        """The launch for values of the dims, if its kernels depend on the strides of operands."""
        return None


class StepKind(CommonKind[S], ABC):
    """One kind of step. The module of a kind has one, `KIND`."""

    def arranged(self, step: S) -> S:
        """The step with its constants in the layout that kernels read."""
        return step

    @abstractmethod
    def compiled(self, step: S, setting: Setting) -> CompiledStep:
        """The step with all that does not depend on extents.

        Raises:
            UnsupportedKernelError: it has no schedule on a GPU.
        """


KINDS = StepKinds[StepKind[Any]]("gpu")
kind_of = KINDS.of
