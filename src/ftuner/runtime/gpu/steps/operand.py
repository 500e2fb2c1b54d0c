"""Operands of a step at concrete extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ftuner.graph.buffers import Buffer, View
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.shapes.evaluation import Layouts

Places = Callable[[Buffer], Tensor | int]
"""The elements of a buffer, or the number of an array of the run."""


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


def exist(operands: Sequence[BoundOperand]) -> bool:
    """Whether no extent is below zero, as it may be where extents contradict the graph."""
    return all(n >= 0 for x in operands for n in x.shape)


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
