"""Every operator that has a definition, on every ISA of this machine, equals its reference.

Extents are symbols: each function is compiled once and runs at all extents. Outputs lie between
guards, tasks are run in two parts, and floats are compared in float64.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.ir as ir
import numpy as np
import numpy.typing as npt
import pytest
from tests.conftest import HOST_ISAS

from ftuner.codegen.llvm.jit import LoadedObject, compile_object, host_target
from ftuner.codegen.llvm.nest import emit_nest
from ftuner.core.affine import Kernel, kernel_of
from ftuner.core.dim import Dim, Symbolic, evaluate, minimum, symbol
from ftuner.core.dtype import INT64, TENSOR_DTYPES
from ftuner.core.scalar import SCALAR_FUNCTIONS
from ftuner.core.schedule import BLOCK, checks, operand_numbers, schedule_of, task_count
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


def values_of(bindings: Bindings) -> Make:
    return values


def _cases() -> dict[str, list[Case]]:
    """By operator; pytest runs each of them on each ISA."""
    found = {name: _scalar_cases(name) for name in SCALAR_FUNCTIONS}
    every = [
        *_cast_cases(), *_reduce_cases(), *_arg_cases(), *_softmax_cases(), *_norm_cases(),
        *_matmul_cases(), *_layout_cases(), *_index_cases(),
    ]  # fmt: skip
    for case in every:
        found.setdefault(case.op, []).append(case)
    return found


CASES = _cases()
WRITTEN_IN_PLACE = {"scatter_elements", "scatter_nd"}
"""Their kernels finish what a copy began: a test of their own."""


def test_every_operator_with_a_definition_is_here() -> None:
    defined = {name for name, operator in OPERATORS.items() if operator.define is not None}
    assert defined == set(CASES) | WRITTEN_IN_PLACE


@pytest.mark.filterwarnings("ignore:Mean of empty slice:RuntimeWarning")
@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("op", CASES)
def test_operator(op: str, isa: str) -> None:
    cases = CASES[op]
    functions = Functions(isa, [case.kernel() for case in cases])
    for number, case in enumerate(cases):
        for seed, bindings in enumerate(case.extents):
            check(functions, number, case, bindings, seed)


def check(functions: Functions, number: int, case: Case, bindings: Bindings, seed: int = 0) -> None:
    arrays = case.arrays(bindings, seed)
    (result,) = case.results()
    shape = tuple(evaluate(n, bindings) for n in result.shape)
    out = Guarded(shape, result.dtype.name)
    assert functions.run(number, arrays, [out.address], bindings) == 0
    assert out.untouched, f"{case} {bindings}"
    assert_equal(case, out.array, arrays, bindings)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_fixed_extents(isa: str) -> None:
    """Known extents become constants of the code."""
    cases = [
        Case("add", (("float32", (5, 1, 19)), ("float32", (3, 1)))),
        Case("transpose", (("float32", (4, 5, 37)),), {"perm": (2, 0, 1)}),
        Case("softmax", (("float32", (3, 31)),), {"axis": 1, "log": False}, (values,), 64.0,
             lambda x, **kw: np.ones(1)),
        Case("reduce", (("float32", (4, 0, 3)),), {"kind": "sum", "axes": (1,)}),
        Case("reduce", (("int32", (1, 1, 1)),), {"kind": "maximum", "axes": (0, 1, 2)}),
        Case("arg_reduce", (("float32", (7, 1)),), {"kind": "argmax", "axis": 1, "last": True}),
        Case("negative", (("int8", ()),)),
        Case("logical_not", (("bool", (131,)),)),
    ]  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])
    for number, case in enumerate(cases):
        check(functions, number, case, {})


# Scattering.


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("kind", ["none", "add", "multiply", "maximum", "minimum"])
def test_scatter(kind: str, isa: str) -> None:
    """Into a copy of the first operand, element by element: of equal indices the last decides."""
    cases = [
        Case("scatter_elements", ((dtype, (B, C)), ("int64", (A, C)), (dtype, (A, C))),
             {"axis": 0, "kind": kind}, (values_of, below(B), values_of))
        for dtype in ("float32", "int8", "uint64")
    ]  # fmt: skip
    cases.append(
        Case("scatter_nd", (("int32", (B, C, 3)), ("int32", (A, 2)), ("int32", (A, 3))),
             {"kind": kind}, (values_of, below(minimum(B, C)), values_of))
    )  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])
    for number, case in enumerate(cases):
        for bindings in ({"A": 7, "B": 5, "C": 11}, {"A": 1, "B": 1, "C": 1},
                         {"A": 0, "B": 2, "C": 3}):  # fmt: skip
            arrays = case.arrays(bindings, 3)
            out = Guarded(arrays[0].shape, arrays[0].dtype.name)
            out.array[...] = arrays[0]
            assert functions.run(number, arrays, [out.address], bindings) == 0
            assert out.untouched
            expected = OPERATORS[case.op].reference(*arrays, **case.attributes)
            assert np.allclose(out.array, expected, rtol=1e-5), case


# Indices out of range.


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_indices_out_of_range_are_told(isa: str) -> None:
    """The status says which check failed; all others are carried out, within the operand."""
    case = Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 0, "node": "here"})
    elements = Case("gather_elements", (("float32", (A, C)), ("int64", (A, C))),
                    {"axis": 1, "node": "there"})  # fmt: skip
    functions = Functions(isa, [case.kernel(), elements.kernel()])
    assert [checks(k) for k in functions.kernels] == [["here"], ["there"]]
    bindings = {"A": 5, "B": 9, "C": 37}
    x, indices = case.arrays(bindings, 0)
    for wrong in (5, -6, 2**62, -(2**63)):
        for position in (0, 4, 8):
            at = np.abs(indices) % 5
            at[position] = wrong
            out = Guarded((9, 37), "float32")
            assert functions.run(0, [x, at], [out.address], bindings) == 1
            right = np.arange(9) != position
            assert np.array_equal(out.array[right], x[at[right]])
            assert out.untouched
        along = np.zeros((5, 37), np.int64)
        along[3, 36] = wrong if abs(wrong) > 6 else 37
        out = Guarded((5, 37), "float32")
        assert functions.run(1, [x, along], [out.address], bindings) == 1
        assert functions.run(1, [x, along * 0 - 37], [out.address], bindings) == 0
        assert np.array_equal(out.array, np.repeat(x[:, :1], 37, 1))


# Corners of single functions.


def run_one(case: Case, isa: str, arrays: Sequence[Array]) -> Array:
    (result,) = case.results()
    shape = tuple(evaluate(n, {}) for n in result.shape)
    out = Guarded(shape, result.dtype.name)
    functions = Functions(isa, [case.kernel()])
    assert functions.run(0, list(arrays), [out.address], {}) == 0
    assert out.untouched
    return out.array


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("target", ["int8", "int32", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_that_no_integer_holds_become_the_nearest(
    source: str, target: str, isa: str
) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 127.9, -0.5, 3.99] * 5, source)
    case = Case("cast", ((source, x.shape),), {"to": TENSOR_DTYPES[target]})
    info = np.iinfo(np.dtype(target))
    nearest = [0, info.max, info.min, info.max, info.min, 127, 0, 3] * 5
    assert run_one(case, isa, [x]).tolist() == nearest


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("op", ["divide", "remainder", "fmod"])
def test_integer_quotients_at_the_ends(op: str, isa: str) -> None:
    """All pairs of int8 and of uint8: no zero and no overflow traps."""
    for dtype in ("int8", "uint8"):
        every = np.arange(256, dtype=np.uint8).view(dtype)
        x, y = np.repeat(every, 256), np.tile(every, 256)
        found = run_one(Case(op, ((dtype, x.shape), (dtype, y.shape))), isa, [x, y])
        with np.errstate(all="ignore"):
            assert np.array_equal(found, OPERATORS[op].reference(x, y))


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_powers_of_unsigned_integers(isa: str) -> None:
    """No exponent of theirs is negative."""
    every = np.arange(256, dtype=np.uint8)
    x, y = np.repeat(every, 256), np.tile(every, 256)
    found = run_one(Case("power", (("uint8", x.shape), ("uint8", y.shape))), isa, [x, y])
    assert np.array_equal(found, np.power(x, y))


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_tiny_and_huge_numbers(dtype: str, isa: str) -> None:
    """The product of a remainder and its divisor may underflow or overflow."""
    tiny, huge = float(np.finfo(dtype).tiny), float(np.finfo(dtype).max) / 2
    sizes = np.array([tiny, 3 * tiny, 1.0, 2.5, huge, np.inf], dtype)
    every = np.concatenate([sizes, -sizes])
    x, y = np.repeat(every, len(every)), np.tile(every, len(every))
    found = run_one(Case("remainder", ((dtype, x.shape), (dtype, y.shape))), isa, [x, y])
    with np.errstate(all="ignore"):
        assert np.array_equal(found, np.mod(x, y), equal_nan=True)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_any_byte_but_zero_is_true(isa: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(bool)
    found = run_one(Case("logical_not", (("bool", x.shape),)), isa, [x])
    assert found.view(np.uint8).tolist() == [1] + [0] * 255


@pytest.mark.parametrize("isa", HOST_ISAS)
@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_one_nan_is_the_extremum(kind: str, isa: str) -> None:
    case = Case("reduce", (("float32", (37, 37)),), {"kind": kind, "axes": (1,)})
    x = np.zeros((37, 37), np.float32)
    np.fill_diagonal(x, np.nan)
    assert np.isnan(run_one(case, isa, [x])).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("isa", HOST_ISAS)
def test_nothing_behind_an_operand_is_read(isa: str) -> None:
    """Operands and results end where a page ends; nobody may touch the next one. In a child,
    because who does ends there."""
    cases = [
        Case("add", (("float32", (C,)), ("float32", (C,)))),
        Case("logical_not", (("bool", (C,)),)),
        Case("cast", (("int8", (C,)),), {"to": TENSOR_DTYPES["float64"]}),
        Case("reduce", (("float32", (A, C)),), {"kind": "sum", "axes": (1,)}, roundings=256.0),
        Case("transpose", (("float32", (A, C)),), {"perm": (1, 0)}),
        Case("softmax", (("float64", (A, C)),), {"axis": 1, "log": False}, roundings=64.0),
        Case("gather", (("float32", (A, C)), ("int64", (B,))), {"axis": 1},
             (values_of, below(C))),
        Case("slice", (("float32", (A, C)),), {
            "starts": (0, C - 1), "steps": (1, -1), "shape": (A, C)}),
        Case("pad", (("float32", (C,)), ("float32", ())), {
            "before": (3,), "after": (2,), "mode": "constant"}),
    ]  # fmt: skip
    functions = Functions(isa, [case.kernel() for case in cases])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number, case in enumerate(cases):
                for c in (1, 3, 15, 16, 17, 63):
                    bindings = {"A": 3, "B": 5, "C": c}
                    arrays = [_before_a_wall(x) for x in case.arrays(bindings, c)]
                    shape = tuple(evaluate(n, bindings) for n in case.results()[0].shape)
                    out = _before_a_wall(np.zeros(shape, case.results()[0].dtype.name))
                    assert functions.run(number, arrays, [out.ctypes.data], bindings) == 0
                    assert_equal(case, out, arrays, bindings)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


_WALLS: list[mmap.mmap] = []


def _before_a_wall(x: Array) -> Array:
    """A copy that ends where memory ends."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page or page
    memory = mmap.mmap(-1, size + page)
    _WALLS.append(memory)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    wall = ctypes.c_void_p(int(whole.ctypes.data) + size)
    assert libc.mprotect(wall, ctypes.c_size_t(page), 0) == 0
    found: Array = whole[size - x.nbytes : size].view(x.dtype).reshape(x.shape)
    found[...] = x
    return found


