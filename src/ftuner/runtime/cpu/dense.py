"""`Dense`: a layer with a constant weight, packed once, and an epilogue fused into its stores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from ftuner.core.cpu.common_epilogue import LIMITS, shared
from ftuner.core.cpu.tile import COLUMN
from ftuner.core.expr import operands
from ftuner.core.given import checked_integer
from ftuner.core.product import product_types
from ftuner.errors import ConfigurationError, ShapeError
from ftuner.planner.cpu.plan import Problem
from ftuner.planner.cpu.planner import best_width
from ftuner.runtime.cpu.arrays import (
    Array,
    any_tensor,
    as_array,
    dtype_of,
    given_back,
    readable,
    writable,
)
from ftuner.runtime.cpu.call_cache import Constant, KnownCalls
from ftuner.runtime.cpu.memory import allocated
from ftuner.runtime.cpu.operands import a_layout, unit_columns
from ftuner.runtime.cpu.packed_weights import pack, unpacked
from ftuner.runtime.cpu.plan_records import Strides
from ftuner.runtime.cpu.products import Products, Ready, Words, words
from ftuner.runtime.cpu.session import CpuSession
from ftuner.runtime.ops.layer import Activation, Layer
from ftuner.runtime.ops.operands import overlaps_itself, same_dtype


class Dense(Layer):
    """A layer of NumPy arrays, and of tensors in the CPU's memory. The weight is packed at
    construction, with the panel width that has the best estimate over a range of row counts. A call
    compiles, packs and measures nothing."""

    def __init__(
        self,
        weight: object,
        bias: object | None = None,
        activation: Activation = None,
        residual: bool = False,
        *,
        width: SupportsIndex | None = None,
        session: CpuSession,
    ) -> None:
        """Pack a weight and make the layer's uKernels ready; see `ftuner.Dense`."""
        w = as_array(weight, "weight")
        dtype = dtype_of(w, "weight")
        self._session = session
        self._bias: Array | None = None
        if bias is not None:
            given = as_array(bias, "bias")
            same_dtype(w, given, "bias")
            self._bias = np.array(given, copy=True)
        self._describe(w, None if self._bias is None else self._bias.shape, activation, residual)
        self._names = tuple(operand.name for operand in operands(self.epilogue))
        self._shared = shared(self.epilogue)
        limits = [np.full(1, limit, w.dtype) for limit in self._shared.limits]
        self._limits = dict(enumerate(limits, LIMITS))
        """By their places."""
        self.products: Products = session.products(product_types(dtype), self._shared.epilogue)
        known = self.products.compiled.library.widths
        if width is not None:
            expected = f"one of this machine's library, {known}"
            width = checked_integer(width, "width", 1, None, ConfigurationError, expected)
            if width not in known:
                raise ConfigurationError(f"width is {width}; expected {expected}")
        else:
            n, k = w.shape
            width = best_width(self.products.planner, n, k, session.threads)
        self.panels = pack(self.products, w, width)
        self.bias_words = self._words([] if self._bias is None else [self._bias])
        owner = (self._bias, self._limits, self.bias_words)
        self._constant = Constant(self.panels.packed, self.bias_words.address, owner)
        self._known = KnownCalls(session, inputs=1)

    def weights(self) -> tuple[Array, Array | None]:
        lanes = self.products.compiled.library.lanes
        bias = None if self._bias is None else self._bias.copy()
        return unpacked(self.panels, lanes), bias

    def problem(self, rows: int) -> Problem:
        """The problem of `rows` contiguous rows."""
        return self.panels.problem(rows, self._session.threads)

    def __call__(self, x: object, residual: object | None = None, out: object | None = None) -> Any:
        found: Array | bool | None = None
        if residual is None:
            try:
                found = self._known.call(x, out)
            except MemoryError:
                # What can be done without a record says what is lacking.
                found = None
        if found is not None and not isinstance(found, bool):
            return found
        if any_tensor(x, residual, out):
            added = None if residual is None else as_array(residual, "residual")
            result = self(as_array(x, "x"), added, None if out is None else writable(out))
            return given_back(result, out, x, residual)
        return self._general(x, residual, out, found is False)

    def _words(self, arrays: Sequence[Array]) -> Words:
        """Returns the words of the limits and of the arrays that are given for operands."""
        return words(self._limits | dict(zip(self._shared.places, arrays, strict=False)))

    def _general(
        self, x_given: object, residual_given: object | None, out: object | None, remember: bool
    ) -> Array:
        x = as_array(x_given, "x")
        dtype_of(x, "x")
        shape = self._result_shape(x, residual_given is not None)
        residual = None
        if residual_given is not None:
            residual = as_array(residual_given, "residual")
            same_dtype(x, residual, "residual")
            if residual.shape != shape:
                raise ShapeError(f"residual is {residual.shape}; expected {shape}")
        if out is None:
            result = allocated(shape, self.dtype)
        else:
            result = writable(out)
            self._check_out(result, shape)
        if result.size:
            ready = self._into(readable(x), residual, result)
            if ready is not None and remember:
                is_made = out is None
                self._known.remember([x], result, is_made, self.products, ready, self._constant)
        return result

    def _into(self, x: Array, residual: Array | None, y: Array) -> Ready | None:
        """Write the layer's product to `y`, through a new array where `y` cannot be written
        directly. Returns the plan if the arrays were multiplied in place, as one product."""
        rows = _as_matrix(x)
        target = _as_matrix_view(y)
        overlapping = [x, *([residual] if residual is not None else [])]
        if (
            target is None
            or not unit_columns(target)
            or not y.flags.aligned
            or overlaps_itself(y.shape, y.strides, y.itemsize)
            or any(np.may_share_memory(y, other) for other in overlapping)
        ):
            fresh = np.empty(y.shape, y.dtype)
            self._into(x, residual, fresh)
            y[...] = fresh
            return None
        hardware = self.products.compiled.library.hardware
        layout = a_layout(rows, self.out_features, hardware)
        a_row, a_k = rows.strides
        if layout.layout == COLUMN and not layout.must_pack:
            a_row = rows.itemsize
        arrays, steps = [], []
        for name in self._names:
            if name == "bias":
                assert self._bias is not None
                arrays.append(self._bias)
                steps.append(0)
            else:
                assert residual is not None
                matrix = _as_matrix(readable(residual))
                if not unit_columns(matrix):
                    matrix = matrix.copy()
                arrays.append(matrix)
                steps.append(matrix.strides[0])
        problem = self.panels.problem(
            rows.shape[0], self._session.threads, layout.layout, layout.must_pack
        )
        placed = self._shared.placed(steps)
        strides = Strides(a_row, a_k, 0, 0, target.strides[0], (), placed, False)
        ready = self.products.ready(problem, strides)
        given = self._words(arrays)
        self.products.run(ready, rows, self.panels.packed, target, given.address)
        return ready if rows.ctypes.data == x.ctypes.data else None


def _as_matrix(x: Array) -> Array:
    """An array with all axes but the last merged; a copy only where strides do not allow a view."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.ndim != 2 else x


def _as_matrix_view(y: Array) -> Array | None:
    """The matrix as a view, or None if strides do not allow one."""
    matrix = _as_matrix(y)
    return matrix if np.may_share_memory(matrix, y) else None
