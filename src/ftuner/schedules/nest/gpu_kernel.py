"""The general schedule of a definition as one Triton kernel.

Program p of P takes tiles p, p + P, ... of the kept axes, so that any number of programs computes
any extents. Within a tile it walks the blocks of the reduced axes once for each stage, and once
more for results along all axes; or there is one block, whose values stay in registers. Extents,
strides and offsets are int64 arguments.

Where a schedule is split, several programs take parts of the blocks of one tile. Each stores what
it has reduced, and the last-arriving program combines the parts in their order (`split_k`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ftuner.codegen.triton.source import TRITON_TYPES, Argument, Source, function_source
from ftuner.core.access import Kernel
from ftuner.core.caching import cached_attribute
from ftuner.core.dim import Dim
from ftuner.core.dtype import BOOL, UINT8, DType
from ftuner.core.frozen import dataclass
from ftuner.core.gpu.schedule import Schedule, schedules_of
from ftuner.core.index_expr import POSITIONAL
from ftuner.errors import UnsupportedKernelError
from ftuner.hardware.gpu_tuning import GpuTuning
from ftuner.schedules.nest.gpu_kernel_positions import Positions
from ftuner.schedules.nest.gpu_kernel_reductions import Reductions
from ftuner.schedules.nest.gpu_kernel_values import Frame, Values

SPLIT_ARGUMENTS = (
    Argument("workspace", "*fp32", 16), Argument("counters", "*i32", 4), Argument("parts", "i32"),
)  # fmt: skip
"""The last arguments of a split nest: `part_elements` undefined values for each part of each tile;
a counter for each tile, zero before and after each launch; and the parts of a tile."""
VECTOR_BYTES = 16
"""The widest load of one thread; its address is a multiple of this."""


@dataclass(frozen=True)
class NestKernel:
    """A nest as one Triton function, with what is needed to launch it.

    The arguments are the addresses of the operands' buffers (`operand_numbers`; each must be
    readable, also that of an operand without elements) and of the results' buffers, the address of
    the status word if there are `checks`, and the `parameters`.
    """

    kernel: Kernel
    schedule: Schedule
    source: Source

    @property
    def checks(self) -> tuple[str, ...]:
        """Descriptions of the index checks. If there are any, the status word, an int32 that is
        zero before the launch, is set to the number of a failed check, counted from one."""
        return self.kernel.checks()

    @cached_attribute
    def parameters(self) -> tuple[Dim, ...]:
        """The values of the last arguments, all int64."""
        return self.kernel.parameters()

    @cached_attribute
    def even_parameters(self) -> tuple[Dim, ...]:
        """Parameters that must be multiples of 16 for threads to load vectors, and that are not so
        by construction; see `nest_kernel`."""
        return _even_parameters(self.kernel, self.schedule)

    @property
    def part_elements(self) -> int:
        """Partial results of a part of a tile, if the schedule is split."""
        reduction = self.schedule.reduction
        assert reduction is not None
        return self.schedule.block[1 - reduction]

    @cached_attribute
    def tiles(self) -> Dim:
        """The number of tiles. At most as many programs are launched; with none, no launch."""
        return self.schedule.tiles(self.kernel)


def nest_kernel(
    kernel: Kernel, schedule: Schedule | None = None, aligned: bool = True, even: bool = False
) -> NestKernel:
    """Returns a nest by one of its schedules; by default the last one of the default tuning, which
    is valid for any extents.

    `aligned` promises that the addresses of all buffers are multiples of 16 bytes; `even`, that all
    `even_parameters` are multiples of 16.

    Raises:
        UnsupportedKernelError: parts of the nest have no schedule on a GPU; all are listed.
    """
    expect_supported(kernel)
    schedule = schedule or schedules_of(kernel, GpuTuning().block_sizes)[-1]
    source = _Emission(kernel, schedule).source(aligned, even)
    return NestKernel(kernel, schedule, source)


def _even_parameters(kernel: Kernel, schedule: Schedule) -> tuple[Dim, ...]:
    """Returns strides, offsets, and the extent of the vectorised axis, as far as these are not
    multiples of 16 by construction."""
    accesses = [*kernel.targets, *(a for a in kernel.accesses if a is not None)]
    needed: list[Dim] = [d for a in accesses for d in (a.constant, *a.coefficients)]
    needed += [m for a in accesses for _, m in a.rest]
    needed += [kernel.axes[a] for a in schedule.axes[1][-1:]]
    return tuple(d for d in kernel.parameters() if d in needed and _divisor(d) < VECTOR_BYTES)


def expect_supported(kernel: Kernel) -> None:
    """Raises UnsupportedKernelError, with a list of all parts of a nest that have no schedule."""
    found: dict[str, None] = {}
    dtypes = {s.dtype for s in kernel.steps}
    for dtype in sorted({t.name for t in dtypes} - set(TRITON_TYPES)):
        found.setdefault(f"elements of {dtype}")
    kinds = [s.kind for s in kernel.stages]
    if "scan" in kinds and len(kinds) > 1:
        found.setdefault("a scan beside other reductions")
    if set(kinds) & POSITIONAL and len(kernel.reduced) != 1:
        found.setdefault(f"{', '.join(sorted(set(kinds) & POSITIONAL))} over several axes")
    known = {"sum", "product", "maximum", "minimum", *POSITIONAL}
    for kind in sorted({*kinds, *([kernel.combine] if kernel.combine else [])} - known):
        found.setdefault(f"reduction {kind!r}")
    if any(kernel.steps[s.value].dtype == BOOL for s in kernel.stages):
        found.setdefault("a reduction of bool")
    if any(t.rest for t in kernel.targets) and (kernel.stages or len(kernel.targets) > 1):
        found.setdefault("results at indices from data, with other results or reductions")
    if found:
        raise UnsupportedKernelError(f"no GPU schedule for {'; '.join(found)}")


class _Emission:
    """Writes the text of one kernel."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        self.kernel = kernel
        self.schedule = schedule
        self.frame = Frame(kernel, schedule)
        self.positions = Positions(self.frame)
        self.reductions = Reductions(self.frame, self.positions)

    def source(self, aligned: bool, even: bool) -> Source:
        frame = self.frame
        arguments = self._arguments(aligned, even)
        for name in frame.parameters.values():
            # Triton's interpreter may pass integers in other types.
            frame.head.line(f"{name} = tl.cast({name}, tl.int64)")
        self.positions.lanes()
        with self.positions.tiles():
            self._tile()
        prelude, body = frame.functions.prelude(), [*frame.head.lines, *frame.body.lines]
        return function_source("nest", prelude, arguments, body, self.schedule.warps, 1)

    def _arguments(self, aligned: bool, even: bool) -> tuple[Argument, ...]:
        frame, kernel = self.frame, self.kernel
        loads = {s.payload: s.dtype for s in kernel.steps if s.op == "load"}
        dtypes = [(name, loads[n]) for n, name in frame.operands.items()]
        stored = [kernel.steps[v].dtype for v in kernel.values]
        dtypes += zip(frame.results, stored, strict=True)
        divisor = VECTOR_BYTES if aligned else 1
        found = [Argument(name, f"*{_memory_type(dtype)}", divisor) for name, dtype in dtypes]
        if frame.checks:
            found.append(Argument("status", "*i32"))
        promised = _even_parameters(kernel, self.schedule) if even else ()
        for dim, name in frame.parameters.items():
            known = VECTOR_BYTES if dim in promised else _divisor(dim)
            found.append(Argument(name, "i64", known))
        return (*found, *(SPLIT_ARGUMENTS if self.schedule.split else ()))

    def _tile(self) -> None:
        """Writes the body of the loop over tiles."""
        kernel, schedule, positions = self.kernel, self.schedule, self.positions
        results = range(len(kernel.values))
        index, masks = positions.kept()
        if schedule.serial:
            with positions.serial() as others:
                Values(self.frame, {**index, **others}, masks).store(0)
                if kernel.combine:
                    # Another thread may read the element next.
                    self.frame.body.line("tl.debug_barrier()")
            return
        flat = schedule.flat
        if flat is not None and masks and _divisor(kernel.axes[flat]) < VECTOR_BYTES:
            # Under a mask that may end at any element, Triton loads elements one by one.
            end, body = self.frame.dim(kernel.axes[flat]), self.frame.body
            with body.block(f"if first1 + {schedule.block[1]} <= {end}"):
                self._map(Values(self.frame, index, {}))
            with body.block("else"):
                self._map(Values(self.frame, index, masks))
            return
        outer = Values(self.frame, index, masks)
        if schedule.reduction is None:
            self._map(outer)
            return
        if any(stage.kind == "scan" for stage in kernel.stages):
            with self.reductions.scan(outer) as values:
                self._store(values, results)
            return
        block: Values | None = None
        if schedule.whole:
            at, inside = positions.whole()
            block = Values(self.frame, {**index, **at}, {**masks, **inside}, outer)
        if schedule.split:
            with self.reductions.split(outer):
                self._store(outer, results)
            return
        for number, stage in enumerate(kernel.stages):
            outer.stages.append(self.reductions.stage(number, stage, outer, block))
        self._store(outer, [i for i, wide in enumerate(kernel.wide) if not wide])
        wide = [i for i, of_all in enumerate(kernel.wide) if of_all]
        if block is not None:
            self._store(block, wide)
        elif wide:
            with self.reductions.loop(outer, [kernel.values[i] for i in wide]) as values:
                self._store(values, wide)

    def _map(self, values: Values) -> None:
        """Writes all results where no axis is reduced; reductions are of one element."""
        for stage in self.kernel.stages:
            values.stages.append(values.value(stage.value))
        self._store(values, range(len(self.kernel.values)))

    def _store(self, values: Values, results: Iterable[int]) -> None:
        for result in results:
            values.store(result)


def _memory_type(dtype: DType) -> str:
    return TRITON_TYPES[(UINT8 if dtype == BOOL else dtype).name]


def _divisor(dim: Dim) -> int:
    """Returns a power of two, at most 16, that a dim is a multiple of for any symbols."""
    coefficients = [dim] if isinstance(dim, int) else [c for _, c in dim.terms]
    return math.gcd(VECTOR_BYTES, *coefficients)
