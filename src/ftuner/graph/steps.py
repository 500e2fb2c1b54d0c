"""The steps that a graph is lowered to. They run one after the other on buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from ftuner.core.access import Kernel
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dim import Dim, Shape
from ftuner.core.dtype import DType
from ftuner.core.expr import Expr
from ftuner.core.product import ReadWindow
from ftuner.graph.appending import Appended
from ftuner.graph.buffers import Buffer, View
from ftuner.graph.ir import Graph

DimText = Callable[[Dim], str]


def shape_text(shape: Shape, text: DimText) -> str:
    """Extents as `described` shows them."""
    return f"[{', '.join(map(text, shape))}]"


class Step(Protocol):
    """One step of a lowered graph, of some kind. Steps are frozen dataclasses."""

    kind: ClassVar[str]
    """The name of the kind. Each back end implements it in the module of this name in its folder
    `steps`, or in one that `runtime.step_kinds.register_step_kind` names."""

    @property
    def title(self) -> str:
        """The operators that are fused into the step, in their order."""
        ...

    @property
    def reads(self) -> tuple[Buffer, ...]: ...

    @property
    def writes(self) -> tuple[Buffer, ...]: ...

    @property
    def dims(self) -> tuple[Dim, ...]:
        """What the work of the step depends on, besides the sizes of its buffers."""
        ...

    def described(self, text: DimText) -> str:
        """The shapes that the step computes on, for people. `text` names a dim."""
        ...


class KernelStep(Step, Protocol):
    """A step that is one kernel."""

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        ...


@dataclass(frozen=True)
class NestStep:
    """Loops over a kernel, whose buffers are those it reads and then those it writes."""

    kind: ClassVar[str] = "nest"
    title: str
    kernel: Kernel
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(self.kernel.parameters())

    def described(self, text: DimText) -> str:
        kept = shape_text(self.kernel.kept, text)
        reduced = self.kernel.reduced
        return f"{kept} over {shape_text(reduced, text)}" if reduced else kept


@dataclass(frozen=True)
class Window:
    """A window that a product reads A through: A is x of (images, spatial axes..., channels), and
    row r of the matrix is the window of position r. Lists have an entry for each spatial axis."""

    kernel: tuple[int, ...]
    """Elements of the window that are apart in memory."""
    run: int
    """Consecutive elements of x for each element of the window."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: Shape
    """Padding with zeros before the first element of x."""
    extents: Shape
    """Positions of the window."""

    def whole_kernel(self, channels: Dim) -> tuple[int, ...]:
        """The extents of the window in positions of x, whose `channels` have no gaps between
        positions: a run may hold several positions."""
        assert isinstance(channels, int)
        return (*self.kernel[:-1], self.kernel[-1] * self.run // channels)


@dataclass(frozen=True)
class ProductStep:
    """A matrix product: `c = epilogue(a @ b, *operands)`. Where B has two axes, so do A and C.
    Operands always have two: a matrix as C, or one row for all of C."""

    kind: ClassVar[str] = "product"
    title: str
    a: View
    b: View
    c: View
    epilogue: Expr
    operands: tuple[View, ...]

    @property
    def views(self) -> tuple[View, ...]:
        return (self.a, self.b, self.c, *self.operands)

    @property
    def read_window(self) -> ReadWindow | None:
        """How A is read through a window; None if it is in memory."""
        return None

    @property
    def by_weight(self) -> bool:
        """Whether B is a constant matrix, which is packed once."""
        whole = self.b.contiguous and self.b.layout.offset == 0
        matrix = len(self.b.shape) == 2 and 0 not in self.b.shape
        return self.b.buffer.is_constant and matrix and whole

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.a.buffer, self.b.buffer, *(v.buffer for v in self.operands))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.c.buffer,)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(d for view in self.views for d in (*view.shape, *view.layout.strides))

    def described(self, text: DimText) -> str:
        a, b, c = (shape_text(view.shape, text) for view in (self.a, self.b, self.c))
        return f"{a} @ {b} -> {c}"


@dataclass(frozen=True)
class ConvolutionStep(ProductStep):
    """A product whose A is read through a window. A has the axes of x; B is a constant matrix, and
    B, C and operands have two axes."""

    kind: ClassVar[str] = "convolution"
    window: Window
    winograd: str
    """The kind of a step before it that does the work where it is faster, by Winograd's products;
    empty if there is none."""

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (*super().dims, *self.window.begin, *self.window.extents)

    @property
    def read_window(self) -> ReadWindow:
        window = self.window
        read = math.prod(window.kernel) * window.run
        channels = self.a.shape[-1]
        if not isinstance(channels, int):
            # A row of the window is then the channels of one element.
            channels = window.run
        new = math.prod(window.strides) * channels
        return ReadWindow(len(window.kernel), window.run, max(read / new, 1.0))

    def described(self, text: DimText) -> str:
        a, c = (shape_text(view.shape, text) for view in (self.a, self.c))
        return f"{a} by {shape_text(self.window.kernel, text)} -> {c}"


@dataclass(frozen=True)
class GroupedConvolutionStep(ConvolutionStep):
    """A convolution in groups, each by its own matrix: A and C have the channels of all groups side
    by side, and B is (groups, k, columns of a group)."""

    kind: ClassVar[str] = "grouped_convolution"

    @property
    def read_window(self) -> ReadWindow:
        own = super().read_window
        read = math.prod(self.window.kernel) / math.prod(self.window.strides)
        return own._replace(reuse=max(read, 1.0))


