"""Chains of steps that may be walked stripe by stripe of rows.

A chain is a depthwise convolution, or a reduction of windows, with the product before it, the
product after it, or both. What passes between them is large and has one reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, TypeGuard

from ftuner.core.dim import Dim, product
from ftuner.core.frozen import dataclass
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.placement import Runs
from ftuner.graph.steps import DimText, Step, shape_text
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.depthwise.step import DepthwiseStep
from ftuner.schedules.product.step import ProductStep


@dataclass(frozen=True)
class StripeMember:
    """A step of a chain that is walked by stripes, and the rows of pictures that it works on."""

    step: ProductStep | DepthwiseStep
    images: Dim
    rows: Dim
    """Of the result in an image, as are `positions`."""
    positions: Dim
    read_rows: Dim
    """Of what the step reads, as are `read_positions`."""
    read_positions: Dim
    stride: int
    """Rows that the window moves from one row of the result to the next."""
    reach: int
    """Rows from the first row of a window to the end of its last one."""
    begin: Dim
    """Padding before the first row."""

    @property
    def result(self) -> View:
        step = self.step
        return step.out if isinstance(step, DepthwiseStep) else step.c


@dataclass(frozen=True)
class StripesStep:
    """A chain of steps on pictures, each of which reads the result of the one before: walked by
    stripes of rows, so that what passes between them stays in a cache. Where the steps are faster
    one after the other, `WholeStep`s do the work."""

    kind: ClassVar[str] = "stripes"
    members: tuple[StripeMember, ...]

    @property
    def title(self) -> str:
        return " | ".join(member.step.title for member in self.members)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        private = {member.result.buffer for member in self.members[:-1]}
        return tuple(b for m in self.members for b in m.step.reads if b not in private)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return self.members[-1].step.writes

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(dim for member in self.members for dim in member.step.dims)

    def described(self, text: DimText) -> str:
        first, last = self.members[0].step, self.members[-1].result
        return f"{first.described(text)} ... -> {shape_text(last.shape, text)}"


@dataclass(frozen=True)
class WholeStep:
    """A member of a chain, which has work where its `StripesStep` has none."""

    kind: ClassVar[str] = "whole"
    step: ProductStep | DepthwiseStep
    stripes: StripesStep

    @property
    def title(self) -> str:
        return self.step.title

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return self.step.reads

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return self.step.writes

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.step.dims

    def described(self, text: DimText) -> str:
        return self.step.described(text)


Members = dict[int, StripeMember]
"""By the number of the step."""


def rewritten(steps: Sequence[Step], outputs: Sequence[View], runs: Runs) -> Sequence[Step]:
    """The steps, with a `StripesStep` before the last member of each chain. `outputs`: of the
    graph; `runs`: whether a back end has a kind of step for a dtype."""
    chains = _Chains(steps, outputs, runs)
    members: dict[int, StripesStep] = {}
    stripes: dict[int, StripesStep] = {}
    for number, step in enumerate(steps):
        if isinstance(step, DepthwiseStep):
            found = chains.around(number, step, members)
            if len(found) > 1:
                chain = StripesStep(tuple(found[i] for i in sorted(found)))
                members |= dict.fromkeys(found, chain)
                stripes[max(found)] = chain
    new: list[Step] = []
    for number, step in enumerate(steps):
        if number in stripes:
            # All that the chain reads has been computed here.
            new.append(stripes[number])
        if number in members:
            assert isinstance(step, (ProductStep, DepthwiseStep))
            step = WholeStep(step, members[number])
        new.append(step)
    return new


class _Chains:
    def __init__(self, steps: Sequence[Step], outputs: Sequence[View], runs: Runs) -> None:
        self._steps, self._runs = steps, runs
        accesses = [b for step in steps for b in (*step.reads, *step.writes)]
        self._accesses = Counter((*accesses, *(view.buffer for view in outputs)))
        self._writers = {b: i for i, step in enumerate(steps) for b in step.writes}
        self._readers = {b: i for i, step in enumerate(steps) for b in step.reads}

    def around(self, number: int, step: DepthwiseStep, taken: dict[int, StripesStep]) -> Members:
        """The chain around a step: the step alone if it has no product to walk with."""
        images, rows, positions, _ = step.out.shape
        reach = (step.window[0] - 1) * step.dilations[0] + 1
        _, read_rows, read_positions, _ = step.x.shape
        middle = StripeMember(
            step, images, rows, positions, read_rows, read_positions, step.strides[0], reach,
            step.begin[0],
        )  # fmt: skip
        found = {number: middle}
        dtype = step.out.layout.dtype
        known = isinstance(step.out.shape[-1], int) and step.x.layout.dtype == dtype
        if not known or not self._runs(StripesStep.kind, dtype):
            return found
        before = self._writers.get(step.x.buffer, -1) if self._is_private(step.x) else -1
        if before >= 0 and before not in taken:
            head = self._head(self._steps[before], step.x)
            if head is not None:
                found[before] = head
        after = self._readers[step.out.buffer] if self._is_private(step.out) else -1
        if after >= 0 and after not in taken:
            tail = self._tail(self._steps[after], middle)
            if tail is not None:
                found[after] = tail
        return found

    def _is_private(self, view: View) -> bool:
        """Whether a view is all of a buffer with one writer and one reader."""
        whole = view.contiguous and view.layout.offset == 0
        return view.buffer.kind == "arena" and whole and self._accesses[view.buffer] == 2

    def _head(self, step: Step, x: View) -> StripeMember | None:
        """The step as the first member of a chain whose next one reads x."""
        images, rows, positions, channels = x.shape
        if type(step) is ConvolutionStep:
            window = step.window
            fits = len(window.kernel) == 2 and window.extents == (rows, positions)
            if not fits or step.faster or step.a.shape[0] != images or not _of_one(step):
                return None
            _, read_rows, read_positions, _ = step.a.shape
            reach = (window.kernel[0] - 1) * window.dilations[0] + 1
            return StripeMember(
                step, images, rows, positions, read_rows, read_positions, window.strides[0], reach,
                window.begin[0],
            )  # fmt: skip
        if not _is_plain(step) or not _covers(step.c, (images, rows, positions), channels):
            return None
        return _pointwise(step, images, rows, positions)

    def _tail(self, step: Step, before: StripeMember) -> StripeMember | None:
        """The step as the last member of a chain."""
        extents = before.images, before.rows, before.positions
        out = before.result
        if not _is_plain(step) or step.a.buffer is not out.buffer:
            return None
        whole = step.a.contiguous and step.a.layout.offset == 0
        if not whole or not _covers(step.a, extents, out.shape[-1]):
            return None
        return _pointwise(step, *extents)


def _is_plain(step: Step) -> TypeGuard[ProductStep]:
    """Whether a step is a product by a weight, of rows with contiguous elements."""
    if type(step) is not ProductStep or not step.by_weight:
        return False
    return step.a.layout.strides[-1] == 1 and len(step.a.shape) == 2 and _of_one(step)


def _of_one(step: ProductStep) -> bool:
    """Whether all operands have one dtype: nothing is widened."""
    return len({view.layout.dtype for view in step.views}) == 1


def _covers(rows: View, extents: tuple[Dim, ...], columns: Dim) -> bool:
    """Whether a matrix has a row for each position of pictures, in their order."""
    return rows.shape == (product(extents), columns)


def _pointwise(step: ProductStep, images: Dim, rows: Dim, positions: Dim) -> StripeMember:
    return StripeMember(step, images, rows, positions, rows, positions, 1, 1, 0)
