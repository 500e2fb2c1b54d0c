"""Steps bound to extents: where their operands lie, and what they launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ftuner.codegen.triton.source import Source
from ftuner.core.expr import Expr
from ftuner.core.expr import operands as operands_of
from ftuner.core.weighting import Weighting
from ftuner.runtime.gpu.attention import Attentions
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.tensors import Tensor


class BoundOperand(NamedTuple):
    """A tensor in a buffer, for concrete extents."""

    memory: Tensor | int
    """The elements of the buffer, or the number of an array of the run."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def tensor(self, arrays: Sequence[Tensor]) -> Tensor:
        memory = arrays[self.memory] if isinstance(self.memory, int) else self.memory
        return memory.as_strided(self.shape, self.strides, memory.storage_offset() + self.offset)


@dataclass(frozen=True)
class BoundProduct:
    """A matrix product."""

    products: Products
    epilogue: Expr
    tf32: bool
    """Whether float32 may be multiplied as tf32."""
    operands: Sequence[BoundOperand]
    """A, B, C, and what the epilogue reads."""

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        self.products.run(*self._matrices(arrays), self.epilogue, self._given(arrays), self.tf32)

    def wanted(self) -> list[Source]:
        """All that it may launch; its operands may be without data, but are in memory."""
        given = self._given(())
        return self.products.wanted(*self._matrices(()), self.epilogue, given, self.tf32)

    def _matrices(self, arrays: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        a, b, c = (x.tensor(arrays) for x in self.operands[:3])
        return a, b, c

    def _given(self, arrays: Sequence[Tensor]) -> Mapping[str, Tensor]:
        found = {}
        for operand, bound in zip(operands_of(self.epilogue), self.operands[3:], strict=True):
            x = bound.tensor(arrays)
            found[operand.name] = x if operand.kind == "matrix" else x.reshape(-1)
        return found


@dataclass(frozen=True)
class BoundAttention:
    """Attention: q, k, v, the mask if there is one, and the result."""

    attentions: Attentions
    weighting: Weighting
    past: int | None
    """The value of `weighting.causal`."""
    tf32: bool
    operands: Sequence[BoundOperand]

    def __call__(self, arrays: Sequence[Tensor]) -> None:
        self.attentions.run(*self._tensors(arrays), self.weighting, self.past, self.tf32)

    def wanted(self) -> list[Source]:
        """All that it may launch, as of `BoundProduct`."""
        return self.attentions.wanted(*self._tensors(()), self.weighting, self.past, self.tf32)

    def _tensors(
        self, arrays: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        q, k, v, *masks, out = (x.tensor(arrays) for x in self.operands)
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
