"""Operators with windows and resampling, as cases for the general schedule."""

from typing import Any

import numpy as np
from tests.codegen.llvm.nest_running import SOME, A, Array, B, C, Case, extreme, values

from ftuner.core.dim import Dim, Shape
from ftuner.graph.operators import OPERATORS
from ftuner.graph.ops.windows import ARGMAX


def _window(
    strides: tuple[int, ...], dilations: tuple[int, ...], begin: Shape, extents: Shape
) -> dict[str, Any]:
    return {"strides": strides, "dilations": dilations, "begin": begin, "extents": extents}


def sums_of(op: str) -> Any:
    """The sums of the magnitudes of what is added up."""

    def size(*arrays: Array, **attributes: Any) -> Array:
        # Positions are not negative where they matter: they are taken to the nearest element.
        magnitudes = [np.abs(x) if x.dtype.kind == "f" else x for x in arrays]
        found: Array = OPERATORS[op].reference(*magnitudes, **attributes)
        return found

    return size


_CONVOLUTIONS: tuple[tuple[Shape, Shape, int, dict[str, Any]], ...] = (
    # Strided, with padding on both sides.
    ((A, C, 6), (3, 6, B), 1, _window((2,), (1,), (1,), ((C + 1) // 2,))),
    # Dilated, of two axes, with padding that differs.
    ((A, B, C, 4), (2, 3, 4, 5), 1, _window((1, 2), (2, 1), (1, 2), (B + 1, (C + 2) // 2))),
    # In groups, without padding.
    ((A, C + 2, 6), (3, 2, 9), 3, _window((1,), (1,), (0,), (C,))),
    # Depthwise.
    ((A, B, 8), (3, 1, 8), 8, _window((1,), (1,), (1,), (B,))),
    # Of three axes; padding that is cut off.
    ((A, 3, B + 2, C, 2), (2, 2, 1, 2, 3), 1,
     _window((1, 1, 2), (1, 1, 1), (0, -1, 0), (2, B, (C + 1) // 2))),
)  # fmt: skip
"""Shapes of x and of the weight, groups, and the other attributes."""
_POOLS: tuple[tuple[Shape, tuple[Dim, ...], dict[str, Any]], ...] = (
    ((A, B, C), (3,), _window((2,), (1,), (1,), ((B + 1) // 2,))),
    ((A, B + 1, C + 2, 5), (2, 3), _window((1, 2), (1, 1), (0, 0), (B, (C + 1) // 2))),
    ((A, C, B, 3), (2, 2), _window((1, 1), (2, 1), (1, 1), (C, B))),
    # Of one channel, along rows: strides up to four are whole vectors of memory, apart.
    ((A, B, C, 1), (3, 3), _window((1, 1), (1, 1), (1, 1), (B, C))),
    ((A, B, 4 * C, 1), (1, 5), _window((1, 4), (1, 1), (0, 2), (B, C))),
    ((A, B, 5 * C, 1), (2, 3), _window((1, 5), (1, 2), (1, 1), (B, C))),
)
_RESAMPLED: tuple[tuple[tuple[int, ...], tuple[Shape, ...]], ...] = (
    # The axes, and the shapes of their tables: few taps are written out, more are a loop.
    ((1,), ((1, 2 * B),)),
    ((1, 2), ((2, 3), (2, C))),
    ((2, 0), ((3, C + 1), (4, A))),
    ((1,), ((A, B),)),
)


def window_cases() -> list[Case]:
    """Cases of `convolution`, `window_reduce` and `resample`."""
    return [*_convolutions(), *_reductions(), *_resamplings()]


def _convolutions() -> list[Case]:
    return [
        Case("convolution", ((dtype, x), (dtype, w)), {**attributes, "groups": groups}, (values,),
             128.0, sums_of("convolution"))
        for x, w, groups, attributes in _CONVOLUTIONS
        for dtype in ("float32", "float64")
    ]  # fmt: skip


def _reductions() -> list[Case]:
    """All kinds of float32, and of other dtypes in turns."""
    found = []
    kinds = ("sum", "maximum", "minimum", ARGMAX)
    for pool, (x, kernel, attributes) in enumerate(_POOLS):
        for turn, dtype in enumerate(("float32", "float64", "int8", "int64", "uint8")):
            for kind in kinds if dtype == "float32" else kinds[(pool + turn) % len(kinds) :][:1]:
                sums = kind == "sum"
                found.append(Case(
                    "window_reduce", ((dtype, x),), {**attributes, "kind": kind, "kernel": kernel},
                    (values,) if sums else (extreme,), 32.0,
                    sums_of("window_reduce") if sums else None,
                ))  # fmt: skip
    return found


def _resamplings() -> list[Case]:
    """Positions are any integers, some of them outside."""
    found = []
    for axes, tables in _RESAMPLED:
        for dtype in ("float32", "float64", "int64"):
            positions = tuple(("int64", table) for table in tables)
            weights = tuple((dtype, table) for table in tables)
            for operands in (positions, positions + weights):
                if dtype == "int64" and operands != positions:
                    continue
                found.append(Case(
                    "resample", ((dtype, (A, B, C)), *operands), {"axes": axes}, (values,), 64.0,
                    sums_of("resample"), SOME,
                ))  # fmt: skip
    found.append(Case("resample", (("bool", (A, B, C)), ("int64", (1, C))), {"axes": (2,)},
                      (values,), extents=SOME))  # fmt: skip
    return found
