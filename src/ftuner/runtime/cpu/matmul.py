"""`matmul`: products of arrays of any shape and strides, with nothing packed beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ftuner.core.product import product_types
from ftuner.errors import ShapeError
from ftuner.runtime.cpu.arrays import (
    Array,
    any_tensor,
    as_array,
    dtype_of,
    given_back,
    lying_like,
    readable,
    writable,
)
from ftuner.runtime.cpu.call_cache import KnownCalls
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.cpu.operands import step_problem, unit_columns
from ftuner.runtime.cpu.products import Products, Ready
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.ops.operands import check_out, overlaps_itself, product_shapes, same_dtype


class Matmul:
    """Matrix products of a session."""

    def __init__(self, session: CpuSession) -> None:
        self._session = session
        self._known = KnownCalls(session, inputs=2)

    def __call__(
        self, a: object, b: object, out: object | None = None, accumulate: bool = False
    ) -> Any:
        """`ftuner.matmul`, of arrays and tensors."""
        found = None
        if not accumulate:
            try:
                found = self._known.call(a, b, out)
            except MemoryError:
                # What can be done without a record says what is lacking.
                found = None
        if found is not None and found is not False:
            return found
        if any_tensor(a, b, out):
            target = None if out is None else writable(out)
            result = self(as_array(a, "a"), as_array(b, "b"), target, accumulate)
            return given_back(result, out, a, b)
        return self._general(a, b, out, accumulate, found is False)

    def _general(
        self, a_given: object, b_given: object, out: object | None, accumulate: bool, remember: bool
    ) -> Any:
        a, b = as_array(a_given, "a"), as_array(b_given, "b")
        dtype_of(a, "a")
        dtype_of(b, "b")
        same_dtype(a, b, "b")
        full, shape = product_shapes(a.shape, b.shape)
        a2 = a[np.newaxis, :] if a.ndim == 1 else a
        b2 = b[:, np.newaxis] if b.ndim == 1 else b
        if out is None:
            if accumulate:
                raise ShapeError("accumulate needs an out to add to")
            result = as_array(allocated(shape, a.dtype), "out")
            target = result.reshape(full)
        else:
            result = writable(out)
            check_out(result, shape, a, b)
            target = result
            if b.ndim == 1:
                target = target[..., np.newaxis]
            if a.ndim == 1:
                target = target[..., np.newaxis, :]
        if result.size:
            ran = self._into(readable(a2), readable(b2), target, accumulate)
            if ran is not None and remember:
                self._known.remember((a, b), result, out is None, *ran)
        return result

    def _into(
        self, a: Array, b: Array, c: Array, accumulate: bool
    ) -> tuple[Products, Ready] | None:
        """Write the product of arrays of two axes or more to `c`, which may have any strides.
        Returns the plan if the arrays were multiplied in place, as one product."""
        if not unit_columns(c) and c.strides[-2] == c.itemsize:
            # C is transposed: compute the transposed product.
            self._into(b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2), accumulate)
            return None
        shared = np.may_share_memory(c, a) or np.may_share_memory(c, b)
        fits = unit_columns(c) and not overlaps_itself(c.shape, c.strides, c.itemsize)
        if fits and c.flags.aligned and not shared:
            return self._run(a, b, c, accumulate)
        # The address of C decides neither the plan nor the bits of the result.
        whole = lying_like(c) if fits else np.empty(c.shape, c.dtype)
        if accumulate:
            whole[...] = c
        self._run(a, b, whole, accumulate)
        c[...] = whole
        return None

    def _run(self, a: Array, b: Array, c: Array, accumulate: bool) -> tuple[Products, Ready]:
        dtype = dtype_of(a, "a")
        products = self._session.products(product_types(dtype))
        if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and c.flags.c_contiguous:
            rows = math.prod(c.shape[:-1])
            a, c = a.reshape(rows, a.shape[-1]), c.reshape(rows, c.shape[-1])
        hardware, workers = products.compiled.library.hardware, self._session.threads
        problem, strides = step_problem(a, b, c, (), 0, workers, hardware, accumulate)
        ready = products.ready(problem, strides)
        products.run(ready, a, b, c)
        return products, ready
