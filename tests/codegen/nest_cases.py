"""Operators with definitions, as cases for the general schedule, and what runs them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt

from ftuner.codegen.llvm.jit import compile_object, host_target
from ftuner.codegen.llvm.loading import LoadedObject
from ftuner.codegen.llvm.nest import emit_nest
from ftuner.core.affine import Kernel, kernel_of
from ftuner.core.dim import Dim, Symbolic, evaluate, minimum, symbol
from ftuner.core.dtype import TENSOR_DTYPES
from ftuner.core.scalar import SCALAR_FUNCTIONS
from ftuner.core.schedule import BLOCK, operand_numbers, schedule_of, task_count
from ftuner.graph.ir import TensorType
from ftuner.graph.operator import contiguous
from ftuner.graph.operators import OPERATORS

Array = npt.NDArray[Any]
Bindings = Mapping[str, int]
VECTOR_BYTES = {"sse2": 16, "avx2": 32, "avx512": 64, "neon": 16}
GUARD_BYTES = 192
A, B, C = symbol("A"), symbol("B"), symbol("C")
DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint64", "bool")
EXTENTS = tuple(
    {"A": a, "B": b, "C": c}
    for a, b, c in ((3, 5, 37), (1, 1, 1), (2, 1, 64), (1, 7, 13), (4, 3, 2), (0, 3, 5), (3, 2, 0))
)
"""Odd, one, whole vectors, prime, tiny, and none."""
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
        return kernel_of(define(self.types, self.attributes, results), contiguous(results))

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
        target = host_target(isa)
        module = ir.Module("nests")
        module.triple = target.triple
        symbols = [f"f{i}" for i in range(len(kernels))]
        for name, kernel in zip(symbols, kernels, strict=True):
            emit_nest(module, name, kernel, self.vector_bytes, isa != "sse2")
        self._loaded = LoadedObject([compile_object(module, target, inlines=True)], symbols)
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
        self.calls = [prototype(self._loaded.addresses[name]) for name in symbols]
        self.kernels = kernels

    def run(
        self, number: int, arrays: Sequence[Array], results: Sequence[int], bindings: Bindings
    ) -> int:
        """Run all tasks, in two parts; `results` are addresses. Returns the status."""
        kernel = self.kernels[number]
        places = [arrays[n].ctypes.data for n in operand_numbers(kernel)] + list(results)
        buffers = np.array(places, np.uint64)
        dims = np.array([evaluate(d, bindings) for d in kernel.parameters()] + [0], np.int64)
        status = np.zeros(1, np.int64)
        tasks = evaluate(task_count(kernel, schedule_of(kernel, self.vector_bytes)), bindings)
        for begin, end in ((tasks // 2, tasks), (0, tasks // 2)):
            self.calls[number](
                buffers.ctypes.data, dims.ctypes.data, status.ctypes.data, 0, begin, end
            )
        return int(status[0])


class Guarded:
    """Memory for a result between guards."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._memory = np.full(size + 2 * GUARD_BYTES, 0xA5, np.uint8)
        self.array = self._memory[GUARD_BYTES : GUARD_BYTES + size].view(dtype).reshape(shape)
        self.address = int(self._memory.ctypes.data) + GUARD_BYTES

    @property
    def untouched(self) -> bool:
        guards = self._memory[:GUARD_BYTES], self._memory[-GUARD_BYTES:]
        return all(bool(np.all(guard == 0xA5)) for guard in guards)


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


# Scalar functions.

