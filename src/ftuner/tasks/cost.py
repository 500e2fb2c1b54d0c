"""What a program costs, from its loads, stores and functions; which tiles are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from ftuner.core.cpu.schedule import REDUCTION_CHAINS
from ftuner.core.dim import Dim, ceil_quotient, maximum, minimum, product, quotient, symbols_of
from ftuner.core.evaluation import compiled
from ftuner.cost.functions import operation_cycles
from ftuner.cost.step import Estimate, Machine, Stream, estimate_of
from ftuner.hardware.model import CpuHardware, Isa
from ftuner.tasks import program as tir
from ftuner.tasks.bounds import Variable, decided, least_at, variables_of
from ftuner.ukernels.funnel import Funnel, Sieve

Tiles = tuple[tuple[str, int], ...]
"""The value of each tile parameter."""


@dataclass
class _Body:
    """The instructions of one iteration of a loop, or of a task, without those of loops in it."""

    trips: Dim
    compute: float = 0.0
    """Cycles of arithmetic."""
    loads: float = 0.0
    stores: float = 0.0
    chain: float = 0.0
    """Cycles from one iteration to the next."""
    load_bytes: float = 0.0
    flops: float = 0.0
    """Functions of elements, of whole vectors."""
    seen: set[object] = field(default_factory=set)


class _Around(NamedTuple):
    """What is around a statement."""

    body: _Body
    unrolled: dict[str, int]
    """How often each loop that is written out is."""
    lane: str
    variables: list[Variable]


class _Counter:
    def __init__(self, program: tir.Program, isa: Isa, hardware: CpuHardware) -> None:
        self._program, self._isa, self._hardware = program, isa, hardware
        self._lanes = isa.lanes(program.dtype)
        self._found: list[_Body] = []

    def count(self) -> list[_Body]:
        """What a task executes, loop by loop."""
        tasks = self._program.tasks
        self._block(tasks.body, _Around(self._body(1), {}, "", variables_of(tasks)))
        return self._found

    def _body(self, trips: Dim) -> _Body:
        self._found.append(_Body(trips))
        return self._found[-1]

    def _block(self, block: Sequence[tir.Statement], around: _Around) -> None:
        body, times = around.body, prod(around.unrolled.values())
        for statement in block:
            match statement:
                case tir.Loop():
                    self._loop(statement, around)
                    continue
                case tir.If(_, inner):
                    self._block(inner, around)
                    continue
                case tir.Store():
                    body.stores += times
                case tir.SetElement() | tir.Assign(declares=False):
                    body.chain = self._isa.fma_latency_cycles
                case tir.Reduce():
                    body.compute += times * self._cycles("add", around.lane)
                    body.chain = self._isa.fma_latency_cycles / REDUCTION_CHAINS
            for expr in tir.expressions(statement):
                self._expression(expr, around)

    def _loop(self, loop: tir.Loop, around: _Around) -> None:
        extents = [e - b for b, e in zip(loop.begins, loop.ends, strict=True)]
        inside, in_lanes = around.lane, loop.kind == tir.LANES
        if in_lanes:
            inside, extents = loop.names[0], [ceil_quotient(extents[0], self._lanes)]
        inner_loops = any(
            isinstance(s, tir.Loop) and s.kind == tir.RANGE for s in tir.statements(loop.body)
        )
        known = [*around.variables, *variables_of(loop)]
        if loop.kind != tir.RANGE and loop.constant and not (in_lanes and inner_loops):
            numbers = [e for e in extents if isinstance(e, int)]
            more = {**around.unrolled, **dict(zip(loop.names, numbers, strict=True))}
            self._block(loop.body, _Around(around.body, more, inside, known))
            return
        most = [least_at(-e, known) for e in extents]
        times = product(-m if m is not None else 1 for m in most) * prod(around.unrolled.values())
        body = self._body(around.body.trips * times)
        self._block(loop.body, _Around(body, {}, inside, known))

    def _expression(self, expr: tir.Expr, around: _Around) -> None:
        body, unrolled, lane = around.body, around.unrolled, around.lane
        parts = [*tir.expressions(expr)]
        dims = [d for p in parts if isinstance(p, (tir.Load, tir.Element)) for d in p.index]
        varies = any(isinstance(p, (tir.Local, tir.Element)) for p in parts)
        used = set(unrolled) if varies else set(symbols_of(dims)) & set(unrolled)
        times = prod(unrolled[name] for name in used)
        if isinstance(expr, tir.Load) and expr not in body.seen:
            body.seen.add(expr)
            along = [bool(lane) and tir.uses(d, lane) for d in expr.index]
            body.loads += times * (self._lanes if any(along) and not any(along[-1:]) else 1)
            count = self._lanes if any(along) else 1
            body.load_bytes += times * count * self._program.dtype.itemsize
        elif isinstance(expr, tir.Apply) and (varies or expr not in body.seen):
            body.seen.add(expr)
            body.compute += times * self._of_function(expr, lane)
            body.flops += times * (self._lanes if lane else 1)

    def _of_function(self, expr: tir.Apply, lane: str) -> float:
        product_in_sum = expr.function in ("add", "subtract") and any(
            isinstance(a, tir.Apply) and a.function == "multiply" for a in expr.arguments
        )
        if product_in_sum and self._isa.fused:
            # The product is counted with its own node.
            return 0.0
        if expr.function in ("logical_and", "logical_or", "logical_not", "where"):
            return 1.0 / self._isa.fma_per_cycle
        return self._cycles(expr.function, lane)

    def _cycles(self, function: str, lane: str) -> float:
        dtype = self._program.dtype
        if function in ("add", "subtract", "multiply"):
            return 1.0 / self._isa.fma_per_cycle
        lanes = self._lanes if lane else 1
        return operation_cycles(function, dtype, lanes, self._isa, self._hardware.tuning)


EDGE = 4.0
"""How much longer a task takes of which some conditions do not hold. Assumed: edges of a product by
register tiles leave most of a tile empty, and branch."""


PRICE_UNITS = 16
"""Of a cycle, so that prices are integers."""


def _whole_tasks(program: tir.Program) -> Dim:
    """The tasks of which all conditions on indices hold."""
    loop = program.tasks
    whole = dict(zip(loop.names, loop.ends, strict=True))
    for least in decided(loop.body, [], loop.names).values():
        for name in loop.names:
            parts = tir.linear(least, name)
            if parts is None or any(tir.uses(parts[1], other) for other in loop.names):
                continue
            if isinstance(parts[0], int) and parts[0] < 0:
                some = maximum(quotient(parts[1], -parts[0]) + 1, 0)
                whole[name] = minimum(whole[name], some)
    return product(whole.values())


class Costs:
    """The estimates of a program on one ISA, for any extents."""

    def __init__(self, program: tir.Program, isa: Isa, hardware: CpuHardware) -> None:
        found = _Counter(program, isa, hardware).count()
        self._isa, self._hardware = isa, hardware
        self._cycles = [
            max(b.compute, b.loads / isa.load_per_cycle, b.stores / isa.store_per_cycle, b.chain)
            + (hardware.tuning.loop_cycles if number == 0 else 0.0)
            for number, b in enumerate(found)
        ]
        itemsize = program.dtype.itemsize
        tasks, whole = product(program.tasks.ends), _whole_tasks(program)
        dims = [
            tasks, whole, program.tasks.workers,
            sum((product(a.shape) * itemsize for a in program.arrays), start=0),
            *(b.trips for b in found),
        ]  # fmt: skip
        times = tasks + (round(EDGE) - 1) * maximum(tasks - whole, 0)
        each = (
            maximum(b.trips, 0) * round(c * PRICE_UNITS)
            for b, c in zip(found, self._cycles, strict=True)
        )
        self.price: Dim = times * sum(each, start=0)
        """The cycles of all tasks in units, by which programs of one schedule are compared."""
        counts = (maximum(b.trips, 0) * round(b.flops) for b in found)
        self.flops: Dim = tasks * sum(counts, start=0)
        """Functions of elements, of whole vectors."""
        self._names = (tir.WORKERS, *program.extents)
        self._of: Callable[[Sequence[int]], list[int]] = compiled(dims, self._names)

    def estimate(self, extents: Sequence[int], workers: int) -> Estimate:
        """The estimate for extents in the order of the program."""
        tasks, whole, virtual, moved, *trips = self._of((workers, *extents))
        busy = max(min(workers, virtual, tasks), 1)
        mine = -(-(tasks + (EDGE - 1.0) * max(tasks - whole, 0)) // busy)
        cycles = mine * sum(max(t, 0) * c for t, c in zip(trips, self._cycles, strict=True))
        machine = Machine(self._hardware, self._isa, busy)
        return estimate_of(machine, busy, cycles, 0.0, 0.0, [Stream(moved / busy, moved)])


def kept_tiles(
    programs: Iterable[tuple[Tiles, tir.Program]], isa: Isa, hardware: CpuHardware
) -> Funnel[Tiles]:
    """The values of tile parameters that fit the registers and the L1 cache of an ISA, and why the
    others do not. Where none fits, the smallest is kept."""
    by_tiles = dict(programs)
    registers = {t: registers_needed(p, isa) for t, p in by_tiles.items()}
    l1 = hardware.levels[0].capacity_bytes
    sieve = Sieve(by_tiles)
    least = min(registers.values())
    sieve.keep(
        "registers",
        f"its tiles, a row of vectors and an element do not fit {isa.vector_registers} vector "
        "registers",
        lambda t: registers[t] <= max(isa.vector_registers, least),
    )
    share = hardware.tuning.cache_share
    touched = {
        t: max(b.load_bytes for b in _Counter(p, isa, hardware).count())
        for t, p in by_tiles.items()
    }
    smallest = min((touched[t] for t in sieve.left), default=0.0)
    sieve.keep(
        "L1",
        f"a step of its inner loop reads more than {share:g} of L1",
        lambda t: touched[t] <= max(share * l1, smallest),
    )
    return Funnel(sieve.enumerated, sieve.pruned, tuple(sieve.left))


def registers_needed(program: tir.Program, isa: Isa) -> int:
    """Vector registers of all tiles of a task, of one row of an operand, and of one element; where
    multiply-add is not one instruction, of a product as well."""
    lanes, along = isa.lanes(program.dtype), tir.tiles_across(program)
    total = row = 0
    for statement in tir.statements(program.body):
        if isinstance(statement, tir.MakeTile):
            shape = list(statement.shape)
            if statement.name in along:
                shape[-1] = -(-shape[-1] // lanes)
            total += prod(shape)
            row = max(row, shape[-1] if len(shape) > 1 else 1)
    return total + row + 1 + (0 if isa.fused else 1)
