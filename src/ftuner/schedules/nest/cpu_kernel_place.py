"""Where the steps of a nest are computed, in LLVM IR: the arguments of its function, and a place
among its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir import functions as elements
from ftuner.codegen.llvm.ir.builder import I64, IRBuilder, const, intrinsic
from ftuner.codegen.llvm.ir.byte_tables import loaded_table
from ftuner.codegen.llvm.ir.lanes import load_lanes
from ftuner.core.access import Kernel, guards, slopes
from ftuner.core.cpu.schedule import Schedule, operand_numbers, softmax_steps
from ftuner.core.dim import Dim
from ftuner.core.frozen import dataclass

MOST_APART = 4
"""Largest distance of the elements of a vector that is put together from whole vectors of memory.
Derived: from 8 lanes on, that takes fewer instructions than a load for each lane."""


class Frame:
    """The arguments of a function, which all places share."""

    def __init__(
        self, function: ir.Function, kernel: Kernel, schedule: Schedule, fused: bool,
        shuffles: bool = False,
    ) -> None:  # fmt: skip
        """`shuffles`: whether bytes are looked up in 32 others by few instructions."""
        self.kernel = kernel
        self.schedule = schedule
        self.fused, self.shuffles = fused, shuffles
        self.module = function.module
        buffers, dims, self.status, _, self.begin, self.end = function.args
        self.builder = builder = IRBuilder(function.append_basic_block("entry"))
        self.parameters = {dim: builder.slot(dims, i) for i, dim in enumerate(kernel.parameters())}
        # Operands are numbered as in the nest; results follow them.
        numbers = operand_numbers(kernel)
        self.operands = {n: builder.pointer_slot(buffers, i) for i, n in enumerate(numbers)}
        self.results = [
            builder.pointer_slot(buffers, len(numbers) + i) for i in range(len(kernel.values))
        ]
        self.guards = guards(kernel, necessary=True)
        # The others hold or not for all of a vector and of a reduction.
        within = {schedule.vector, *range(len(kernel.kept), len(kernel.axes))}
        self.slopes = {
            condition: nearer
            for condition, nearer in slopes(kernel).items()
            if any(slope for axis, slope in enumerate(nearer) if axis in within)
        }
        self.powers, self.sums = softmax_steps(kernel)
        self._nothing: ir.Value | None = None
        self._tables: dict[int, list[ir.Value]] = {}
        self.known: dict[int, ir.Value] = {}
        """Steps that are computed before all loops."""

    @property
    def nothing(self) -> ir.Value:
        """The address of zeros, for loads outside their guards: as many as a vector reaches."""
        if self._nothing is None:
            type_ = ir.VectorType(I64, max(self.schedule.lanes, 1) * MOST_APART)
            self._nothing = self.builder.reserve(type_)
            with self.builder.goto_entry_block():
                self.builder.store(elements.zero(type_), self._nothing)
        return self._nothing

    def table(self, number: int) -> list[ir.Value]:
        """The 256 bytes that a load looks up in, loaded before all loops."""
        operand = self.kernel.steps[number].payload
        assert isinstance(operand, int)
        if operand not in self._tables:
            with self.builder.goto_entry_block():
                self._tables[operand] = loaded_table(self.builder, self.operands[operand])
        return self._tables[operand]

    def dim(self, dim: Dim) -> ir.Value:
        return const(dim) if isinstance(dim, int) else self.parameters[dim]


@dataclass(frozen=True)
class Lanes:
    """A part of the vector axis: from `base` on, `count` elements of a vector, all if None."""

    base: ir.Value
    mask: ir.Value | None
    count: ir.Value | None
    chain: int = 0
    """The accumulator that it is gathered in."""


@dataclass(frozen=True)
class Window:
    """A few vectors of memory that have all lanes of a load."""

    low: ir.Value
    """The lowest offset of a lane, beside what all lanes add to it."""
    numbers: ir.Value
    """Of each lane, from there, 32 bits each."""
    masks: tuple[ir.Value, ...]
    """Of each vector, the elements that exist."""
    above: tuple[ir.Value, ...]
    """Of each vector but the first, the lanes that are in it or after it."""
    permute: str
    """As in `InstructionSet`."""

    def picked(self, builder: IRBuilder, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
        """The lanes of a load of elements of 4 bytes, of which the lowest is at `address`."""
        lanes = self.numbers.type.count
        vector, floats = ir.VectorType(kind, lanes), ir.VectorType(ir.FloatType(), lanes)
        function = intrinsic(builder.module, self.permute, floats, [floats, self.numbers.type])
        found: ir.Value | None = None
        for part, mask in enumerate(self.masks):
            place = builder.at(address, part * lanes * align)
            loaded = load_lanes(builder, place, vector, align, mask)
            here = builder.call(function, [builder.bitcast(loaded, floats), self.numbers])
            found = here if found is None else builder.select(self.above[part - 1], here, found)
        return builder.bitcast(found, vector)


@dataclass(frozen=True)
class Place:
    """Where values are computed: the index along each axis but the vector one, the lanes (None for
    scalars), the reductions known so far, the conditions with slopes that hold, steps that were
    computed before a loop, and the windows of loads."""

    index: Mapping[int, ir.Value]
    lanes: Lanes | None
    stages: tuple[ir.Value, ...] = ()
    holds: frozenset[int] = frozenset()
    known: Mapping[int, ir.Value] = field(default_factory=dict)
    windows: Mapping[int, Window] = field(default_factory=dict)