_ROUNDED_ONCE = 1.01
_PAIRS: Mapping[str, tuple[tuple[Dim, ...], ...]] = {
    # Each shape of two operands that says how they are read: along, again and again, not at all.
    "same": ((A, B, C), (A, B, C)),
    "a row": ((A, B, C), (C,)),
    "a column": ((A, B, 1), (B, C)),
    "a number": ((), (A, C)),
    "axes that may be one": ((A, B), (C,)),
}
DOMAINS: Mapping[str, tuple[Make, ...]] = {
    "power": (positive, values),
    "sin": (values,),
    "cos": (values,),
    "gelu": (values,),
    "gelu_tanh": (values,),
    "silu": (values,),
    "hard_swish": (values,),
    "divide": (extreme,),
}
"""Elsewhere `extreme` goes for all operands. Gelu of minus infinity is NaN as written, and what a
power of extremes is, C and NumPy do not agree on."""
OFF: Mapping[str, float] = {
    "add": _ROUNDED_ONCE, "subtract": _ROUNDED_ONCE, "multiply": _ROUNDED_ONCE,
    "divide": _ROUNDED_ONCE, "sqrt": _ROUNDED_ONCE, "gelu": 16.0, "gelu_tanh": 16.0,
}  # fmt: skip


def _scalar_size(name: str) -> Callable[..., Any] | None:
    # Their small results come of a difference.
    return (lambda x: np.abs(x)) if name in ("gelu", "gelu_tanh") else None


def _scalar_cases(name: str) -> list[Case]:
    function = SCALAR_FUNCTIONS[name]
    found = []
    for dtype in DTYPES:
        kind = TENSOR_DTYPES[dtype].kind
        if kind not in function.kinds:
            continue
        makes = DOMAINS.get(name, (extreme,))
        if name == "power" and kind != "float":
            if dtype in ("int16", "int32", "int64"):
                continue  # Dozens of multiplications each, like those of the others.
            makes = (extreme, natural)
        off = OFF.get(name, 8.0)
        shapes: list[tuple[tuple[Dim, ...], ...]] = [((A, B, C),) * function.arity]
        if name in ("add", "equal") and dtype in ("float32", "int8"):
            shapes = list(_PAIRS.values())
        for pair in shapes:
            operands = tuple((dtype, shape) for shape in pair)
            extents = EXTENTS
            if pair == _PAIRS["axes that may be one"]:
                extents = tuple({**e, "C": n} for e in EXTENTS for n in {1, e["B"]})
            elif pair == _PAIRS["same"]:
                extents = (*EXTENTS, LARGE)
            found.append(Case(name, operands, {}, makes, off, _scalar_size(name), extents))
    return found


def _cast_cases() -> list[Case]:
    """Of numbers that the other dtype holds."""

    def within(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if dtype.kind == "f":
            return random.uniform(0, 100, shape).astype(dtype)
        return random.integers(0, 100, shape).astype(dtype)

    return [
        Case("cast", ((source, (B, C)),), {"to": TENSOR_DTYPES[target]},
             (lambda bindings: within,), _ROUNDED_ONCE)
        for source in DTYPES
        for target in DTYPES
        if target not in ("int16", "int32")
    ]  # fmt: skip


# Reductions.


def _total(x: Array, axes: tuple[int, ...]) -> Array:
    total: Array = np.sum(np.abs(x), axes)
    return total


def _reduce_cases() -> list[Case]:
    found = []
    for kind in ("sum", "product", "maximum", "minimum"):
        for dtype in ("float32", "float64", "int8", "int64", "uint64"):
            wide = dtype == "float32"
            every = ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2), ())
            for axes in every if wide else ((2,),):
                makes: tuple[Make, ...] = (near_one,) if kind == "product" else (values,)
                size: Any = None
                roundings = 8.0
                if kind in ("maximum", "minimum"):
                    makes = (extreme,)
                else:
                    roundings = 3.0 * LARGE["C"]
                    if kind == "sum":
                        size = lambda x, kind, axes: _total(x, axes)  # noqa: E731
                found.append(Case(
                    "reduce", ((dtype, (A, B, C)),), {"kind": kind, "axes": axes}, makes,
                    roundings, size, (*EXTENTS, LARGE) if axes == (2,) else EXTENTS,
                ))  # fmt: skip
    return found


