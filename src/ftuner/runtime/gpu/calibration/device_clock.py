"""Products and attention by a given plan, whatever the planner would choose.

A burst of launches is queued while the device is held, so that it runs them back to back and the
host's own time is not in theirs. Launches rotate through copies of their operands, which L2 does
not hold together. All trials take their operands from one pool of random numbers of each dtype,
because random data draw the power, and so have the clock, of real ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any, NamedTuple

import torch

from ftuner.codegen.triton.product import gemm_source
from ftuner.codegen.triton.source import Source
from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import DType
from ftuner.core.gpu.attention import AttentionForm
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.errors import AllocationError, HardwareError
from ftuner.planner.gpu.plan import (
    AttentionPlan,
    AttentionProblem,
    ProductPlan,
    ProductProblem,
    RequestLengths,
)
from ftuner.runtime.gpu.arrays import TORCH_DTYPES, Tensor
from ftuner.runtime.gpu.calibration.calibrate import HostSeconds
from ftuner.runtime.gpu.calibration.trials import AttentionTrial, ProductTrial, Trial
from ftuner.runtime.gpu.kernels import BoundKernel, Kernel
from ftuner.runtime.gpu.launching import FixedLaunch, device_seconds
from ftuner.runtime.gpu.operands import Product
from ftuner.runtime.gpu.products import Products
from ftuner.runtime.gpu.session import GpuSession
from ftuner.runtime.shown_progress import Progress
from ftuner.schedules.attention.gpu_binding_launches import Attentions, How, Operands
from ftuner.schedules.attention.gpu_kernel import attention_source


class PlannedProducts(Products):
    """Products of one shape, by one plan."""

    def __init__(self, session: GpuSession, plan: ProductPlan) -> None:
        super().__init__(session.kernels, session.scratch, session.block_library)
        self._plan = plan

    def _planned(self, like: Any, problem: ProductProblem) -> tuple[ProductPlan, Kernel]:
        given = self._plan.kernel
        kernel = self._library(given.dtype, given.multiply).kernel(
            given.tiles, given.a_order, given.b_order, given.alignment, given.split, like.epilogue,
            like.c_aligned,
        )  # fmt: skip
        return self._plan._replace(kernel=kernel), self._kernels.kernel(gemm_source(kernel))


class PlannedAttentions(Attentions):
    """Attention of one shape, by one plan."""

    def __init__(self, session: GpuSession, plan: AttentionPlan) -> None:
        super().__init__(session.device, session.kernels, session.scratch, session.hardware)
        self._plan = plan

    def _planned(
        self, form: AttentionForm, problem: AttentionProblem, lengths: RequestLengths | None
    ) -> tuple[AttentionPlan, Kernel]:
        plan = self._plan
        assert (form, problem, lengths) == (plan.kernel.form, plan.problem, None)
        return plan, self._kernels.kernel(attention_source(plan.kernel))


BURST_S = 5e-4
"""Least estimated seconds of a burst."""
LEAST_LAUNCHES, MOST_LAUNCHES = 3, 64
"""Launches of a burst; the driver queues some thousand commands."""
MAX_COPIES = 64
POOL_L2_CAPACITIES = 4
"""Size of the pool of operands, at least, in sizes of L2."""
HELD_MARGIN = 1.5
"""How much longer than launching takes the device is held."""
HOST_LAUNCHES = 32
"""Launches of one sample of the host's time."""


_Launch = tuple[FixedLaunch, Sequence[Tensor]]
"""A launch and its operands."""


class _Prepared(NamedTuple):
    """A trial that can be launched."""

    launches: tuple[FixedLaunch, ...]
    """One for each copy of the operands."""
    calls: int
    """Launches of a burst."""
    operands: tuple[Sequence[Tensor], ...]
    """Kept for the launches, which refer to memory alone."""


