"""An operator on operands with symbols in their shapes: its arrays, its kernel in this process, and
what it must give."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
from tests.codegen.llvm.objects import loaded

from ftuner.codegen.llvm.native.records import Status
from ftuner.core.access import Kernel, kernel_of
from ftuner.core.cpu.schedule import operand_numbers, schedule_of, task_count, walked
from ftuner.core.dim import Dim, Symbolic, symbol
from ftuner.core.dtype import TENSOR_DTYPES
from ftuner.core.evaluation import evaluate
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import contiguous
from ftuner.graph.operators import OPERATORS
from ftuner.hardware.isa import instruction_set
from ftuner.hardware.tuning import CpuTuning
from ftuner.schedules.nest import cpu_kernel as nest

Array = npt.NDArray[Any]
Bindings = Mapping[str, int]
VECTOR_BYTES = {"sse2": 16, "avx2": 32, "avx512": 64, "neon": 16}
A, B, C = symbol("A"), symbol("B"), symbol("C")
DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64", "bool")
EXTENTS = tuple(
    {"A": a, "B": b, "C": c}
    for a, b, c in ((3, 5, 37), (1, 1, 1), (2, 1, 64), (1, 7, 13), (4, 3, 2), (0, 3, 5), (3, 2, 0))
)
"""Odd, one, whole vectors, prime, tiny, and none."""
SOME = tuple(extents for extents in EXTENTS if all(extents.values()))
BLOCK = CpuTuning().nest_block_elements
LARGE = {"A": 2, "B": 3, "C": 2 * BLOCK + 77}

Make = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], Array]


def values(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Small numbers of both signs, with equal ones among the integers."""
    if dtype.kind == "f":
        return (3 * random.standard_normal(shape)).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    return random.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)


