"""What the sections of `benchmarks.gpu` share: a device, operands, time left, and results."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from benchmarks.gpu_timing import Call, Meter, Settings, measure
from benchmarks.results import Document, compare, load, save
from ftuner.runtime.gpu.backend import GpuBackend

SUBJECT, LAUNCHES = "ftuner", "ftuner, launches"
"""Ours, as users get it; and models of which nothing is recorded."""
VENDOR, ONE_BY_ONE = "torch", "torch, one by one"
"""PyTorch's libraries; and the same of many, launched one after the other."""
MAIN = "bfloat16"
"""What results are wanted of most."""
KIND, DRY_KIND = "gpu", "gpu-dry"
"""Kinds of document: results of a device, and what only shows that the script works."""
GRANULE = 128
"""Elements that copies of operands begin at multiples of; a multiple of 16 bytes."""
SAVE_EVERY_S = 2.0
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
"""As in `benchmarks.reference`."""


class Section:
    """The document of one section, written again while results come in."""

    def __init__(self, path: Path, head: Mapping[str, Any], resume: bool) -> None:
        self._path = path
        self.document: Document = {**head, "complete": False, "cases": []}
        if resume and path.exists():
            found = load(path)
            alike = all(found.get(key) == head[key] for key in ("kind", "machine", "versions"))
            if alike:
                self.document = found
        self._known = {case["label"]: case for case in self.document["cases"]}
        self._saved = 0.0

    @property
    def folder(self) -> Path:
        """Where the document is."""
        return self._path.parent

    def restart(self) -> None:
        """Forget what was measured before."""
        self.document["cases"] = []
        self._known = {}

    def known(self, label: str) -> bool:
        """Whether a case was measured before."""
        return label in self._known

    def add(self, label: str, **result: Any) -> None:
        """Keep the result of a case."""
        entry = {"label": label, **result}
        self._known[label] = entry
        self.document["cases"].append(entry)
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        save(self.document, self._path)
        self._saved = time.monotonic()


@dataclass
class Bench:
    """A device with what is needed to measure on it."""

    backend: GpuBackend
    meter: Meter
    dry: bool
    settings: Settings = field(default_factory=Settings)
    deadline: float = math.inf
    """By `time.monotonic`, of the section that runs."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def device(self) -> torch.device:
        return self.backend.device

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def kernels(self) -> int:
        """Kernels that were compiled so far."""
        return len(self.backend.kernels)

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
        found = {name: asdict(timing) for name, timing in timings.items()}
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
        result = self.compare(right, settings)
        result["engines"] |= refused
        return {"errors": errors, **result}

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)


def shuffled(cases: Iterable[_Case]) -> list[_Case]:
    """In an order without order, the same each time: a run that is cut off has a fair sample."""
    found = list(cases)
    random.Random(0).shuffle(found)
    return found


class Labelled(Protocol):
    """A case of operands of one element type."""

    @property
    def label(self) -> str: ...

    @property
    def multiply(self) -> str: ...

    @property
    def flops(self) -> int: ...


_Labelled = TypeVar("_Labelled", bound=Labelled)


def ordered(cases: Iterable[_Labelled]) -> list[_Labelled]:
    """Without order, but those of the element type that results are wanted of most come first."""
    return sorted(shuffled(cases), key=lambda case: case.multiply != MAIN)


def run_cases(
    bench: Bench, section: Section, cases: Iterable[_Labelled],
    run: Callable[[Bench, _Labelled], dict[str, Any]],
) -> None:  # fmt: skip
    """Cases one after the other, until the section's time is over; `run` gives a result as JSON."""
    left = 0
    for case in cases:
        if section.known(case.label):
            continue
        if bench.left_s <= 0:
            left += 1
            continue
        kernels, began = bench.kernels, time.perf_counter()
        result = run(bench, case)
        took_s = time.perf_counter() - began
        section.add(case.label, **result, compiled=bench.kernels - kernels, took_s=took_s)
    section.document["left"] = left


def with_share(bench: Bench, case: Labelled, result: dict[str, Any]) -> dict[str, Any]:
    """The result of a case with the share of the chip's peak that ours has, where that is known."""
    own = result["engines"][SUBJECT]
    if "min_s" in own:
        peak = bench.backend.hardware.matrix_flops_per_s.get(case.multiply)
        own["fraction_of_peak"] = peak and case.flops / own["median_s"] / peak
    return result


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
