"""What the sections of `benchmarks.gpu` share: a device, operands, time left, and results."""

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from benchmarks.gpu_cases import rotated
from benchmarks.gpu_journal import LAUNCHES, SUBJECT, Journal
from benchmarks.gpu_timing import Call, Meter, Settings, measure
from benchmarks.results import compare
from ftuner.hardware.gpu_model import GpuHardware
from ftuner.runtime.gpu.backend import GpuBackend

VENDOR, ONE_BY_ONE = "torch", "torch, one by one"
"""PyTorch's libraries; and the same of many, launched one after the other."""
SPECIALISED = "ftuner, specialised warps allowed"
"""As planned where the tuning has them, which it has not until a device has run them."""
MAIN = "bfloat16"
"""What results are wanted of most."""
GRANULE = 128
"""Elements that copies of operands begin at multiples of; a multiple of 16 bytes."""
TORCH_TYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "tf32": torch.float32,
    "float32": torch.float32,
}
INPUT_ROUNDOFF = {"bfloat16": 0.0, "float16": 0.0, "tf32": 2.0**-10, "float32": 0.0}
"""What each operand may err by, relatively: tf32 keeps ten bits, and may cut instead of round."""
_Case = TypeVar("_Case")
ENDLESS = 1e30
"""In place of errors that are infinite or no number."""
CONFIDENCE = 8.0
"""As in `ftuner_tools.reference`."""


class Attempt(NamedTuple):
    """A case of a section."""

    label: str
    work: Callable[[], dict[str, Any]]
    """Gives the result, as JSON."""
    needs_s: float = 0.0
    """Begun only if more time than this is left."""
    is_extra: bool = False
    """Not counted as left out."""


Section = Callable[["Bench"], Iterator[Attempt]]
"""What a module offers to be measured: its cases, in the order that they are run in."""


class Labelled(Protocol):
    """A case of operands of one element type."""

    @property
    def label(self) -> str: ...

    @property
    def multiply(self) -> str: ...

    @property
    def flops(self) -> int: ...

    @property
    def bytes(self) -> int: ...


class Rotated(Protocol):
    """Copies of the operands of a case."""

    count: int

    def error(self, call: Call, number: int) -> float:
        """Of a call on the operands of this number, over what rounding explains."""