def extreme(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Small numbers, and what is at the ends of the dtype."""
    found = values(random, shape, dtype)
    if dtype.kind == "b":
        return found
    if dtype.kind == "f":
        info: Any = np.finfo(dtype)
        ends = [np.nan, np.inf, -np.inf, 0.0, -0.0, info.max, -info.max, info.tiny, 1.0, -1.0]
    else:
        info = np.iinfo(dtype)
        ends = [info.min, info.max, 0, 1, info.max - 1]
    some = random.choice(np.array(ends, dtype), shape)
    chosen: Array = np.where(random.random(shape) < 0.3, some, found)
    return chosen


def positive(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    found: Array = np.abs(values(random, shape, dtype)) + np.asarray(0.5).astype(dtype)
    return found


def natural(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Exponents of integers."""
    return random.integers(0, 12, shape).astype(dtype)


def near_one(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """What a product of many does not overflow with."""
    if dtype.kind != "f":
        return random.integers(1, 4, shape).astype(dtype)
    return random.uniform(0.9, 1.1, shape).astype(dtype)


def below(extent: Dim) -> Callable[[Bindings], Make]:
    """Indices of an axis, those from the back included."""

    def made(bindings: Bindings) -> Make:
        n = evaluate(extent, bindings)
        return lambda random, shape, dtype: random.integers(-n, max(n, 1), shape).astype(dtype)

    return made


def values_of(bindings: Bindings) -> Make:
    return values


@dataclass(frozen=True)
class Case:
    """An operator on operands with symbols in their shapes."""

    op: str
    operands: tuple[tuple[str, tuple[Dim, ...]], ...]
    """Dtype and shape of each."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    makes: tuple[Make | Callable[[Bindings], Make], ...] = ()
    """How each operand's elements are made; the last one goes for all that follow."""
    roundings: float = 8.0
    """What a float may be off by, in units of roundoff of `size`."""
    size: Callable[..., Any] | None = None
    """The magnitude that errors are relative to, from the operands in float64: by default the
    result's own."""
    extents: tuple[Bindings, ...] = EXTENTS

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(TENSOR_DTYPES[d], s) for d, s in self.operands)

    def results(self) -> tuple[TensorType, ...]:
        return OPERATORS[self.op].infer(self.types, self.attributes, lambda *a, **k: None)

    def kernel(self) -> Kernel:
        define = OPERATORS[self.op].define
        assert define is not None
        results = self.results()
        return walked(kernel_of(define(self.types, self.attributes, results), contiguous(results)))

    def arrays(self, bindings: Bindings, seed: int) -> list[Array]:
        random = np.random.default_rng(seed)
        found = []
        for i, (dtype, shape) in enumerate(self.operands):
            make: Any = self.makes[min(i, len(self.makes) - 1)] if self.makes else values
            if make not in (values, extreme, positive, natural, near_one):
                make = make(bindings)
            extents = tuple(evaluate(n, bindings) for n in shape)
            found.append(np.array(make(random, extents, np.dtype(dtype)), order="C"))
        return found

    def bound(self, bindings: Bindings) -> dict[str, Any]:
        def value_of(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(value_of(v) for v in value)
            return evaluate(value, bindings) if isinstance(value, Symbolic) else value

        return {name: value_of(value) for name, value in self.attributes.items()}


class Functions:
    """Kernels of some cases in this process, compiled together."""

    def __init__(self, isa: str, kernels: Sequence[Kernel]) -> None:
        self.vector_bytes = VECTOR_BYTES[isa]
        module = ir.Module("nests")
        symbols = [f"f{i}" for i in range(len(kernels))]
        self.schedules = [schedule_of(kernel, self.vector_bytes, BLOCK) for kernel in kernels]
        for name, kernel, schedule in zip(symbols, kernels, self.schedules, strict=True):
            nest.emit(module, name, kernel, schedule, instruction_set(isa))
        self.calls = loaded(module, isa, symbols, 3, 3, inlines=True)
        self.kernels = kernels

    def run(
        self, number: int, arrays: Sequence[Array], results: Sequence[int], bindings: Bindings
    ) -> int:
        """Run all tasks, in two parts; `results` are addresses. Returns the status."""
        kernel = self.kernels[number]
        places = [arrays[n].ctypes.data for n in operand_numbers(kernel)] + list(results)
        buffers = np.array(places, np.uint64)
        dims = np.array([evaluate(d, bindings) for d in kernel.parameters()] + [0], np.int64)
        status = np.zeros(Status.SIZE, np.int64)
        tasks = evaluate(task_count(kernel, self.schedules[number]), bindings)
        for begin, end in ((tasks // 2, tasks), (0, tasks // 2)):
            self.calls[number](
                buffers.ctypes.data, dims.ctypes.data, status.ctypes.data, 0, begin, end
            )
        return int(status[0])


def assert_equal(case: Case, found: Array, arrays: Sequence[Array], bindings: Bindings) -> None:
    """The result is the operator's reference; floats to within what rounding explains."""
    reference = OPERATORS[case.op].reference
    attributes = case.bound(bindings)
    message = f"{case.op} {case.operands} {attributes} {bindings}"
    floats = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays]
    with np.errstate(all="ignore"):
        if found.dtype.kind != "f":
            expected = np.asarray(reference(*arrays, **attributes)).astype(found.dtype)
            assert np.array_equal(found, expected), message
            return
        wide = np.asarray(reference(*floats, **attributes), np.float64)
        size = np.abs(wide) if case.size is None else np.abs(case.size(*floats, **attributes))
        expected = wide.astype(found.dtype)
    assert found.shape == wide.shape, message
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True), message
    roundoff = TENSOR_DTYPES[found.dtype.name].unit_roundoff
    allowed = case.roundings * roundoff * size + float(np.finfo(found.dtype).tiny)
    with np.errstate(all="ignore"):
        error = np.abs(found - wide)
    wrong = finite & ~(error <= np.broadcast_to(allowed, wide.shape))
    assert not wrong.any(), f"{message}: {found[wrong][:4]} is not {wide[wrong][:4]}"


def one_nan_a_line(dtype: str, axis: int, kind: str) -> tuple[Case, Array]:
    """An extremum of zeros with one NaN, in each place of a line."""
    x = np.zeros((37, 37), dtype)
    np.fill_diagonal(x, np.nan)
    return Case("reduce", ((dtype, x.shape),), {"kind": kind, "axes": (axis,)}), x


CASTS_OF_FLOATS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def floats_out_of_range(source: str, target: str) -> tuple[Case, Array, list[int]]:
    """Floats that become integers: by way of int32, or of int64 for larger integers, whose least
    number is what these do not represent."""
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 300, -1, -129.5, 70000, 3e9, -3e9, 1e19,
                  2e19, -(2.0**63), 127.9, -0.5, 3.99] * 3, source)  # fmt: skip
    dtype = TENSOR_DTYPES[target]
    half = 1 << (31 if dtype.bits < 32 or target == "int32" else 63)
    wanted = []
    for value in map(float, x):
        whole = int(value) if abs(value) < half else -half
        if target == "uint64" and value >= half:
            whole = int(value) if value < 2 * half else 0
        low = whole % (1 << dtype.bits)
        wrapped = dtype.kind == "int" and low >> (dtype.bits - 1)
        wanted.append(low - (1 << dtype.bits) if wrapped else low)
    return Case("cast", ((source, x.shape),), {"to": dtype}), x, wanted


def nan_among_infinities(axis: int, kind: str) -> Iterator[tuple[Case, Array, list[int]]]:
    """Lines of infinities with a NaN, in each place; of nothing but NaN; and of what no element is
    better than: what finds the first of equals and what finds the last, and where."""
    infinity = np.inf if kind == "argmax" else -np.inf
    x = np.full((39, 37), infinity, np.float32)
    np.fill_diagonal(x, np.nan)
    x[37] = np.nan
    x[38] = -infinity
    operand = np.ascontiguousarray(x if axis == 1 else x.T)
    for last, position in ((False, 0), (True, 36)):
        attributes = {"kind": kind, "axis": axis, "last": last}
        case = Case("arg_reduce", (("float32", operand.shape),), attributes)
        yield case, operand, [*range(37), position, position]