@dataclass(frozen=True)
class DepthwiseStep:
    """A convolution of each channel by its own window, or of each of some channels by windows over
    all of them, or a reduction of each channel's windows. x and the result are (images, rows,
    positions, channels), with contiguous channels."""

    kind: ClassVar[str] = "depthwise"
    title: str
    x: View
    weight: View | None
    """(rows, positions, channels of a group, channels), row-major; None for a reduction."""
    reduction: str | None
    """`sum`, `maximum` or `minimum`; None for a convolution."""
    out: View
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: Shape
    """Padding with zeros before the first row and the first position of x."""
    epilogue: Expr
    operands: tuple[View, ...]
    """As of a product whose rows are the positions of the result."""
    group: int = 1
    """Channels of a group of a convolution, of x and of the result."""

    @property
    def reads(self) -> tuple[Buffer, ...]:
        weight = () if self.weight is None else (self.weight.buffer,)
        return (self.x.buffer, *weight, *(v.buffer for v in self.operands))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.out.buffer,)

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time, as `Depthwise` of the CPU's `kernel_records` has it,
        and then the offset of each operand and the distance between its rows, in elements."""
        _, height, width, channels = self.x.shape
        x, out = self.x.layout, self.out.layout
        operands = [(v.layout.offset, v.layout.strides[0]) for v in self.operands]
        return (
            height, width, channels, *self.out.shape[1:3], *self.begin, x.offset, *x.strides[:3],
            out.offset, *out.strides[:3], *(dim for pair in operands for dim in pair),
        )  # fmt: skip

    @property
    def dims(self) -> tuple[Dim, ...]:
        return (self.x.shape[0], *self.parameters())

    def described(self, text: DimText) -> str:
        window = shape_text(self.window, text)
        return f"{shape_text(self.x.shape, text)} by {window} -> {shape_text(self.out.shape, text)}"


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


@dataclass(frozen=True)
class AttentionStep:
    """`out = softmax(q @ k, mask) @ v`."""

    kind: ClassVar[str] = "attention"
    title: str
    q: View
    k: View
    v: View
    """k and v have the batch axes of q; along those that their heads share they stay in place."""
    mask: View | None
    """Of the shape of the scores: an addend, or booleans."""
    sinks: View | None
    """One score of each row that has no key."""
    out: View
    softmax: AttentionSoftmax

    @property
    def views(self) -> tuple[View, ...]:
        """All operands and the result, in the order of the kernel's buffers."""
        return (self.q, self.k, self.v, *self.optional, self.out)

    @property
    def optional(self) -> tuple[View, ...]:
        """The mask and the sinks, if there are any."""
        return tuple(view for view in (self.mask, self.sinks) if view is not None)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return tuple(v.buffer for v in self.views[:-1])

    @property
    def writes(self) -> tuple[Buffer, ...]:
        return (self.out.buffer,)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(d for view in self.views for d in (*view.shape, *view.layout.strides))

    def described(self, text: DimText) -> str:
        named = [("q", self.q), ("k", self.k), ("v", self.v)]
        named += [("mask", self.mask)] if self.mask is not None else []
        named += [("sinks", self.sinks)] if self.sinks is not None else []
        operands = ", ".join(f"{name} {shape_text(view.shape, text)}" for name, view in named)
        limit = self.softmax.causal
        keys = "" if limit is None else f", keys j <= i + {text(limit)}"
        return f"{operands} -> {shape_text(self.out.shape, text)}{keys}"


@dataclass(frozen=True)
class TopKStep:
    """The `wanted` best of each row of `count` elements, in order, and where they were."""

    kind: ClassVar[str] = "top_k"
    title: str
    x: View
    """In row-major order, but for an offset."""
    values: Buffer
    positions: Buffer
    rows: Dim
    count: Dim
    wanted: Dim
    distance: Dim
    """Elements between those of one row."""
    largest: bool
    keys: Buffer | None = None
    """Memory for two keys of each element found while the step runs; None if an element and its
    position do not fit into one."""

    @staticmethod
    def has_keys(dtype: DType) -> bool:
        return dtype.itemsize <= 4

    @property
    def reads(self) -> tuple[Buffer, ...]:
        return (self.x.buffer,)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        found = (self.values, self.positions)
        return found if self.keys is None else (*found, self.keys)

    def parameters(self) -> tuple[Dim, ...]:
        """What the kernel reads at run time."""
        return (self.count, self.wanted, self.distance, self.x.layout.offset)

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.parameters()

    def described(self, text: DimText) -> str:
        best = shape_text((self.rows, self.wanted), text)
        return f"{shape_text((self.rows, self.count), text)} -> {best}"


@dataclass(frozen=True)
class Lowered:
    """A graph as steps that run one after the other."""

    graph: Graph
    steps: tuple[Step, ...]
    inputs: tuple[Buffer, ...]
    outputs: tuple[View, ...]
    appended: tuple[Appended, ...] = ()
    """Outputs that are in memory with room for more rows, and begin with an input."""

    def lifetimes(self) -> dict[Buffer, tuple[int, int]]:
        """The first and the last step that access each buffer of the arena."""
        found: dict[Buffer, tuple[int, int]] = {}
        for number, step in enumerate(self.steps):
            for buffer in (*step.writes, *step.reads):
                if buffer.kind == "arena":
                    first, _ = found.get(buffer, (number, number))
                    found[buffer] = (first, number)
        return found
