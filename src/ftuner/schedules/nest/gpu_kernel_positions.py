"""The indices and masks of the elements of a tile, as Triton text.

Each dimension of a block begins at `first`, an index into the axes that are flattened along it. Its
digits are found by scalar 64-bit divisions. Lanes count from `first`, which takes a 32-bit division
of numbers no larger than a block for each axis but the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ftuner.schedules.nest.gpu_kernel_values import UNIFORM, Frame, Term, lanes

_DIGITS = ("left", "turns", "count", "room")
Place = tuple[Mapping[int, Term], Mapping[int, str]]
"""The index along each axis, and a mask for each dimension with lanes beyond an edge."""


class Positions:
    """Writes indices and masks."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._schedule = frame.schedule
        self._elements: dict[int, str] = {}
        """The number of elements along each dimension, as text."""

    def _extent(self, axis: int) -> str:
        return self._frame.dim(self._frame.kernel.axes[axis])

    def _block(self, dimension: int) -> int:
        return self._schedule.block[dimension]

    def lanes(self) -> None:
        """Writes the numbers of lanes and of elements along each dimension."""
        head, schedule = self._frame.head, self._schedule
        for dimension in self._frame.present:
            numbers = f"tl.arange(0, {self._block(dimension)})"
            if len(self._frame.present) == 2:
                numbers += "[:, None]" if dimension == 0 else "[None, :]"
            head.line(f"numbers{dimension} = {numbers}")
            head.line(f"{lanes(dimension)} = numbers{dimension}.to(tl.int64)")
        for dimension in (0, 1):
            axes = schedule.axes[dimension]
            extent = schedule.extent(self._frame.kernel, dimension)
            if len(axes) == 1:
                self._elements[dimension] = self._extent(axes[0])
            elif isinstance(extent, int):
                self._elements[dimension] = str(extent)
            else:
                self._elements[dimension] = f"extent{dimension}"
                head.line(f"extent{dimension} = {' * '.join(map(self._extent, axes))}")

    def _blocks(self, dimension: int) -> str:
        """Returns the number of blocks along a dimension, as text."""
        extent = self._schedule.extent(self._frame.kernel, dimension)
        block, elements = self._block(dimension), self._elements[dimension]
        if isinstance(extent, int):
            return str(-(-extent // block))
        if block == 1:
            return elements
        self._frame.head.line(f"blocks{dimension} = ({elements} + {block - 1}) // {block}")
        return f"blocks{dimension}"

    @contextmanager
    def tiles(self) -> Iterator[None]:
        """A loop over the tiles of a program; blocks vary fastest."""
        frame, schedule = self._frame, self._schedule
        counts: list[tuple[str, str]] = []
        for dimension in (1, 0):
            if dimension != schedule.reduction and schedule.axes[dimension]:
                counts.append((f"first{dimension}", self._blocks(dimension)))
        counts += [(f"i{axis}", self._extent(axis)) for axis in reversed(schedule.singles)]
        total = " * ".join(count for _, count in counts) or "1"
        frame.head.line(f"tiles = {total}")
        unit, units = ("unit", "tiles * parts") if schedule.split else ("tile", "tiles")
        with frame.body.block(
            f"for {unit} in range(tl.program_id(0), {units}, tl.num_programs(0))"
        ):
            if schedule.split:
                frame.body.line("part = tl.cast(unit, tl.int64) % parts")
                frame.body.line("tile = tl.cast(unit, tl.int64) // parts")
            self._digits("tl.cast(tile, tl.int64)", "rest", counts)
            for dimension in (0, 1):
                name, block = f"first{dimension}", self._block(dimension)
                if block > 1 and name in dict(counts):
                    frame.body.line(f"{name} = {name} * {block}")
            yield

    def _digits(self, number: str, left: str, counts: Sequence[tuple[str, str]]) -> None:
        """Writes the digits of a scalar, the fastest first. `counts`: the name and the base of each
        digit; `left`: the name of the remaining number."""
        body = self._frame.body
        for name, count in counts[:-1]:
            if number != left:
                body.line(f"{left} = {number}")
                number = left
            body.line(f"{name} = {left} % {count}")
            body.line(f"{left} = {left} // {count}")
        if counts:
            body.line(f"{counts[-1][0]} = {number}")

    def kept(self) -> Place:
        """Returns the place of a tile along the kept axes."""
        index = {axis: Term(f"i{axis}", UNIFORM) for axis in self._schedule.singles}
        masks: dict[int, str] = {}
        for dimension in (0, 1):
            if dimension != self._schedule.reduction:
                at, inside = self._dimension(dimension, f"first{dimension}")
                index, masks = {**index, **at}, {**masks, **inside}
        return index, masks

    def whole(self) -> Place:
        """Returns the place of the reduced axes, which are one block."""
        assert self._schedule.reduction is not None
        return self._dimension(self._schedule.reduction, "0")

    @contextmanager
    def loop(self) -> Iterator[Place]:
        """A loop over the blocks of the reduced axes."""
        dimension = self._schedule.reduction
        assert dimension is not None
        body = self._frame.body
        step, elements = self._block(dimension), self._elements[dimension]
        ends = f"0, {elements}"
        if self._schedule.split:
            body.line(f"in_tile = ({elements} + {step - 1}) // {step}")
            body.line(f"begin = part * in_tile // parts * {step}")
            body.line(f"end = tl.minimum((part + 1) * in_tile // parts * {step}, {elements})")
            ends = "begin, end"
        with body.block(f"for at in range({ends}, {step})"):
            body.line(f"first{dimension} = tl.cast(at, tl.int64)")
            yield self._dimension(dimension, f"first{dimension}")

    @contextmanager
    def serial(self) -> Iterator[Mapping[int, Term]]:
        """A loop over the indices of the serial axes."""
        body = self._frame.body
        with ExitStack() as loops:
            for axis in self._schedule.serial:
                loops.enter_context(body.block(f"for at{axis} in range(0, {self._extent(axis)})"))
                body.line(f"i{axis} = tl.cast(at{axis}, tl.int64)")
            yield {axis: Term(f"i{axis}", UNIFORM) for axis in self._schedule.serial}

    def _dimension(self, dimension: int, first: str) -> Place:
        """Writes the indices along the axes of one dimension, from `first` on."""
        axes, body = self._schedule.axes[dimension], self._frame.body
        if not axes:
            return {}, {}
        if dimension not in self._frame.present:
            names = [(f"i{axis}", self._extent(axis)) for axis in reversed(axes)]
            self._digits(first, f"left{dimension}", names)
            return {axis: Term(f"i{axis}", UNIFORM) for axis in axes}, {}
        start = "" if first == "0" else f"{first} + "
        number = f"{start}{lanes(dimension)}"
        if len(axes) == 1:
            body.line(f"i{axes[0]} = {number}")
            number = f"i{axes[0]}"
        else:
            self._lane_digits(dimension, first, axes)
        extent = self._schedule.extent(self._frame.kernel, dimension)
        masks = {}
        if not isinstance(extent, int) or extent % self._block(dimension):
            masks[dimension] = f"m{dimension}"
            body.line(f"m{dimension} = {number} < {self._elements[dimension]}")
        return {axis: Term(f"i{axis}", frozenset({dimension})) for axis in axes}, masks

    def _lane_digits(self, dimension: int, first: str, axes: Sequence[int]) -> None:
        """Writes the digits of lanes: those of `first`, plus the carries of counting on from there,
        which are fewer than the lanes for any extents."""
        body, block = self._frame.body, self._block(dimension)
        # Names by dimension, because the loop over reduced axes also sees those of kept axes.
        left, turns, count, room = (f"{name}{dimension}" for name in _DIGITS)
        body.line(f"{left} = tl.cast({first}, tl.int64)")
        body.line(f"{turns} = numbers{dimension}")
        for axis in reversed(axes[1:]):
            extent = self._frame.kernel.axes[axis]
            name = self._frame.dim(extent)
            wrap = f"tl.minimum(tl.maximum({name}, 1), {block}).to(tl.int32)"
            if isinstance(extent, int):
                wrap = str(min(max(extent, 1), block))
            body.line(f"i{axis} = {left} % {name}")
            body.line(f"{left} = {left} // {name}")
            body.line(f"{room} = tl.minimum({name} - i{axis}, {block}).to(tl.int32)")
            body.line(f"{count} = {turns}")
            body.line(f"{turns} = tl.where({count} < {room}, 0, 1 + ({count} - {room}) // {wrap})")
            body.line(f"i{axis} = i{axis} + {count} - {turns}.to(tl.int64) * {name}")
        body.line(f"i{axes[0]} = {left} + {turns}")
