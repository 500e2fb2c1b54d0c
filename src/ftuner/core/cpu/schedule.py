"""How a kernel is walked: which axis lies along vectors, what a task is."""

from __future__ import annotations

from dataclasses import replace

from ftuner.core.access import (
    Access,
    Kernel,
    differing,
    guards,
    needs,
    outer_steps,
    slopes,
    without_unused,
)
from ftuner.core.dim import Dim, ceil_quotient, product, quotient
from ftuner.core.dtype import FLOAT32, FLOAT64, DType
from ftuner.core.expr import Expr, is_expensive
from ftuner.core.frozen import dataclass
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.core.index_expr import Stage

TRANSPOSED_BLOCK = 64
"""Elements that a task of a transposition writes side by side. Derived: some cache lines, so that
few lines are written by two workers, and few enough for all workers to have tasks."""
LEAST_TRANSPOSED = 8
"""Elements along both axes from which squares are transposed, and of a row that is scattered by
vectors. With fewer, as of the channels of a picture, most of a square would be empty."""
MOST_INTERLEAVED = 4
"""Elements of an axis of which vectors are interleaved, such as the channels of a picture. Derived:
each vector is put together from as many others."""
TRANSPOSED_BYTES = (4, 8)
"""Sizes of elements that are transposed in registers."""
REDUCTION_CHAINS = 4
"""Vectors of a reduction that are added independently. Derived: the latency of a multiply-add is
four cycles on most cores, at one to two of them a cycle."""


@dataclass(frozen=True)
class Schedule:
    """How a kernel is walked."""

    vector: int | None
    """The axis along which vectors lie; None if everything is a scalar."""
    lanes: int
    tasks: tuple[int, ...]
    """The kept axes that tasks number, slowest first; none if they are blocks of `vector`."""
    block: int
    """Elements of the vector axis in such a block."""
    across: int | None = None
    """Where two axes are exchanged: the axis along which that operand is contiguous. Squares of
    both axes are transposed in registers, and tasks are numbered by blocks of `vector`, too."""
    interleaved: int | None = None
    """An axis of few elements that results have side by side, one place of `vector` after the
    other: the vectors of all its elements are computed, then interleaved."""

    @property
    def along(self) -> int:
        """The axis along which vectors lie, if there is one."""
        assert self.vector is not None
        return self.vector


def walked(kernel: Kernel) -> Kernel:
    """The kernel as it is walked. Where elements are repeated side by side along the last axis, as
    `x[i // n]`, that is one axis of x and one of n elements if vectors can then be interleaved."""
    last = len(kernel.kept) - 1
    users = [
        number
        for number in range(len(kernel.steps))
        for needed in needs(kernel, number)
        if (kernel.steps[needed].op, kernel.steps[needed].payload) == ("index", last)
    ]
    if len(users) != 1 or kernel.reduced or kernel.steps[users[0]].op != "divide":
        return kernel
    (divided,) = users
    times = kernel.steps[kernel.steps[divided].arguments[1]].payload
    loads = [n for n in range(len(kernel.steps)) if divided in needs(kernel, n)]
    if not isinstance(times, int) or any(kernel.accesses[n] is None for n in loads):
        return kernel
    extent = kernel.axes[last]
    each = quotient(extent, times)

    def apart(access: Access) -> Access:
        *outer, own = access.coefficients
        moved = sum((factor for step, factor in access.rest if step == divided), start=own * times)
        rest = tuple(entry for entry in access.rest if entry[0] != divided)
        return Access(access.constant, (*outer, moved, own), rest)

    found = without_unused(
        replace(
            kernel,
            kept=(*kernel.kept[:last], each, times),
            accesses=tuple(None if a is None else apart(a) for a in kernel.accesses),
            targets=tuple(map(apart, kernel.targets)),
        )
    )
    return kernel if each * times != extent or _interleaved(found) is None else found