class _Pool:
    """Numbers of one dtype; views of them follow each other, and begin again at their end."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self._granule = ALIGNMENT_BYTES * 8 // numbers.itemsize
        self._next = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, *shape: int) -> Tensor:
        """Returns a view that begins at a multiple of 128 bytes."""
        count = math.prod(shape)
        if self._next + count > len(self):
            self._next = 0
        found = self._numbers[self._next : self._next + count].view(shape)
        self._next += -(-count // self._granule) * self._granule
        return found


class DeviceClock:
    """Times trials on the device of a session; see `calibrate.Clock`. Interpreted kernels, on a
    CPU, are timed by the host's clock."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session
        self._prepared: dict[Trial, _Prepared] = {}
        self._operands: dict[DType, _Pool] = {}
        self._results: dict[DType, _Pool] = {}
        self._host_launch_s = session.hardware.tuning.host_launch_s
        self._recorder = session.recorder()
        self._smallest: FixedLaunch | None = None
        self._replay: FixedLaunch | None = None

    def now(self) -> float:
        return time.monotonic()

    def prepare(
        self, trials: Sequence[Trial], progress: Progress | None = None
    ) -> Mapping[Trial, str]:
        sources = {trial: _source(trial) for trial in trials}
        failed: dict[Trial, str] = {}
        with suppress(HardwareError):
            # Kernels that fail are found below. Triton's cache has the others then.
            self._session.kernels.prepare(list(sources.values()), progress)
        for trial, source in sources.items():
            if trial in self._prepared:
                continue
            try:
                self._session.kernels.kernel(source)
                self._prepared[trial] = self._make(trial)
            except (HardwareError, AllocationError, torch.cuda.OutOfMemoryError) as error:
                failed[trial] = str(error)
        return failed

    def seconds(self, trial: Trial) -> float:
        launches, calls, _ = self._prepared[trial]
        burst = islice(cycle(launches), calls)
        return self._timed(partial(_run_all, burst), calls) / calls

    def host_seconds(self) -> HostSeconds | None:
        if self._session.device.type != "cuda" or not self._prepared:
            return None
        if self._replay is None:
            plain = [t for t in self._prepared if not t.plan.kernel.split]
            trial = min(plain or self._prepared, key=lambda trial: trial.bytes)
            self._smallest = self._prepared[trial].launches[0]
            try:
                self._replay = self._recorder.record(self._smallest)
            except RuntimeError:
                return None
        assert self._smallest is not None
        found = [self._host_s(launch) for launch in (self._smallest, self._replay)]
        self._host_launch_s = found[0]
        return HostSeconds(*found)

    def _timed(self, work: FixedLaunch, calls: int) -> float:
        """Returns the device's seconds of work that is `calls` launches."""
        held_s = HELD_MARGIN * self._host_launch_s * calls
        held_cycles = int(held_s * self._session.hardware.clock_hz)
        (seconds,) = device_seconds(self._session.device, [work], held_cycles)
        return seconds

    def _host_s(self, launch: FixedLaunch) -> float:
        """Returns the host's time of one launch, while the device does not make it wait."""
        samples = []

        def work() -> None:
            for _ in range(HOST_LAUNCHES):
                began = time.perf_counter()
                launch()
                samples.append(time.perf_counter() - began)

        self._timed(work, HOST_LAUNCHES)
        return median(samples)

    def _make(self, trial: Trial) -> _Prepared:
        make = self._product if isinstance(trial, ProductTrial) else self._attention
        pool, results = self._pools(trial)
        itemsize = _dtype(trial).itemsize
        copies = min(max(len(pool) * itemsize // trial.bytes, 1), MAX_COPIES)
        estimated_s = trial.estimate(self._session.hardware).seconds
        calls = min(max(math.ceil(BURST_S / estimated_s), LEAST_LAUNCHES), MOST_LAUNCHES)
        made = make(trial, pool, results, min(copies, calls))  # type: ignore[arg-type]
        launches, operands = zip(*made, strict=True)
        # The first launch loads the code.
        device_seconds(self._session.device, launches, 0)
        return _Prepared(launches, calls, operands)

    def _product(
        self, trial: ProductTrial, pool: _Pool, results: _Pool, copies: int
    ) -> list[_Launch]:
        m, n, k = trial.plan.problem[:3]
        products = PlannedProducts(self._session, trial.plan)
        found: list[_Launch] = []
        for _ in range(copies):
            a, b, c = pool.take(m, k), pool.take(n, k).mT, results.take(m, n)
            found.append(_only(products.launch(Product(a, b, c, tf32=False)), (a, b, c)))
        return found

    def _attention(
        self, trial: AttentionTrial, pool: _Pool, results: _Pool, copies: int
    ) -> list[_Launch]:
        p = trial.plan.problem
        attentions = PlannedAttentions(self._session, trial.plan)
        softmax = AttentionSoftmax(1.0 / math.sqrt(p.depth), safe=True)
        past = None if trial.plan.kernel.form.causal == "none" else p.past
        how = How.of(softmax, past, tf32=False)
        found: list[_Launch] = []
        for _ in range(copies):
            q, k = pool.take(p.heads, p.rows, p.depth), pool.take(p.heads, p.keys, p.depth).mT
            v = pool.take(p.heads, p.keys, p.columns)
            out = results.take(p.heads, p.rows, p.columns)
            operands = Operands(q, k, v, out)
            found.append(_only(attentions.run(operands, how), operands[:4]))
        return found

    def _pools(self, trial: Trial) -> tuple[_Pool, _Pool]:
        """Returns the pools of a trial's operands and results; larger ones if it needs them."""
        dtype, device = _dtype(trial), self._session.device
        kept: dict[str, Any] = {"dtype": TORCH_DTYPES[dtype.name], "device": device}
        wanted = trial.bytes
        if device.type == "cuda":
            wanted = max(wanted, POOL_L2_CAPACITIES * self._session.hardware.l2_bytes)
        for pools, made in ((self._operands, torch.randn), (self._results, torch.empty)):
            found = pools.get(dtype)
            count = -(-wanted // dtype.itemsize)
            if found is None or len(found) < count:
                pools[dtype] = _Pool(made(count, **kept))
        return self._operands[dtype], self._results[dtype]


def _run_all(launches: Any) -> None:
    for launch in launches:
        launch()


def _only(launches: Sequence[BoundKernel] | None, operands: Sequence[Tensor]) -> _Launch:
    assert launches is not None
    (bound,) = launches
    return bound.launch, operands


def _source(trial: Trial) -> Source:
    if isinstance(trial, ProductTrial):
        return gemm_source(trial.plan.kernel)
    return attention_source(trial.plan.kernel)


def _dtype(trial: Trial) -> DType:
    if isinstance(trial, ProductTrial):
        return trial.plan.kernel.dtype
    return trial.plan.kernel.form.dtype
