"""Every operator that has a definition, as cases for the general schedule."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tests.codegen.llvm.nest_running import (
    DTYPES,
    EXTENTS,
    LARGE,
    SOME,
    A,
    Array,
    B,
    Bindings,
    C,
    Case,
    Make,
    below,
    extreme,
    natural,
    near_one,
    positive,
    values,
    values_of,
)
from tests.codegen.llvm.window_cases import window_cases

from ftuner.core.dim import Dim, minimum
from ftuner.core.dtype import FLOAT32, FLOAT64, TENSOR_DTYPES
from ftuner.core.functions import SCALAR_FUNCTIONS
from ftuner.graph.operators import OPERATORS

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
    "swish": (extreme, positive),
    "divide": (extreme,),
    "shift_left": (extreme, natural),
    "shift_right": (extreme, natural),
}
"""Elsewhere `extreme` goes for all operands. What a power of extremes is, C and NumPy do not agree
on, and swish has a range of slopes."""
OFF: Mapping[str, float] = {
    "add": _ROUNDED_ONCE, "subtract": _ROUNDED_ONCE, "multiply": _ROUNDED_ONCE,
    "divide": _ROUNDED_ONCE, "sqrt": _ROUNDED_ONCE,
}  # fmt: skip


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
            found.append(Case(name, operands, {}, makes, off, None, extents))
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


def _bit_cast_cases() -> list[Case]:
    """Between all dtypes of one size, of any bits but those of a NaN that signals."""
    return [
        Case("bit_cast", ((of.name, (B, C)),), {"of": of, "to": to}, (extreme,))
        for of in TENSOR_DTYPES.values()
        for to in TENSOR_DTYPES.values()
        if of != to and of.itemsize == to.itemsize
    ]


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
    """Among equal ones the first or the last; infinities among them, and NaN, which is both the
    largest and the smallest."""

    def ties(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        found = random.integers(0, 5, shape).astype(dtype)
        if dtype.kind == "f":
            found[found == 0] = -np.inf
            found[found == 4] = np.inf
        return found

    def with_nan(
        random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        found = ties(random, shape, dtype)
        found[random.random(shape) < 0.1] = np.nan
        return found

    return [
        Case("arg_reduce", ((dtype, (A, B, C)),), {"kind": kind, "axis": axis, "last": last},
             (lambda bindings, make=make: make,), extents=SOME)
        for dtype in ("float32", "float64", "int8", "int64", "uint8", "uint64")
        for kind in ("argmax", "argmin")
        for axis in (0, 1, 2)
        for last in (False, True)
        for make in ((ties, with_nan) if dtype.startswith("float") else (ties,))
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
        for few in (2, 3, 4):
            found.append(Case("transpose", ((dtype, (A, few, C)),), {"perm": (0, 2, 1)}))
            found.append(Case("transpose", ((dtype, (few, C)),), {"perm": (1, 0)}))
        for shape in ((B, 1), (C,), ()):
            found.append(Case("broadcast", ((dtype, shape),), {"shape": whole}))
        found += [
            Case("slice", ((dtype, whole),), {
                "starts": (0, 0, C - 1), "steps": (1, 1, -1), "shape": (A, B, C)}),
            Case("slice", ((dtype, (A, B + 2, 3 * C + 1)),), {
                "starts": (0, 1, 1), "steps": (1, 1, 3), "shape": (A, B, C)}),
            Case("slice", ((dtype, (A, B, 4 * C)),), {
                "starts": (0, 0, 4 * C - 1), "steps": (1, 1, -4), "shape": (A, B, C)}),
            Case("slice", ((dtype, (A, B, 2 * C)),), {
                "starts": (0, 0, 1), "steps": (1, 1, 2), "shape": (A, B, C)}),
            Case("tile", ((dtype, whole),), {"repeats": (1, 2, 3)}),
            *(Case("repeat", ((dtype, whole),), {"repeats": (1, 2, n)}) for n in (2, 1, 3, 5)),
            Case("pad", ((dtype, whole), (dtype, ())), {
                "before": (0, 1, 2), "after": (1, 0, 3), "mode": "constant"}),
            Case("pad", ((dtype, (A, B, C + 3)), (dtype, ())), {
                "before": (1, 0, -1), "after": (0, C, -2), "mode": "constant"}),
        ]  # fmt: skip
    for mode in ("edge", "reflect", "wrap"):
        operand = ("int32", (A + 1, B + 2, C + 3))
        attributes = {"before": (0, 1, 2), "after": (1, 0, 3), "mode": mode}
        found.append(Case("pad", (operand,), attributes, extents=SOME))
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
                found.append(Case(
                    "cumulative_product", ((dtype, whole),),
                    {"axis": axis, "exclusive": exclusive, "reverse": reverse}, (near_one,), 256.0,
                ))  # fmt: skip
    return found


def _index_cases() -> list[Case]:
    found = []
    for dtype in ("float32", "int8"):
        for index in ("int64", "int32"):
            for axis in (0, 1, 2):
                n = (A, B, C)[axis]
                found.append(Case(
                    "gather", ((dtype, (A, B, C)), (index, (3, B))), {"axis": axis},
                    (values_of, below(n)), extents=(*SOME, LARGE),
                ))  # fmt: skip
                found.append(Case(
                    "gather_elements", ((dtype, (A, B, C)), (index, (A, B, C))), {"axis": axis},
                    (values_of, below(n)), extents=SOME,
                ))  # fmt: skip
    found += [
        Case("gather_nd", (("float32", (A, B, C)), ("int64", (C, 2))), {"batch_dims": 0},
             (values_of, below(minimum(A, B))), extents=SOME),
        Case("gather_nd", (("float32", (A, B, C)), ("int32", (A, 3, 1))), {"batch_dims": 1},
             (values_of, below(B)), extents=SOME),
        # Along the axes: what data says, twice and beyond both ends, and reversed.
        Case("read", (("float32", (A, B, C)), ("int64", (A, 1))),
             {"shape": (A, C), "starts": (0, -2, C - 1), "steps": (0, 0, 2, 1, 0, -1),
              "chosen": (0,), "inside": (), "padded": (1,)},
             (values_of, below(A)), extents=SOME),
    ]  # fmt: skip
    return found


def _expert_cases() -> list[Case]:
    """B tokens with C experts each, of A experts."""

    def magnitude(x: Any, weight: Any, index: Any, *bias: Any, **attributes: Any) -> Any:
        reference = OPERATORS["expert_matmul"].reference
        experts = index.astype(np.int64)
        return reference(abs(x), abs(weight), experts, *map(abs, bias), **attributes)

    found = []
    for dtype in ("float32", "float64"):
        for transposed in (False, True):
            weight = (A, 5, 7) if transposed else (A, 7, 5)
            operands = ((dtype, (B, 7)), (dtype, weight), ("int64", (B, C)), (dtype, (A, 5)))
            found += [
                Case(
                    "expert_matmul", operands[:count], {"transposed": transposed},
                    (values_of, values_of, below(A), values_of), 64.0, magnitude, SOME,
                )
                for count in (3, 4)
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


def _random_cases() -> list[Case]:
    """Of any stream, and of the least and the most digits that numbers have."""

    def words(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        high = np.iinfo(dtype).max if dtype.kind == "u" else 1 << 40
        return random.integers(0, high, shape, dtype, endpoint=True)

    makes: tuple[Callable[..., Make], ...] = (lambda bindings: words,)
    stream, key = (("uint64", ()),), (("uint64", (2,)),)
    found = [
        Case("random_stream", key, {"number": number, "seed": seed}, makes)
        for number, seed in ((0, None), (3, 0), (2**32 + 5, 2**64 - 1))
    ]
    found.append(Case("random_key", (*key, ("int64", ())), {"number": 7}, makes))
    for dtype, digits in ((FLOAT32, 8), (FLOAT32, 24), (FLOAT64, 53)):
        for shape in ((), (A, B, C), (A, 1, C, 1)):
            extents = (*EXTENTS, LARGE) if dtype == FLOAT32 else EXTENTS
            given = {"dtype": dtype, "shape": shape}
            attributes = given | {"digits": digits}
            found.append(Case("random_uniform", stream, attributes, makes, 0, None, extents))
            if digits > 8:
                found.append(Case("random_normal", stream, given, makes, 8.0, None, extents))
    return found


def _look_up_cases() -> list[Case]:
    def every_byte(random: np.random.Generator, shape: Any, dtype: np.dtype[Any]) -> Array:
        return random.integers(0, 256, shape).astype(dtype)

    def of_table(bindings: Bindings) -> Make:
        return every_byte

    shapes: tuple[tuple[Dim, ...], ...] = ((A, B, C), (C,), ())
    return [
        Case("look_up", ((dtype, (256,)), ("uint8", shape)), {}, (of_table,), extents=extents)
        for dtype, extents in (("uint8", (*EXTENTS, LARGE)), ("int8", EXTENTS))
        for shape in shapes
    ] + [Case("look_up", (("float32", (256,)), ("uint8", (A, B, C))), {}, (values, of_table))]


def _cases() -> dict[str, list[Case]]:
    """By operator; pytest runs each of them on each ISA."""
    found = {name: _scalar_cases(name) for name in SCALAR_FUNCTIONS}
    every = [
        *_cast_cases(), *_bit_cast_cases(), *_reduce_cases(), *_arg_cases(), *_softmax_cases(),
        *_norm_cases(), *_matmul_cases(), *_layout_cases(), *_index_cases(), *_rotary_cases(),
        *_expert_cases(), *_random_cases(), *_look_up_cases(), *window_cases(),
    ]  # fmt: skip
    for case in every:
        found.setdefault(case.op, []).append(case)
    return found


CASES = _cases()
