"""Steps bound to extents: where their operands lie, and what they launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ftuner.codegen.triton.source import Source
from ftuner.core.attention_weights import Weighting
from ftuner.core.expr import Expr
from ftuner.core.expr import operands as operands_of
from ftuner.runtime.gpu.arrays import Tensor
from ftuner.runtime.gpu.attention_launches import Attentions
from ftuner.runtime.gpu.cuda_graphs import Work
from ftuner.runtime.gpu.products import Products


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
        # Tensors have no negative strides: a copy, of what lies there when it is made.
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


def stay(operands: Sequence[BoundOperand]) -> bool:
    """Whether all of them are where they were in the run before: arguments are then made once."""
    return not any(isinstance(x.memory, int) or x.backwards for x in operands)


class BoundProduct:
    """A matrix product."""

    def __init__(
        self, products: Products, epilogue: Expr, tf32: bool, operands: Sequence[BoundOperand]
    ) -> None:
        """`operands`: A, B, C, and what the epilogue reads; `tf32`: whether float32 may be
        multiplied so."""
        self._products = products
        self._epilogue = epilogue
        self._tf32 = tf32
        self._operands = operands
        self._stays = stay(operands)
        self._fixed: list[Work] | None = None

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        if self._fixed is None:
            given = *self._matrices(arrays), self._epilogue, self._given(arrays), self._tf32
            if self._stays:
                self._fixed = self._products.fixed(*given)
            if self._fixed is None:
                self._products.run(*given)
                return
        for launch in self._fixed:
            launch()

    @property
    def exists(self) -> bool:
        return exist(self._operands)

    def wanted(self) -> list[Source]:
        """All that it may launch; its operands may be without data, but are in memory."""
        return self._products.wanted(
            *self._matrices(()), self._epilogue, self._given(()), self._tf32
        )

    def _matrices(self, arrays: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = (x.tensor(arrays) for x in self._operands[:3])
        return a, b, c

    def _given(self, arrays: Sequence[Tensor]) -> Mapping[str, Tensor]:
        found = {}
        for operand, bound in zip(operands_of(self._epilogue), self._operands[3:], strict=True):
            x = bound.tensor(arrays)
            found[operand.name] = x if operand.kind == "matrix" else x.reshape(-1)
        return found


class BoundAttention:
    """Attention."""

    def __init__(
        self, attentions: Attentions, weighting: Weighting, past: int | None, tf32: bool,
        operands: Sequence[BoundOperand],
    ) -> None:  # fmt: skip
        """`operands`: q, k, v, the mask if there is one, and the result; `past`: the value of
        `weighting.causal`."""
        self._attentions = attentions
        self._how = weighting, past, tf32
        self._operands = operands
        self._stays = stay(operands)
        self._fixed: list[Work] | None = None

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        if self._fixed is not None:
            for launch in self._fixed:
                launch()
            return
        q, k, v, out, mask = self._tensors(arrays)
        direct = self._attentions.run(q, k, v, out, mask, *self._how)
        if self._stays and direct is not None:
            given = (q, k.mT, v, out, *(() if mask is None else (mask,)))
            self._fixed = self._attentions.fixed(direct, given)

    @property
    def exists(self) -> bool:
        return exist(self._operands)

    def wanted(self) -> list[Source]:
        """All that it may launch, as of `BoundProduct`."""
        weighting, past, tf32 = self._how
        return self._attentions.wanted(*self._tensors(()), weighting, past, tf32)

    def _tensors(
        self, arrays: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        q, k, v, *masks, out = (x.tensor(arrays) for x in self._operands)
        return q, k, v, out, masks[0] if masks else None


@dataclass(frozen=True)
class BoundTopK:
    """The best of each row, in order of position where elements are equal."""

    x: BoundOperand
    """`(blocks, count, distance)`: rows whose elements are `distance` apart lie side by side."""
    targets: tuple[BoundOperand, BoundOperand]
    """Values and positions, `(blocks, wanted, distance)`."""
    largest: bool

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        found = self.x.tensor(arrays).sort(dim=1, descending=self.largest, stable=True)
        for target, source in zip(self.targets, found, strict=True):
            target.tensor(arrays).copy_(source[:, : target.shape[1]])
