"""The back end of this machine's CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, SupportsIndex

from ftuner.core.cpu.common_epilogue import shared
from ftuner.core.dtype import DTYPES, FLOAT32, DType
from ftuner.core.expr import ACCUMULATOR, Expr
from ftuner.core.product import product_types
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.system import SystemFacts
from ftuner.runtime.backend import Backend, Boundary, Effort, Executable, Options, Tuned
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu.dense import Dense
from ftuner.runtime.cpu.grouped import GroupedMatmul
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.session import CpuSession, known_hardware
from ftuner.runtime.ops.layer import Activation
from ftuner.runtime.shown_progress import Progress
from ftuner.ukernels.cpu.library import Library

if TYPE_CHECKING:
    from ftuner.graph.appending import Appended
    from ftuner.graph.ir import Graph
    from ftuner.graph.splitting import Part

CALIBRATION_S: Mapping[Effort, float] = {"default": 1.8, "thorough": 30.0}
"""Seconds of trials, by effort; none where an effort has none."""


class CpuBackend(CpuSession, Backend):
    """A session and its operators, on NumPy arrays and objects that NumPy views without a copy.
    Compiled graphs and attention are imported on first use, so that a process that only multiplies
    matrices does not wait for them."""

    product_dtypes = DTYPES
    multiplies_halves = False
    appends_in_place = limits_memory = True
    held_dtypes: dict[str, DType] = {}  # noqa: RUF012, as of the contract

    def __init__(
        self, cache: Cache | None = None, isa: str | None = None, facts: SystemFacts | None = None
    ) -> None:
        super().__init__(cache, isa, facts)
        self.matmul = Matmul(self)
        self.grouped_matmul = GroupedMatmul(self.matmul)
        self._attention: Any = None

    @property
    def narrow_dtypes(self) -> Collection[DType]:
        return {FLOAT32, *self.kernels.isa.narrow_dtypes}

    def probe(self) -> CpuHardware:
        return known_hardware(self.cache, again=True)

    def calibrated(self, effort: Effort, progress: Progress | None = None) -> CpuBackend:
        seconds = CALIBRATION_S.get(effort)
        known = self.hardware.tuning.is_calibrated
        if seconds is not None and (effort == "thorough" or not known):
            self.calibration = self.calibrate(seconds, progress, steps=effort == "thorough")
        return self

    @property
    def target(self) -> str:
        return self.kernels.isa.name

    def library(self, dtype: DType, epilogue: Expr) -> Library:
        return self.kernels.library(product_types(dtype), epilogue)

    def tune(self, dtype: DType, epilogue: Expr, progress: Progress | None = None) -> Tuned:
        if epilogue != ACCUMULATOR:
            # What is compiled for calls serves layers, too.
            epilogue = shared(epilogue).epilogue
        return self.kernels.tune(product_types(dtype), epilogue, progress)

    def dense(
        self, weight: object, bias: object | None, activation: Activation, residual: bool,
        width: SupportsIndex | None,
    ) -> Dense:  # fmt: skip
        return Dense(weight, bias, activation, residual, width=width, session=self)

    def attention(self, q: object, k: object, v: object, **options: Any) -> Any:
        if self._attention is None:
            self._attention = import_module("ftuner.runtime.cpu.attention").Attention(self)
        return self._attention(q, k, v, **options)

    def compiled_ahead(self) -> AbstractContextManager[None]:
        return self.kernels.compiled_ahead(self._ahead.started)

    def compile(
        self, part: Part, options: Options, appended: Sequence[Appended] = ()
    ) -> Executable:
        assert options.held is None, "the CPU holds float32 as it is"
        room = import_module("ftuner.runtime.cpu.executable")
        found: Executable = room.CompiledGraph(part.graph, self, options, appended, part.compiled)
        return found

    def boundary(self, graph: Graph, in_parts: bool, appended: Sequence[Appended] = ()) -> Boundary:
        room = import_module("ftuner.runtime.cpu.boundary")
        found: Boundary = room.CpuBoundary(graph, appended, self.kernels)
        return found


@lru_cache(maxsize=1)
def default_backend() -> CpuBackend:
    """The CPU's back end of this process."""
    return CpuBackend()
