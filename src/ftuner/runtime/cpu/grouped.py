"""`grouped_matmul`: products of many pairs of matrices, each pair with its own extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftuner.runtime.cpu.arrays import (
    Array,
    as_array,
    dtype_of,
    given_back,
    lying_like,
    span_of,
    writable,
)
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.ops.operands import Groups, Range, crossing, product_extents, same_dtype


class GroupedMatmul:
    """Grouped products of a session, computed one after the other, each by all threads."""

    def __init__(self, matmul: Matmul) -> None:
        self._matmul = matmul

    def __call__(self, groups: Groups) -> list[Any]:
        """`ftuner.grouped_matmul`, of arrays and tensors."""
        a = [as_array(x, f"a[{i}]") for i, x in enumerate(groups.a)]
        b = [as_array(x, f"b[{i}]") for i, x in enumerate(groups.b)]
        for name, arrays in (("a", a), ("b", b)):
            for i, x in enumerate(arrays):
                dtype_of(x, f"{name}[{i}]")
                same_dtype(a[0], x, f"{name}[{i}]")
        results: list[Array | None] = [None] * len(a)
        if groups.out is not None:
            results = [writable(x, f"out[{i}]") for i, x in enumerate(groups.out)]
        for i, (x, y, z) in enumerate(zip(a, b, results, strict=True)):
            product_extents(i, x.shape, y.shape, None if z is None else z.shape)
            if z is not None:
                same_dtype(x, z, f"out[{i}]")
        made = self._run(a, b, results)
        outs = groups.out or [None] * len(a)
        return [
            given_back(z, out, x, y)
            for z, out, x, y in zip(made, outs, groups.a, groups.b, strict=True)
        ]

    def _run(
        self, a: Sequence[Array], b: Sequence[Array], given: Sequence[Array | None]
    ) -> list[Array]:
        """The products of checked operands, written to results where these are given."""
        results = [
            allocated((x.shape[0], y.shape[1]), x.dtype) if z is None else z
            for x, y, z in zip(a, b, given, strict=True)
        ]
        # No group may read what another one has written.
        late = crossing([_range(z) for z in results], [_range(x) for x in (*a, *b)])
        targets = [lying_like(z) if apart else z for z, apart in zip(results, late, strict=True)]
        for x, y, target in zip(a, b, targets, strict=True):
            self._matmul(x, y, target)
        for z, target in zip(results, targets, strict=True):
            if target is not z:
                z[...] = target
        return results


def _range(array: Array) -> Range:
    """The lowest and the highest address of an array; strides may have any sign."""
    first = int(array.__array_interface__["data"][0])
    low, high = span_of(array)
    return first + low, first + high