def _arg_cases() -> list[Case]:
    """Among equal ones the first or the last; infinities among them."""

    def ties(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        found = random.integers(0, 5, shape).astype(dtype)
        if dtype.kind == "f":
            found[found == 0] = -np.inf
            found[found == 4] = np.inf
        return found

    some = tuple(e for e in EXTENTS if all(e.values()))
    return [
        Case("arg_reduce", ((dtype, (A, B, C)),), {"kind": kind, "axis": axis, "last": last},
             (lambda bindings: ties,), extents=some)
        for dtype in ("float32", "float64", "int8", "int64", "uint8", "uint64")
        for kind in ("argmax", "argmin")
        for axis in (0, 1, 2)
        for last in (False, True)
        if dtype in ("float32", "int64") or axis == 2
    ]  # fmt: skip


def _softmax_cases() -> list[Case]:
    return [
        Case("softmax", ((dtype, (A, B, C)),), {"axis": axis, "log": log}, (values,), 64.0,
             (lambda x, axis, log: 1 + np.abs(x) + np.max(np.abs(x), initial=0.0)) if log
             else (lambda x, axis, log: np.ones(1)), (*EXTENTS, LARGE))
        for dtype in ("float32", "float64")
        for axis in (0, 1, 2)
        for log in (False, True)
    ]  # fmt: skip


def _norm_cases() -> list[Case]:
    """Relative to the largest there can be, scaled and shifted."""
    found = []
    for dtype in ("float32", "float64"):
        for axis, parameters in ((2, 0), (2, 1), (2, 2), (1, 2)):
            for rms in (False, True):
                inner = (A, B, C)[axis:]
                found.append(Case(
                    "norm", ((dtype, (A, B, C)), *[(dtype, inner)] * parameters),
                    {"axis": axis, "epsilon": 1e-2, "rms": rms}, (values,), 64.0,
                    lambda x, *p, **kw: np.asarray(100.0 * math.prod(
                        1 + np.max(np.abs(q), initial=0.0) for q in (x, *p))),
                ))  # fmt: skip
    found.append(Case(
        "norm", (("float32", (B, C)), ("float32", (1,))),
        {"axis": 1, "epsilon": 1e-2, "rms": False}, (values,), 64.0,
        lambda x, p, **kw: np.asarray(1000.0),
    ))  # fmt: skip
    return found


def _matmul_cases() -> list[Case]:
    def sizes(x: Array, y: Array) -> Array:
        total: Array = np.matmul(np.abs(x), np.abs(y))
        return total

    return [
        Case("matmul", ((dtype, first), (dtype, second)), {}, (values,), 3.0 * 64, sizes)
        for dtype in ("float32", "float64", "int8", "int32", "uint8", "int64")
        for first, second in (((A, C), (C, B)), ((A, 1, B, C), (2, C, 3)), ((A, B, C), (C, A)))
        if dtype in ("float32", "int32") or first == (A, C)
    ]


# Layout and indices.


def _layout_cases() -> list[Case]:
    found = []
    whole = (A, B, C)
    for dtype in ("float32", "int64", "bool"):
        for perm in ((2, 0, 1), (1, 0, 2), (2, 1, 0)):
            found.append(Case("transpose", ((dtype, whole),), {"perm": perm}))
        for shape in ((B, 1), (C,), ()):
            found.append(Case("broadcast", ((dtype, shape),), {"shape": whole}))
        found += [
            Case("slice", ((dtype, whole),), {
                "starts": (0, 0, C - 1), "steps": (1, 1, -1), "shape": (A, B, C)}),
            Case("slice", ((dtype, (A, B + 2, 3 * C + 1)),), {
                "starts": (0, 1, 1), "steps": (1, 1, 3), "shape": (A, B, C)}),
            Case("tile", ((dtype, whole),), {"repeats": (1, 2, 3)}),
            Case("pad", ((dtype, whole), (dtype, ())), {
                "before": (0, 1, 2), "after": (1, 0, 3), "mode": "constant"}),
            Case("pad", ((dtype, (A, B, C + 3)), (dtype, ())), {
                "before": (1, 0, -1), "after": (0, C, -2), "mode": "constant"}),
        ]  # fmt: skip
    for mode in ("edge", "reflect", "wrap"):
        some = tuple(e for e in EXTENTS if all(e.values()))
        operand = ("int32", (A + 1, B + 2, C + 3))
        attributes = {"before": (0, 1, 2), "after": (1, 0, 3), "mode": mode}
        found.append(Case("pad", (operand,), attributes, extents=some))
    found += [
        Case("iota", (), {"shape": whole, "axis": axis}) for axis in (0, 1, 2)
    ]  # fmt: skip
    found.append(Case("dims", (), {"dims": (A, 3, B * C, minimum(A, B))}))
    found += [
        Case("where", (("bool", (A, 1, C)), (dtype, (B, C)), (dtype, (A, B, 1))), {}, (extreme,))
        for dtype in DTYPES
    ]
    for dtype in ("float32", "int64"):
        for axis in (0, 1, 2):
            for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
                found.append(Case(
                    "cumulative_sum", ((dtype, whole),),
                    {"axis": axis, "exclusive": exclusive, "reverse": reverse}, (values,), 256.0,
                    lambda x, axis, **kw: np.broadcast_to(
                        np.sum(np.abs(x), axis, keepdims=True), x.shape),
                ))  # fmt: skip
    return found


def _index_cases() -> list[Case]:
    found = []
    some = tuple(e for e in EXTENTS if all(e.values()))
    for dtype in ("float32", "int8"):
        for index in ("int64", "int32"):
            for axis in (0, 1, 2):
                n = (A, B, C)[axis]
                found.append(Case(
                    "gather", ((dtype, (A, B, C)), (index, (3, B))), {"axis": axis},
                    (values_of, below(n)), extents=(*some, LARGE),
                ))  # fmt: skip
                found.append(Case(
                    "gather_elements", ((dtype, (A, B, C)), (index, (A, B, C))), {"axis": axis},
                    (values_of, below(n)), extents=some,
                ))  # fmt: skip
    found += [
        Case("gather_nd", (("float32", (A, B, C)), ("int64", (C, 2))), {"batch_dims": 0},
             (values_of, below(minimum(A, B))), extents=some),
        Case("gather_nd", (("float32", (A, B, C)), ("int32", (A, 3, 1))), {"batch_dims": 1},
             (values_of, below(B)), extents=some),
    ]  # fmt: skip
    return found


def _rotary_cases() -> list[Case]:
    """Pairs along either of the last two axes, angles for each element and for each pair."""
    found = []
    for axis, shape, of_pairs in ((2, (A, B, 2, C), (B, 1, C)), (3, (A, B, C, 2), (B, C, 1))):
        for table in (of_pairs, shape):
            for dtype in ("float32", "float64"):
                operands = tuple((dtype, s) for s in (shape, table, table))
                found.append(
                    Case("rotary", operands, {"axis": axis}, (values,), 8.0, _size_of_turn)
                )
    return found


def _size_of_turn(x: Array, cosine: Array, sine: Array, axis: int) -> Array:
    size: Array = np.abs(x * cosine) + np.abs(np.flip(x, axis) * sine)
    return size


def values_of(bindings: Bindings) -> Make:
    return values


def _cases() -> dict[str, list[Case]]:
    """By operator; pytest runs each of them on each ISA."""
    found = {name: _scalar_cases(name) for name in SCALAR_FUNCTIONS}
    every = [
        *_cast_cases(), *_reduce_cases(), *_arg_cases(), *_softmax_cases(), *_norm_cases(),
        *_matmul_cases(), *_layout_cases(), *_index_cases(), *_rotary_cases(),
    ]  # fmt: skip
    for case in every:
        found.setdefault(case.op, []).append(case)
    return found


CASES = _cases()
