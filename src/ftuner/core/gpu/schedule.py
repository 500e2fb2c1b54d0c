"""The schedule of a nest on a GPU: the block of elements that a program takes at a time.

A block has two dimensions; several axes of the nest may be flattened along one. Programs take
tiles, the blocks of the kept axes; a program walks the blocks of the reduced axes one after the
other. The schedules follow from the structure of the nest and from extents known when it is
compiled; run-time extents choose among them by arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ftuner.core.access import Access, Kernel
from ftuner.core.dim import Dim, ceil_quotient, least_value, product
from ftuner.core.dtype import FLOAT32, DType
from ftuner.core.expr import Expr
from ftuner.core.frozen import dataclass
from ftuner.core.recurrence import Cell

WARP_THREADS = 32
"""Of NVIDIA's chips. The numbers of warps below are for these; with wider warps there are fewer."""
SPLIT_KINDS = frozenset({"sum", "maximum", "minimum"})
"""Reductions whose parts are combined by the same step."""
LINE_BYTES = 128
"""Transaction size of L2 and DRAM: contiguous data is read in lines of this size."""


class BlockSizes(NamedTuple):
    """The sizes that schedules are made of: powers of two, and a ratio; part of a chip's tuning."""

    block_elements: int
    warp_elements: int
    """Elements of a block for each warp of `WARP_THREADS`."""
    max_warps: int
    max_whole_row_elements: int
    """The longest row that registers hold at once."""
    whole_rows: tuple[tuple[int, int], ...]
    """Rows and columns of blocks for whole rows of a run-time length, shortest rows first."""
    loop_elements: int
    """Elements of a block of a row that is too long for one block."""
    strip_elements: int
    """Elements along an axis where another axis shares the block."""
    min_vector_elements: int
    """A shorter contiguous axis is flattened together with others."""
    scattered_elements: int
    """Elements of a block of scattered writes: those along axes that keep addresses apart."""
    scattered_warps: int
    spare_lanes_ratio: float
    """A schedule is chosen if it has at most this many times the fewest lanes."""


@dataclass(frozen=True)
class Schedule:
    """The blocks, tiles and loops by which a program walks a nest."""

    axes: tuple[tuple[int, ...], tuple[int, ...]]
    """The axes along each dimension of a block, slowest first. Adjacent threads have adjacent
    indices of the last axis of the second dimension."""
    block: tuple[int, int]
    """Elements along each dimension, powers of two; a dimension of one element has no lanes."""
    singles: tuple[int, ...]
    """Kept axes along which a tile has one index."""
    serial: tuple[int, ...]
    """Axes that a program walks index by index, in order."""
    reduction: int | None
    """The dimension of the reduced axes."""
    whole: bool
    """Whether the reduced axes fit one block, so that loaded values stay in registers."""
    warps: int
    split: bool = False
    """Whether parts of the reduced axes go to different programs, the last of which combines them:
    for results that are fewer than the chip has multiprocessors for."""

    @property
    def flat(self) -> int | None:
        """The axis of the blocks, if there is only one axis and it is not reduced."""
        rows, columns = self.axes
        alone = not rows and len(columns) == 1 and not (*self.singles, *self.serial)
        return columns[0] if alone and self.reduction is None else None

    @property
    def room(self) -> int | None:
        """Elements of the reduced axes in one block: the most that a `whole` schedule can hold."""
        return None if self.reduction is None else self.block[self.reduction]

    def extent(self, kernel: Kernel, dimension: int) -> Dim:
        """Returns the elements along a dimension."""
        return product(kernel.axes[a] for a in self.axes[dimension])

    def tiles(self, kernel: Kernel) -> Dim:
        """Returns the number of tiles."""
        blocks = [
            ceil_quotient(self.extent(kernel, d), self.block[d])
            for d in (0, 1)
            if d != self.reduction
        ]
        return product((*blocks, *(kernel.axes[a] for a in self.singles)))

    def lanes(self, kernel: Kernel) -> Dim:
        """Returns the elements of all blocks, including those beyond the edges."""
        extents = [
            ceil_quotient(self.extent(kernel, d), self.block[d]) * self.block[d] for d in (0, 1)
        ]
        return product((*extents, *(kernel.axes[a] for a in (*self.singles, *self.serial))))


