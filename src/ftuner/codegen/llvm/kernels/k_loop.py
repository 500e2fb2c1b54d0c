"""The k loop of a uKernel, in LLVM IR: a tile's sums over run-time k.

All that it executes besides multiply-adds and loads costs time, most where a neighbour on the
core's other hyperthread takes half of the instruction slots. So it takes several steps of k a
round; finds rows of A at few multiples of their distance, by what addressing adds up for nothing;
and asks for what comes later between chunks of steps, a cache line at a time. Where B has yet to
come from L3 or DRAM, it matters more how many lines are under way: such a tile cuts k into streams,
as many as its context says (`hardware.intake_tuning.Intake`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from math import ceil
from typing import NamedTuple

import llvmlite.ir as ir

from ftuner.codegen.llvm.ir.builder import IRBuilder, const, scalar_type
from ftuner.codegen.llvm.ir.instructions import L1, L2, emitter_of, prefetch
from ftuner.codegen.llvm.kernels.widen import widened
from ftuner.codegen.llvm.kernels.window import WindowRows
from ftuner.codegen.llvm.native.records import Context
from ftuner.core.cpu.tile import COLUMN, ROW, STRIDED, UKernel
from ftuner.core.frozen import dataclass
from ftuner.hardware.isa import InstructionSet
from ftuner.hardware.tuning import KLoopTuning


class CodeOptions(NamedTuple):
    """Options of the code of a uKernel, besides its tile."""

    isa: InstructionSet
    tuning: KLoopTuning
    line_bytes: int
    """Bytes of a cache line, for prefetches."""


def steps_of_round(kernel: UKernel, isa: InstructionSet, tuning: KLoopTuning) -> int:
    """Steps of k that the k loop takes at once: as many for each of the chains."""
    tile, steps = kernel.tile, 1
    if isa.unrolled:
        least = tuning.large_tile_share_of_registers * isa.vector_registers
        large = tile.mr * tile.vectors >= least
        steps = tuning.steps_per_round if large else tuning.steps_per_short_round
    return tile.chains * ceil(steps / tile.chains)


@dataclass(frozen=True)
class Stream:
    """What a tile fetches for later: `step` bytes from `first` on for each k step."""

    first: ir.Value
    step: ir.Value


class Multiples:
    """Multiples of a run-time distance. The odd ones are computed once; an address adds one of
    them, times a power of two."""

    def __init__(self, builder: IRBuilder, distance: ir.Value, count: int) -> None:
        self._builder = builder
        self._fixed = distance.constant if isinstance(distance, ir.Constant) else None
        self._odd = {1: distance}
        if self._fixed is None:
            for number in range(1, count):
                self._of_odd(number // _power_of_two(number))

    def _of_odd(self, odd: int) -> ir.Value:
        if odd not in self._odd:
            # LLVM would rather add the distance again for each multiple, in every round.
            product = self._builder.mul(self._odd[1], odd)
            self._odd[odd] = self._builder.opaque(product)
        return self._odd[odd]

    def __getitem__(self, number: int) -> ir.Value:
        if number == 0 or self._fixed is not None:
            return const(number * (self._fixed or 0))
        power = _power_of_two(number)
        odd = self._of_odd(number // power)
        return odd if power == 1 else self._builder.mul(odd, power)


def _power_of_two(number: int) -> int:
    """The largest of those that addresses scale by which divides a number."""
    return next(p for p in (8, 4, 2, 1) if number % p == 0)


class KLoop:
    def __init__(
        self, builder: IRBuilder, kernel: UKernel, options: CodeOptions, context: ir.Value,
        window: WindowRows | None = None, of_block: int = 1,
    ) -> None:  # fmt: skip
        """`window`: how the tile reads A, if through one. `of_block`: steps of each step that the
        driver counts."""
        isa, tuning, self._line_bytes = options
        self._builder, self._kernel, self._isa = builder, kernel, isa
        self._multiply_add = emitter_of(isa, kernel.types)
        self._tuning, self._context = tuning, context
        types = kernel.types
        self._sums = ir.VectorType(scalar_type(types.accumulator), kernel.lanes)
        self._size = size = types.a.itemsize
        self._steps = steps_of_round(kernel, isa, tuning)
        self._size_of_set = kernel.mr * kernel.tile.vectors
        a_stride = builder.slot(context, Context.A_STRIDE)
        in_columns = kernel.a_layout == COLUMN
        a_row, a_k = (const(size), a_stride) if in_columns else (a_stride, const(size))
        self._window, self._of_block = window, of_block
        self._a_rows = window or Multiples(builder, a_row, kernel.mr)
        self._a_steps = Multiples(builder, a_k, self._steps + 1)
        self._row_of_b_bytes = kernel.nr * types.b.itemsize
        self._read_bytes = kernel.tile.vectors * kernel.lanes * types.b.itemsize
        in_place = kernel.b_layout == STRIDED
        b_k = builder.slot(context, Context.B_K_STRIDE) if in_place else None
        self._b_steps = Multiples(builder, b_k or const(self._row_of_b_bytes), self._steps + 1)
        self._ahead = const(tuning.tail_prefetch_bytes)
        if b_k is not None:
            self._ahead = builder.mul(b_k, tuning.prefetch_steps)

    def later(self, tile: ir.Value, a: ir.Value, k: ir.Value) -> list[Stream]:
        """B and A that the tile fetches for later."""
        builder, kernel, context = self._builder, self._kernel, self._context
        step = builder.slot(context, Context.NEXT_B_STEP)
        # Of a panel of blocks that were widened, the driver counts the blocks.
        step = builder.udiv(step, kernel.tile.parts * self._of_block)
        first = builder.pointer_slot(context, Context.NEXT_B)
        found = [Stream(builder.at(first, builder.mul(tile, k), step), step)]
        if kernel.a_layout == ROW:
            distance = builder.slot(context, Context.NEXT_A_DISTANCE)
            wanted = builder.icmp_signed("!=", distance, 0)
            step = builder.select(wanted, kernel.mr * self._size, 0)
            found.append(Stream(builder.at(a, distance), step))
        return found

    def asks(self, tile: ir.Value) -> ir.Value | None:
        """Whether the tile asks for its own B ahead; None if it does in any case."""
        if self._kernel.tail or self._kernel.b_layout == STRIDED:
            return None
        asking = self._builder.slot(self._context, Context.ASKS_FOR_B)
        asking = self._builder.mul(asking, self._kernel.tile.parts)
        return self._builder.icmp_signed("<", tile, asking)

    def sums(self, tile: ir.Value, a: ir.Value, b: ir.Value, k: ir.Value) -> list[list[ir.Value]]:
        """The sums of a tile, `[row][vector]`, after all steps of k. `tile` is its number, counting
        parts, `a` its first row, `b` where its columns begin in the panel. A tile that waits for
        its B interleaves several k streams. `chains` sets of sums take the steps in turns, and are
        added at the end; steps that are left over go to the first."""
        builder, shape = self._builder, self._kernel.tile
        values = [a, b, *([ir.Constant(self._sums, None)] * (self._size_of_set * shape.chains))]
        if self._window is not None:
            return self._added(self._through_window(self._window, values, k))
        streams, asks = self.later(tile, a, k), self.asks(tile)
        if asks is None:
            left, values = self._in_turn(values, k, streams, asked=True)
        else:
            ends = []
            with builder.if_else(asks, likely=False) as (waits, has):
                with waits:
                    ends.append((*self._in_k_streams(values, k, streams), builder.block))
                with has:
                    ends.append((*self._in_turn(values, k, streams, asked=False), builder.block))
            (left, *values) = (
                builder.joined(both, [block for *_, block in ends])
                for both in zip(*([first, *rest] for first, rest, _ in ends), strict=True)
            )
        end = 2 + self._size_of_set
        # In a loop that may run no round, LLVM keeps a sum of NEON on the stack.
        rest = partial(self._rounds, left, values[:end], 1, asked=False, some=True)
        values[:end] = builder.changed_if(builder.icmp_signed(">", left, 0), values[:end], rest)
        return self._added(values[2:])

    def _added(self, sums: Sequence[ir.Value]) -> list[list[ir.Value]]:
        """The sums of all chains together, row by row."""
        shape = self._kernel.tile
        total = self._builder.add_chains(sums, self._size_of_set)
        return [total[i * shape.vectors : (i + 1) * shape.vectors] for i in range(shape.mr)]

    def _through_window(
        self, window: WindowRows, values: Sequence[ir.Value], k: ir.Value
    ) -> list[ir.Value]:
        """The sums after all elements of the window, each of which is a run of k steps."""
        builder, steps = self._builder, const(self._steps)
        a, first = values[0], 2 + self._size_of_set
        rounds, left = builder.udiv(window.run, steps), builder.urem(window.run, steps)

        run_of_b = builder.mul(window.run, self._row_of_b_bytes)

        def element(given: list[ir.Value]) -> list[ir.Value]:
            place, outside = window.point(a)
            next_b = builder.at(given[0], run_of_b)

            def taken(count: ir.Value) -> ir.Value:
                return builder.select(outside, 0, count)

            here = self._rounds(taken(rounds), [place, *given], self._steps, asked=False)
            here[:first] = self._rounds(taken(left), here[:first], 1, asked=False)
            return [next_b, *here[2:]]

        return builder.carried_loop(builder.udiv(k, window.run), values[1:], element)[1:]

    def _in_turn(
        self, values: Sequence[ir.Value], k: ir.Value, streams: Sequence[Stream], asked: bool
    ) -> tuple[ir.Value, list[ir.Value]]:
        """Steps one after the other: how many are left over, and places in A and in B and sums."""
        builder, steps = self._builder, const(self._steps)
        values = self._in_chunks(builder.sdiv(k, steps), values, streams, asked)
        return builder.srem(k, steps), values

    def _in_k_streams(
        self, values: Sequence[ir.Value], k: ir.Value, streams: Sequence[Stream]
    ) -> tuple[ir.Value, list[ir.Value]]:
        """Like `_in_turn`, but k is cut into even streams, which take a step in turns. Chains take
        streams in turns."""
        builder, chains = self._builder, self._kernel.tile.chains
        streams_log2 = builder.slot(self._context, Context.K_STREAMS)
        spare_log2 = builder.sub(streams_log2, (chains - 1).bit_length())
        turns_log2 = builder.maximum(spare_log2, 0)
        turns = builder.shl(const(1), turns_log2)
        count = builder.mul(turns, chains)
        apart = builder.udiv(builder.lshr(k, turns_log2), chains)
        a_apart = builder.mul(apart, self._a_steps[1])
        b_apart = builder.mul(apart, self._b_steps[1])
        ahead = builder.lshr(builder.slot(self._context, Context.AHEAD), streams_log2)
        ahead = builder.maximum(ahead, self._row_of_b_bytes)

        def turn(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *sums = given
            for chain in range(chains):
                own = slice(chain * self._size_of_set, (chain + 1) * self._size_of_set)
                self.ask(b, ahead)
                sums[own] = self._step(a, b, 0, sums[own])
                a, b = self._next(a, a_apart), self._next(b, b_apart)
            return [a, b, *sums]

        def step(given: list[ir.Value]) -> list[ir.Value]:
            ends = self.fetched(streams, given[: len(streams)], count)
            a, b, *_ = given = given[len(streams) :]
            _, _, *sums = builder.carried_loop(turns, given, turn, some=True)
            return [*ends, self._next(a, self._a_steps[1]), self._next(b, self._b_steps[1]), *sums]

        firsts = [stream.first for stream in streams]
        _, _, *sums = builder.carried_loop(apart, [*firsts, *values], step)[len(streams) :]
        whole = builder.mul(apart, count)
        a = builder.at(values[0], whole, self._a_steps[1])
        b = builder.at(values[1], whole, self._b_steps[1])
        return builder.sub(k, whole), [a, b, *sums]

    def _in_chunks(
        self, rounds: ir.Value, values: Sequence[ir.Value], streams: Sequence[Stream], asked: bool
    ) -> list[ir.Value]:
        """All rounds, and between chunks of them what the streams ask for, and the lines that rows
        of A go on in: more rows than a busy core's prefetcher follows. Measured on Intel Emerald
        Rapids beside a busy hyperthread, 6x64: 1 to 3% less time."""
        builder = self._builder
        steps_of_chunk = self._tuning.steps_per_prefetch
        rounds_of_chunk = const(ceil(steps_of_chunk / self._steps))
        chunks = builder.sub(builder.add(rounds, rounds_of_chunk), 1)
        chunks = builder.sdiv(chunks, rounds_of_chunk)

        def chunk(given: list[ir.Value]) -> list[ir.Value]:
            left, places, values = given[0], given[1 : 1 + len(streams)], given[1 + len(streams) :]
            whole = builder.icmp_signed(">", left, rounds_of_chunk)
            now = builder.select(whole, rounds_of_chunk, left)
            ends = self.fetched(streams, places, builder.mul(now, self._steps))
            if self._kernel.a_layout == ROW:
                line = self._line_bytes
                lines = range(line, line + steps_of_chunk * self._size, line)
                for i, offset in product(range(self._kernel.mr), lines):
                    row = builder.at(values[0], self._a_rows[i])
                    prefetch(builder, builder.at(row, offset), L1)
            done = self._rounds(now, values, self._steps, asked, some=True)
            return [builder.sub(left, now), *ends, *done]

        first = [rounds, *(stream.first for stream in streams), *values]
        return builder.carried_loop(chunks, first, chunk)[1 + len(streams) :]

    def fetched(
        self, streams: Sequence[Stream], places: Sequence[ir.Value], steps: ir.Value
    ) -> list[ir.Value]:
        """Prefetch what `steps` steps fetch for later; returns the streams' places after it."""
        builder, ends = self._builder, []
        for place, stream in zip(places, streams, strict=True):
            size = builder.mul(steps, stream.step)
            with builder.counted_loop(0, size, self._line_bytes) as offset:
                prefetch(builder, builder.at(place, offset), L2)
            ends.append(builder.at(place, size))
        return ends

    def _rounds(
        self,
        count: ir.Value,
        values: Sequence[ir.Value],
        steps: int,
        asked: bool,
        some: bool = False,
    ) -> list[ir.Value]:
        """`count` rounds of `steps` steps, from places in A and in B and sums to the next ones."""
        builder, tile = self._builder, self._kernel.tile
        size = tile.mr * tile.vectors

        def body(given: list[ir.Value]) -> list[ir.Value]:
            a, b, *sums = given
            for number in range(steps if asked else 0):
                self.ask(builder.at(b, self._b_steps[number]), self._ahead)
            for number in range(steps):
                first = number * size % len(sums)
                sums[first : first + size] = self._step(a, b, number, sums[first : first + size])
            ends = self._next(a, self._a_steps[steps]), self._next(b, self._b_steps[steps])
            return [*ends, *sums]

        return builder.carried_loop(count, values, body, some)

    def _next(self, place: ir.Value, step: ir.Value) -> ir.Value:
        """The place in A or B that a loop goes on with, `step` bytes after another. LLVM does not
        see how it is computed: where it does, looking for cheaper addresses is a tenth of the time
        that a uKernel takes to compile, and finds none."""
        return self._builder.opaque(self._builder.at(place, step))

    def ask(self, row: ir.Value, ahead: ir.Value) -> None:
        """Prefetch the row of B that is `ahead` bytes after another."""
        row = self._builder.at(row, ahead)
        for line in range(0, self._read_bytes, self._line_bytes):
            prefetch(self._builder, self._builder.at(row, line), L1)

    def _step(
        self, a: ir.Value, b: ir.Value, number: int, sums: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """One step of k, `number` steps after `a` and `b`."""
        builder, kernel = self._builder, self._kernel
        row = builder.at(b, self._b_steps[number])
        row_of_b = [self._vector_of_b(row, v) for v in range(kernel.tile.vectors)]
        column = builder.at(a, self._a_steps[number])
        done: list[ir.Value] = []
        for i in range(kernel.tile.mr):
            address = builder.at(column, self._a_rows[i])
            element = builder.load(address, typ=scalar_type(kernel.types.a), align=self._size)
            value = builder.splat(element, kernel.lanes)
            added = [
                self._multiply_add(builder, value, row_of_b[v], sums[i * kernel.tile.vectors + v])
                for v in range(kernel.tile.vectors)
            ]
            if self._isa.unrolled:
                builder.in_order(added)
            done += added
        return done

    def _vector_of_b(self, row: ir.Value, v: int) -> ir.Value:
        """The `v`-th vector of a row of B, as the tile multiplies it."""
        kernel, types = self._kernel, self._kernel.types
        place = self._builder.at(row, v * kernel.lanes * types.b.itemsize)
        vector = ir.VectorType(scalar_type(types.multiplied.b), kernel.lanes)
        if types.widens:
            return widened(self._builder, place, types.b, vector, self._isa.converts_float16)
        return self._builder.load(place, typ=vector, align=types.b.itemsize)