@dataclass
class Bench:
    """A device with what is needed to measure on it."""

    backend: GpuBackend
    meter: Meter
    dry: bool
    settings: Settings = field(default_factory=Settings)
    deadline: float = math.inf
    """By `time.monotonic`, of the cases that come next."""
    journal: Journal | None = None
    """Of the section that runs."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def device(self) -> torch.device:
        return self.backend.device

    @property
    def specialising(self) -> GpuHardware:
        """The chip where specialised warps are allowed."""
        hardware = self.backend.hardware
        return replace(hardware, tuning=replace(hardware.tuning, specialised_warpgroups=2))

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def kernels(self) -> int:
        """Kernels that were compiled so far."""
        return len(self.backend.kernels)

    def shared(self, parts: Sequence[_Case]) -> Iterator[_Case]:
        """The parts of a section, each with an equal share of the time that is left."""
        whole = self.deadline
        for number, part in enumerate(parts):
            self.deadline = time.monotonic() + (whole - time.monotonic()) / (len(parts) - number)
            yield part
        self.deadline = whole

    def enter(self, engine: str = "") -> None:
        """Write down which engine runs; raises AvoidedError as `Journal.enter`."""
        if self.journal is not None:
            self.journal.enter(engine)

    def copies(self, count: int, shape: Sequence[int], multiply: str) -> list[torch.Tensor]:
        """Random tensors that begin at aligned addresses."""
        elements = math.prod(shape)
        apart = -(-elements // GRANULE) * GRANULE
        dtype = TORCH_TYPES[multiply]
        flat = torch.randn((count, apart), dtype=dtype, device=self.device)
        return [row[:elements].view(*shape) for row in flat]

    def compare(
        self, engines: Mapping[str, Sequence[Call]], settings: Settings | None = None
    ) -> dict[str, Any]:
        """Timings of engines, and the subject's ratios to the best of the others."""
        timings = measure(engines, self.meter, settings or self.settings, self.rng)
        found = {
            name: {"min_s": t.min_s, "median_s": t.median_s, "host_s": t.host_s}
            for name, t in timings.items()
        }
        ranked = {name: entry for name, entry in found.items() if name != LAUNCHES}
        return {"engines": found, **compare(ranked, SUBJECT)}

    def checked(
        self, engines: Mapping[str, Sequence[Call]], error: Callable[[str, int], float],
        settings: Settings | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """As `compare`, of engines whose results are right; what is refused says why.

        Args:
            error: of an engine's call of a number, over what rounding explains.
        """
        right: dict[str, Sequence[Call]] = {}
        refused: dict[str, dict[str, str]] = {}
        errors: dict[str, float] = {}
        for name, own in engines.items():
            try:
                self.enter(name)
                # The last copy too: it tells that each call uses its own operands.
                errors[name] = max(error(name, number) for number in (0, len(own) - 1))
            except Exception as raised:
                # One that the device does not get over is raised again here, and ends the section.
                self.synchronize()
                refused[name] = {"refused": f"{type(raised).__name__}: {raised}"}
                continue
            if errors[name] <= 1.0:
                right[name] = own
            else:
                refused[name] = {"refused": f"errs by {errors[name]:.3g} of what rounding explains"}
        self.enter()
        result = self.compare(right, settings)
        result["engines"] |= refused
        return {"errors": errors, **result}

    def rotated(self, case: Labelled) -> int:
        """Copies of the operands of a case that calls rotate through."""
        return 2 if self.dry else rotated(case.bytes, self.backend.hardware.l2_bytes)

    def result(
        self, case: Labelled, operands: Rotated, calls: Mapping[str, Sequence[Call]],
        described: Mapping[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """The result of a case as JSON: its engines checked and timed, and the share of the chip's
        peak that ours has, where that is known. `described`: what is kept of the case."""
        found = self.checked(calls, lambda name, n: operands.error(calls[name][n], n))
        own = found["engines"][SUBJECT]
        if "min_s" in own:
            peak = self.backend.hardware.matrix_flops_per_s.get(case.multiply)
            own["fraction_of_peak"] = peak and case.flops / own["median_s"] / peak
        return {"case": described, "flops": case.flops, "copies": operands.count, **found}

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)


def shuffled(cases: Iterable[_Case]) -> list[_Case]:
    """In an order without order, the same each time: a run that is cut off has a fair sample."""
    found = list(cases)
    random.Random(0).shuffle(found)
    return found


_Labelled = TypeVar("_Labelled", bound=Labelled)


def ordered(cases: Iterable[_Labelled]) -> list[_Labelled]:
    """Without order, but those of the element type that results are wanted of most come first."""
    return sorted(shuffled(cases), key=lambda case: case.multiply != MAIN)


def attempts(
    bench: Bench, cases: Iterable[_Labelled], run: Callable[[Bench, _Labelled], dict[str, Any]]
) -> Iterator[Attempt]:
    """Cases one after the other; `run` gives a result as JSON."""
    return (Attempt(case.label, partial(run, bench, case)) for case in cases)


@contextmanager
def multiplying(multiply: str) -> Iterator[None]:
    """Have float32 multiplied exactly or as tf32, by torch and so by ftuner."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if multiply == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def error_of(
    y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, multiply: str, rows: int = 64
) -> float:
    """The largest error of `y = x @ w` over what rounding explains, from some rows, the last ones
    among them, in float64; above one it is wrong.

    The scale of an element is the root of its sum of squares: with random operands its own size.
    """
    m, k = x.shape[-2:]
    step = max(1, -(-m // rows)) | 1
    chosen = torch.arange(m - 1, -1, -step, device=x.device)
    x64, w64 = x[..., chosen, :].double(), w.double()
    expected = x64 @ w64
    scale = ((x64 * x64) @ (w64 * w64)).sqrt() + expected.abs()
    out = torch.finfo(y.dtype).eps
    sums = math.sqrt(k) * torch.finfo(torch.float32).eps
    bound = (2.0 * out + CONFIDENCE * (INPUT_ROUNDOFF[multiply] + sums)) * scale
    error = (y[..., chosen, :].double() - expected).abs() / bound.clamp_min(1e-30)
    return finite(error.max())


def finite(error: torch.Tensor) -> float:
    """An error as a number that JSON can hold."""
    return float(error.double().nan_to_num(nan=ENDLESS, posinf=ENDLESS).clamp_max(ENDLESS))