def schedule_of(kernel: Kernel, vector_bytes: int, block: int) -> Schedule:
    """The vector axis is that along which most accesses are contiguous, the last one in doubt.

    `block`: elements of the vector axis in a task, where it is the only kept axis.
    """
    kept = len(kernel.kept)
    if any(t.rest for t in kernel.targets):
        # Elements may be written more than once: one after the other, or a part of a row at a time.
        row = _scattered_row(kernel)
        return Schedule(row, 1 if row is None else vector_bytes // _widest(kernel), (), block)
    exchanged = _exchanged(kernel)
    if exchanged is not None:
        others = tuple(a for a in range(kept) if a not in exchanged)
        lanes = vector_bytes // kernel.steps[0].dtype.itemsize
        return Schedule(exchanged[0], lanes, others, TRANSPOSED_BLOCK, exchanged[1])
    together = _interleaved(kernel)
    if together is not None:
        others = tuple(a for a in range(kept) if a not in together)
        lanes = vector_bytes // _widest(kernel)
        return Schedule(together[0], lanes, others, block, interleaved=together[1])
    # Several results of one form are no more reason for an axis than one is.
    accesses = [*dict.fromkeys(kernel.targets), *(a for a in kernel.accesses if a is not None)]
    lanes = vector_bytes // _widest(kernel)
    last = kernel.axes[-1] if kernel.axes else 0
    candidates = [a for a in (kept - 1, len(kernel.axes) - 1) if a >= 0]
    if kept and isinstance(last, int) and last < lanes:
        # A short reduced axis would leave most of each vector empty.
        candidates = candidates[:1]
    positions = any(stage.positional for stage in kernel.stages)
    if positions:
        # Lanes have one number of indices that are reduced.
        counts = {stage.count for stage in kernel.stages}
        candidates = [
            a for a in candidates if a < kept and counts.isdisjoint(differing(kernel, (a,)))
        ]

    def contiguous(axis: int) -> tuple[int, int]:
        return sum(1 for a in accesses if a.coefficients[axis] == 1), axis

    vector = max(candidates, key=contiguous, default=None)
    if positions and vector is not None and contiguous(vector)[0] < 2:
        # A reduction of rows, element by element.
        vector = None
    tasks = tuple(a for a in range(kept) if a != vector)
    return Schedule(vector, lanes, tasks, block)


def looked_up(kernel: Kernel, schedule: Schedule) -> tuple[int, ...]:
    """Loads whose lanes are where other steps say, if the vector axis alone decides that: along the
    last axis of what is resized. It is then found once for several tasks."""
    vector = schedule.vector
    walked_otherwise = schedule.across is not None or schedule.interleaved is not None
    if vector is None or not schedule.tasks or kernel.stages or kernel.combine or walked_otherwise:
        return ()
    along, moved = outer_steps(kernel, (vector,)), differing(kernel, (vector,))
    if any(nearer[vector] and c not in along for c, nearer in slopes(kernel).items()):
        return ()
    found = []
    for number, guard in enumerate(guards(kernel, necessary=True)):
        access = kernel.accesses[number]
        own = moved.intersection(step for step, _ in access.rest) if access else ()
        if own and own.issubset(along) and not guard:
            found.append(number)
    return tuple(found)


def chains_of(kernel: Kernel, schedule: Schedule, stage: Stage) -> int:
    """Accumulators of a reduction along vectors: several if its elements take less time than the
    latency of adding one of them."""
    across = schedule.vector is not None and schedule.vector >= len(kernel.kept)
    simple = not stage.positional and not _is_expensive(kernel, stage.value)
    return REDUCTION_CHAINS if across and simple else 1


def kept_in_result(kernel: Kernel, schedule: Schedule) -> tuple[int, int] | None:
    """The step that the last reduction is of, and the result in whose place its elements are kept
    until that is stored; None if computing them again costs little, or no place fits."""
    if not kernel.stages or kernel.stages[-1].positional or kernel.combine:
        return None
    step, vector = kernel.stages[-1].value, schedule.vector
    if kernel.steps[step].dtype not in (FLOAT32, FLOAT64) or not _is_expensive(kernel, step):
        return None
    for result, (value, target) in enumerate(zip(kernel.values, kernel.targets, strict=True)):
        fits = kernel.wide[result] and kernel.steps[value].dtype == kernel.steps[step].dtype
        contiguous = vector is None or target.coefficients[vector] == 1
        if fits and contiguous and step in _needed(kernel, value):
            return step, result
    return None


def softmax_steps(kernel: Kernel) -> tuple[frozenset[int], frozenset[int]]:
    """The exponentials of elements less the largest one, which are at most one, and the sums of
    these, which are at least one: to divide by a sum is to multiply by its reciprocal, which
    neither overflows nor loses digits."""
    powers, steps = set[int](), kernel.steps

    def stage(number: int) -> Stage | None:
        found = steps[number]
        return kernel.stages[found.payload] if found.op == "stage" else None  # type: ignore[index]

    for number, step in enumerate(steps):
        apart = steps[step.arguments[0]] if step.op == "exp" else step
        top = stage(apart.arguments[1]) if apart.op == "subtract" and apart is not step else None
        if top is not None and (top.kind, top.value) == ("maximum", apart.arguments[0]):
            powers.add(number)
    sums = {
        number
        for number in range(len(steps))
        if (one := stage(number)) is not None and one.kind == "sum" and one.value in powers
    }
    return frozenset(powers), frozenset(sums)


def _is_expensive(kernel: Kernel, step: int) -> bool:
    return any(is_expensive(kernel.steps[n].op) for n in _needed(kernel, step))


def _needed(kernel: Kernel, step: int) -> set[int]:
    """A step and all that it is computed from."""
    found, left = {step}, [step]
    while left:
        more = {*needs(kernel, left.pop())} - found
        found |= more
        left += more
    return found


def _scattered_row(kernel: Kernel) -> int | None:
    """The last axis of a scattering nest if elements along it have distinct places side by side."""
    last, (target,) = len(kernel.axes) - 1, kernel.targets
    extent = kernel.axes[last] if kernel.axes else 1
    if (isinstance(extent, int) and extent < LEAST_TRANSPOSED) or target.coefficients[last] != 1:
        return None
    moved = differing(kernel, (last,))
    return None if any(step in moved for step, _ in target.rest) else last


def _exchanged(kernel: Kernel) -> tuple[int, int] | None:
    """The axes along which a result and an operand are contiguous, if they differ: of a copy, or of
    pointwise functions whose other operands are contiguous along the former."""
    if kernel.stages or kernel.combine or kernel.reduced or len(kernel.values) > 1:
        return None
    dtype = kernel.steps[0].dtype
    if len(kernel.steps) > 1:
        ops = {"load", "constant", *SCALAR_FUNCTIONS}
        alike = all(s.op in ops and s.dtype == dtype for s in kernel.steps)
        if not alike or dtype not in (FLOAT32, FLOAT64):
            return None
    loads = [a for a in kernel.accesses if a is not None]
    if not loads or any(a.rest for a in loads) or dtype.itemsize not in TRANSPOSED_BYTES:
        return None
    (target,) = kernel.targets
    vector = _contiguous(target)
    turned = [a for a in loads if vector is None or a.coefficients[vector] not in (0, 1)]
    if vector is None or len(turned) != 1:
        return None
    across = _contiguous(turned[0])
    if across is None:
        return None
    extents = (kernel.axes[vector], kernel.axes[across])
    few = any(isinstance(n, int) and n < LEAST_TRANSPOSED for n in extents)
    return None if few else (vector, across)


def _contiguous(access: Access) -> int | None:
    """The axis along which an access is contiguous."""
    found = (a for a, c in enumerate(access.coefficients) if isinstance(c, int) and c == 1)
    return next(found, None)


def exchanged_load(kernel: Kernel, vector: int, across: int) -> int:
    """The load of the operand whose contiguous axis is `across`, which has another along
    `vector`."""
    return next(
        number
        for number, access in enumerate(kernel.accesses)
        if access is not None
        and access.coefficients[vector] not in (0, 1)
        and access.coefficients[across] == 1
    )


def _interleaved(kernel: Kernel) -> tuple[int, int] | None:
    """A vector axis and the last one, of few elements, where loads are contiguous along the former
    and results along both together."""
    if kernel.stages or kernel.combine or kernel.reduced or len(kernel.kept) < 2:
        return None
    few = len(kernel.kept) - 1
    extent = kernel.kept[few]
    if not isinstance(extent, int) or not 1 < extent <= MOST_INTERLEAVED:
        return None
    loads = [a for a in kernel.accesses if a is not None]
    for axis in range(few):
        side_by_side = all(
            t.coefficients[axis] == extent and t.coefficients[few] == 1 for t in kernel.targets
        )
        of_axis, of_few = (sum(1 for a in loads if a.coefficients[n] == 1) for n in (axis, few))
        if side_by_side and of_axis > of_few:
            return axis, few
    return None


def _widest(kernel: Kernel) -> int:
    """Bytes of the widest element that is computed with: of floats, if there are any."""
    dtypes = [s.dtype for s, a in zip(kernel.steps, kernel.accesses, strict=True) if a is not None]
    dtypes += [kernel.steps[v].dtype for v in kernel.values]
    floats = [d.itemsize for d in dtypes if d.kind == "float"]
    return max(floats or [d.itemsize for d in dtypes], default=8)


def task_count(kernel: Kernel, schedule: Schedule) -> Dim:
    """Tasks there are."""
    if schedule.across is not None:
        blocks = ceil_quotient(kernel.axes[schedule.along], schedule.block)
        return product(kernel.axes[a] for a in schedule.tasks) * blocks
    if schedule.tasks or schedule.vector is None or schedule.vector >= len(kernel.kept):
        return product(kernel.axes[a] for a in schedule.tasks)
    return ceil_quotient(kernel.axes[schedule.vector], schedule.block)


def operand_numbers(kernel: Kernel) -> list[int]:
    """The operands of the nest that the kernel still reads, in the order of their buffers."""
    return sorted({int(s.payload) for s in kernel.steps if s.op == "load"})  # type: ignore[arg-type]


BLOCK = 32
"""Positions of a row in a task. Derived: a task is some microseconds,
and its borders are few of its positions."""
MOST_TOGETHER = 8
"""Positions computed at once. Derived: the weight's loads are then an eighth of the
multiply-adds."""


@dataclass(frozen=True)
class DepthwiseKernel:
    """What the code of a depthwise convolution or of a reduction of windows depends on. Axes are
    rows and positions of a row."""

    dtype: DType
    reduction: str | None
    """Of the elements of a window (`sum`, `maximum`, `minimum`); None for a convolution."""
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    epilogue: Expr
    group: int = 1
    """Channels of a group, a power of two: each is a sum over all of them."""

    def together(self, registers: int) -> int:
        """Positions of a row that are computed at once: one register holds an element of x, one
        is left over, the others hold the sums and a row of the weight, if there is one. Half of
        the most are worth loading parts of the weight again."""
        weights = self.window[1] * self.group if self.reduction is None else 0
        return max(min(registers - weights - 2, MOST_TOGETHER), MOST_TOGETHER // 2)


@dataclass(frozen=True)
class MemberKernel:
    """A step of a chain, as far as the code that walks the chain depends on it."""

    operands: int
    """Of the epilogue."""
    is_product: bool
    """Whether it is a product with a weight in panels; otherwise a kernel whose tasks are blocks of
    rows."""
    constants: int = 0
    """Buffers of a kernel between x and the operands of the epilogue."""
    places: tuple[int, ...] = ()
    """Where the operands of a product stand in the epilogue of its uKernels."""


@dataclass(frozen=True)
class StripesKernel:
    """What the code that walks a chain depends on. The first member reads an array of the program,
    each other one the result of the member before; the last writes an array of the program."""

    dtype: DType
    members: tuple[MemberKernel, ...]