# Schedules: what is walked by vectors.

_FLOATS: tuple[tuple[Any, Any, Any], ...] = (
    # Kernel, vector axis, lanes of 64 bytes.
    (Case("add", (("float32", (A, B, C)), ("float32", (A, B, C)))), 0, 16),
    (Case("add", (("float32", (A, B, C)), ("float32", (C,)))), 1, 16),
    (Case("cast", (("int8", (C,)),), {"to": INT64}), 0, 8),
    (Case("cast", (("int64", (C,)),), {"to": TENSOR_DTYPES["float32"]}), 0, 16),
    (Case("logical_not", (("bool", (C,)),)), 0, 64),
    (Case("reduce", (("float32", (B, C)),), {"kind": "sum", "axes": (1,)}), 1, 16),
    (Case("reduce", (("float32", (B, C)),), {"kind": "sum", "axes": (0,)}), 0, 16),
    (Case("arg_reduce", (("float32", (B, C)),), {"kind": "argmax", "axis": 1, "last": False}),
     None, 8),
    (Case("scatter_nd", (("float32", (B,)), ("int64", (A, 1)), ("float32", (A,))),
          {"kind": "none"}), None, 1),
)  # fmt: skip


@pytest.mark.parametrize(("case", "vector", "lanes"), _FLOATS)
def test_schedules(case: Case, vector: int | None, lanes: int) -> None:
    schedule = schedule_of(case.kernel(), 64)
    assert schedule.vector == vector
    if vector is not None:
        assert schedule.lanes == lanes


def test_tasks_are_blocks_of_the_only_axis() -> None:
    kernel = Case("negative", (("float32", (A, B)),)).kernel()
    tasks = task_count(kernel, schedule_of(kernel, 64))
    for elements, count in ((0, 0), (1, 1), (BLOCK, 1), (BLOCK + 1, 2)):
        assert evaluate(tasks, {"A": elements, "B": 1}) == count