def schedules_of(
    kernel: Kernel, sizes: BlockSizes, warp_threads: int = WARP_THREADS
) -> tuple[Schedule, ...]:
    """Returns the schedules among which run-time extents choose, for a chip whose warps have
    `warp_threads` threads. The last one is valid for any extents."""
    return tuple(
        replace(schedule, warps=max(schedule.warps * WARP_THREADS // warp_threads, 1))
        for schedule in _schedules(kernel, sizes)
    )


def _schedules(kernel: Kernel, sizes: BlockSizes) -> tuple[Schedule, ...]:
    if any(t.rest for t in kernel.targets):
        return (_scattering(kernel, sizes),)
    if not kernel.reduced:
        return _maps(kernel, sizes)
    split = len(kernel.kept)
    vector = _most_contiguous(kernel, range(len(kernel.axes)))
    if vector < split:
        return (_down_columns(kernel, vector, sizes),)
    return _along_rows(kernel, vector, sizes)


def splits(kernel: Kernel, schedule: Schedule) -> bool:
    """Whether a schedule can be `split`: one sum, or one largest or smallest element, of floats in
    several blocks."""
    if schedule.reduction is None or schedule.whole or len(kernel.stages) != 1:
        return False
    (stage,) = kernel.stages
    dtype = kernel.steps[stage.value].dtype
    narrow = dtype.kind == "float" and dtype.itemsize <= FLOAT32.itemsize
    return stage.kind in SPLIT_KINDS and narrow and not any(kernel.wide) and not kernel.combine


def reduced_elements(kernel: Kernel) -> Dim:
    """Returns the number of elements of the reduced axes."""
    return product(kernel.reduced)


def best_schedule(
    schedules: Sequence[Schedule], lanes: Sequence[int], reduced: int, sizes: BlockSizes
) -> int:
    """Returns the index of the best schedule: the first that is valid and has at most
    `sizes.spare_lanes_ratio` times the fewest lanes.

    Args:
        lanes: the value of `Schedule.lanes` of each schedule.
        reduced: the value of `reduced_elements`.
    """
    holding = [
        number
        for number, schedule in enumerate(schedules)
        if not schedule.whole or schedule.room is None or reduced <= schedule.room
    ]
    fewest = min(lanes[number] for number in holding)
    most = sizes.spare_lanes_ratio * fewest
    return next(number for number in holding if lanes[number] <= most)


def _accesses(kernel: Kernel) -> list[Access]:
    return [*kernel.targets, *(a for a in kernel.accesses if a is not None)]


def _most_contiguous(kernel: Kernel, axes: Iterable[int]) -> int:
    """Returns the axis along which most elements are contiguous. Accesses along more axes move more
    elements and count first; of equal axes the last one is taken."""

    def score(axis: int) -> tuple[list[int], int]:
        moved = [0] * (len(kernel.axes) + 1)
        for access in _accesses(kernel):
            if access.coefficients[axis] == 1:
                moved[-1 - sum(1 for c in access.coefficients if c != 0)] += 1
        return moved, axis

    return max(axes, key=score)


def _power(n: int) -> int:
    """Returns the smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def _strip(extent: Dim, most: int, strip: int) -> int:
    """Returns the block along one axis that has the fewest elements beyond the edge."""
    if not isinstance(extent, int):
        return most
    if extent <= strip:
        return min(_power(extent), most)
    candidates = [1 << e for e in range(strip.bit_length() - 1, most.bit_length())]
    return min(candidates or [most], key=lambda b: (-(-extent // b) * b, -b))


def _line(kernel: Kernel, strip: int) -> int:
    """Returns the elements of the narrowest type in a memory line, at least a strip."""
    narrowest = min(kernel.steps[v].dtype.itemsize for v in kernel.values)
    loads = (s.dtype.itemsize for s in kernel.steps if s.op == "load")
    return max(LINE_BYTES // min((narrowest, *loads)), strip)


def _warps(block: tuple[int, int], sizes: BlockSizes) -> int:
    elements = block[0] * block[1]
    warps = max(1, elements // sizes.warp_elements)
    # Long rows in registers get more elements per thread before they get more threads.
    return warps if warps <= sizes.max_warps // 2 else min(warps // 2, sizes.max_warps)


def _maps(kernel: Kernel, sizes: BlockSizes) -> tuple[Schedule, ...]:
    """Schedules without reductions: blocks of the contiguous axis, with several rows where it is
    short."""
    axes, most, strip = range(len(kernel.kept)), sizes.block_elements, sizes.strip_elements
    if not axes:
        return (Schedule(((), ()), (1, 1), (), (), None, True, 1),)

    def found(rows: tuple[int, ...], columns: tuple[int, ...], block: tuple[int, int]) -> Schedule:
        singles = tuple(a for a in axes if a not in (*rows, *columns))
        return Schedule((rows, columns), block, singles, (), None, True, _warps(block, sizes))

    vector = _most_contiguous(kernel, axes)
    extent = kernel.axes[vector]
    others = tuple(a for a in axes if a != vector)
    if not others:
        return (found((), (vector,), (1, _strip(extent, most, strip))),)
    across = [
        axis for axis in others
        if not _short(kernel.axes[axis], sizes) and any(
            a.coefficients[axis] == 1 and a.coefficients[vector] != 0 for a in _accesses(kernel)
        )
    ]  # fmt: skip
    if across and not _short(extent, sizes):
        # Read along one axis and written along another.
        row = _most_contiguous(kernel, across)
        line = min(_line(kernel, strip), 2 * strip)
        block = (_strip(kernel.axes[row], line, strip), _strip(extent, line, strip))
        return (found((row,), (vector,), block),)
    if isinstance(extent, int):
        columns = _strip(extent, most, strip)
        return (found(others, (vector,), (_rows(kernel, others, columns, most), columns)),)
    blocks = ((1, most), (most // strip, strip))
    return tuple(
        found(others, (vector,), (min(r, _rows(kernel, others, c, most)), c)) for r, c in blocks
    )


def _short(extent: Dim, sizes: BlockSizes) -> bool:
    return isinstance(extent, int) and extent < sizes.min_vector_elements


def _rows(kernel: Kernel, axes: Sequence[int], columns: int, elements: int) -> int:
    """Returns the rows of a block of `elements` with `columns`; at most those of the axes."""
    rows = max(1, elements // columns)
    extent = product(kernel.axes[a] for a in axes)
    return min(rows, _power(extent)) if isinstance(extent, int) else rows


def _along_rows(kernel: Kernel, vector: int, sizes: BlockSizes) -> tuple[Schedule, ...]:
    """Schedules of reductions along contiguous elements: rows of the kept axes, columns of the
    reduced ones."""
    kept = tuple(range(len(kernel.kept)))
    reduced = tuple(a for a in range(len(kept), len(kernel.axes)) if a != vector)
    axes, elements = (kept, (*reduced, vector)), sizes.block_elements
    extent = reduced_elements(kernel)

    def found(rows: int, columns: int, whole: bool) -> Schedule:
        block = (min(rows, _rows(kernel, kept, 1, elements)), columns)
        return Schedule(axes, block, (), (), 1, whole, _warps(block, sizes))

    if any(stage.kind == "scan" for stage in kernel.stages):
        # A scan carries sums from block to block, so whole rows in registers gain nothing.
        most = sizes.whole_rows[-1][1]
        columns = min(_power(extent), most) if isinstance(extent, int) else 0
        blocks = ((_rows(kernel, kept, columns, elements), columns),) if columns else None
        return tuple(found(*block, whole=False) for block in blocks or sizes.whole_rows)
    loop = replace(found(1, sizes.loop_elements, whole=False), warps=sizes.max_warps)
    if not isinstance(extent, int):
        return (*(found(*block, whole=True) for block in sizes.whole_rows), loop)
    if 0 < extent <= sizes.max_whole_row_elements:
        columns = _power(extent)
        return (found(_rows(kernel, kept, columns, elements), columns, whole=True),)
    return (loop,)


def _down_columns(kernel: Kernel, vector: int, sizes: BlockSizes) -> Schedule:
    """The schedule of strided reductions: columns of a contiguous kept axis, rows of the reduced
    ones."""
    kept, strip = range(len(kernel.kept)), sizes.strip_elements
    others = tuple(a for a in kept if a != vector)
    columns: tuple[int, ...] = (vector,)
    if _short(kernel.axes[vector], sizes):
        columns = (*others, vector)
    singles = tuple(a for a in kept if a not in columns)
    extent = reduced_elements(kernel)
    whole = isinstance(extent, int) and 0 < extent <= strip
    rows = _power(extent) if whole and isinstance(extent, int) else strip
    most = max(sizes.block_elements // rows, min(_line(kernel, strip), 2 * strip))
    block = (rows, _strip(product(kernel.axes[a] for a in columns), most, strip))
    axes = (tuple(range(len(kept), len(kernel.axes))), columns)
    return Schedule(axes, block, singles, (), 0, whole, _warps(block, sizes))


def _scattering(kernel: Kernel, sizes: BlockSizes) -> Schedule:
    """The schedule of scattered writes, whose addresses are in data and may repeat: in order,
    except along axes whose indices are certain to have different addresses."""
    apart = _apart(kernel)
    serial = tuple(a for a in range(len(kernel.axes)) if a not in apart)
    if not apart:
        return Schedule(((), ()), (1, 1), (), serial, None, True, 1)
    *others, vector = apart
    most = sizes.scattered_elements
    columns = _strip(kernel.axes[vector], most, sizes.strip_elements)
    rows = _rows(kernel, others, columns, most)
    axes = (tuple(others), (vector,))
    return Schedule(axes, (rows, columns), (), serial, None, True, sizes.scattered_warps)


def _apart(kernel: Kernel) -> tuple[int, ...]:
    """Returns the axes along which different indices never write the same element; none if that
    is not certain.

    An address is a sum of digits times strides; a digit is an index, or a value from data within a
    checked extent. If each stride is at least the range that the lower digits span, equal addresses
    have equal digits.
    """
    (target,) = kernel.targets
    axes = [a for a, c in enumerate(target.coefficients) if c != 0]
    digits = [(target.coefficients[a], kernel.axes[a]) for a in axes]
    for number, stride in target.rest:
        step = kernel.steps[number]
        extent = kernel.steps[step.arguments[1]].dim if step.op == "checked" else None
        if extent is None:
            return ()
        digits.append((stride, extent))
    return tuple(axes) if _unique(digits, 1) else ()


def _unique(digits: Sequence[tuple[Dim, Dim]], run: Dim) -> bool:
    """Whether digits (stride, extent) have an order in which each stride is at least the range
    below it, beginning with `run` elements."""
    if not digits:
        return True
    for number, (stride, extent) in enumerate(digits):
        room = least_value(stride - run)
        if room is not None and room >= 0:
            left = [*digits[:number], *digits[number + 1 :]]
            if _unique(left, stride * extent):
                return True
    return False


WINDOW_WARPS = 4
"""Warps of a block. Assumed: 128 threads, as those of nests."""
CHANNELS = (64, 32, 128)
"""Channels of a block where there are more than of the shortest, the best first: whole lines of
memory."""


@dataclass(frozen=True)
class DepthwiseKernel:
    """What the code of a depthwise convolution or of a reduction of windows depends on. Axes are
    rows and positions of a row."""

    x: DType
    weight: DType | None
    out: DType
    operands: tuple[DType, ...]
    """Of the epilogue."""
    reduction: str | None
    """Of the elements of a window (`sum`, `maximum`, `minimum`); None for a convolution."""
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    epilogue: Expr
    group: int
    """Channels of a group: each is a sum over all of them."""
    block: tuple[int, int]
    """Positions and channels of a block."""
    even: bool = False
    """Whether channels, offsets and strides are multiples of elements of 16 bytes."""


def depthwise_block(channels: Dim, elements: int) -> tuple[int, int]:
    """Returns the positions and channels of a block of `elements`: the channels that leave the
    fewest lanes idle."""
    best = CHANNELS[0]
    if isinstance(channels, int):
        if channels < min(CHANNELS):
            best = 1 << max(channels - 1, 0).bit_length()
        else:
            best = min(CHANNELS, key=lambda block: -(-channels // block) * block)
    return max(elements // best, 1), best


RECURRENCE_WARPS = 4
"""Warps of a program. Assumed: 128 threads, as those of nests."""
RECURRENCE_STAGES = 3
"""Blocks of k that are in flight. Assumed, as for products."""


class Block(NamedTuple):
    """What a program computes, and by how much of k at a time."""

    sequences: int
    hidden: int
    k: int


BLOCKS = (Block(16, 16, 64), Block(64, 16, 32))
"""Few and many sequences. Assumed: 16 is the least extent of a matrix instruction, and where there
are few sequences, narrow blocks spread the weight over more multiprocessors. The sums of four gates
of larger blocks do not fit the registers of a thread."""


@dataclass(frozen=True)
class RecurrenceKernel:
    """What the code of a stage of a step depends on."""

    dtype: DType
    """Of all arrays but the lengths of sequences. Sums and expressions are float32."""
    cell: Cell
    stage: int
    hidden: int
    block: Block
    tf32: bool
    """Whether float32 is multiplied as tf32."""
    aligned: bool
    """Whether the weight begins at a multiple of 16 bytes."""


def turns(cell: Cell) -> bool:
    """Whether a stage writes the plane that it multiplies. Other programs still read the old one,
    so that there are two, which take turns from step to step."""
    return any(stage.multiplied in [name for name, _ in stage.results] for stage in cell.stages())


def block_of(sequences: int) -> Block:
    """Returns the block of a launch."""
    few, many = BLOCKS
    return few if sequences <= few.sequences else many
