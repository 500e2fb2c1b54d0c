"""`matmul`: products of arrays as they lie, any shape, nothing packed beforehand."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ftuner.core.bounded import forget_oldest
from ftuner.core.ukernel import COLUMN
from ftuner.errors import DTypeError, ShapeError
from ftuner.planner.plan import Problem
from ftuner.runtime.arrays import (
    Array,
    as_array,
    dtype_of,
    on_gpu,
    readable,
    same_dtype,
    writable,
)
from ftuner.runtime.encode import Strides
from ftuner.runtime.gpu_modules import gpu_module
from ftuner.runtime.operands import (
    a_layout,
    b_source,
    batch_axes,
    overlaps_itself,
    product_shape,
    unit_columns,
)
from ftuner.runtime.products import Products, Ready
from ftuner.runtime.session import Session

MAX_RECIPES = 4096
"""Recipes kept; one is a few hundred bytes."""


class _Recipe(NamedTuple):
    """What a call with arrays of one layout does, so that the next one need not think again."""

    products: Products
    ready: Ready
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def serves(self, array: Array) -> bool:
        """Whether an operand of the right shape and strides has the right elements too."""
        return array.dtype == self.dtype and array.flags.aligned


class Matmul:
    """Matrix products of a session, with recipes for arguments like some before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._recipes: dict[tuple[object, ...], _Recipe] = {}

    def __call__(
        self, a: object, b: object, out: object | None = None, accumulate: bool = False
    ) -> Any:
        if type(a) is np.ndarray and type(b) is np.ndarray and not accumulate:
            # The short way, for arguments like some before: no view is made, nothing is planned.
            key: tuple[object, ...] = a.shape, a.strides, b.shape, b.strides, self._session.threads
            if out is None:
                recipe = self._recipes.get(key)
                if recipe is not None and recipe.serves(a) and recipe.serves(b):
                    c = np.empty(recipe.shape, recipe.dtype)
                    recipe.products.run(recipe.ready, a, b, c)
                    return c
            elif type(out) is np.ndarray:
                recipe = self._recipes.get((*key, out.shape, out.strides))
                if (
                    recipe is not None
                    and recipe.serves(a)
                    and recipe.serves(b)
                    and out.dtype == recipe.dtype
                    and out.flags.behaved
                    and not np.may_share_memory(a, out)
                    and not np.may_share_memory(b, out)
                ):
                    recipe.products.run(recipe.ready, a, b, out)
                    return out
        return self._general(a, b, out, accumulate)

    def _general(
        self, a_given: object, b_given: object, out: object | None, accumulate: bool
    ) -> Any:
        if on_gpu(a_given) or on_gpu(b_given):
            gpu = gpu_module("ftuner.runtime.gpu.matmul")
            return gpu.matmul(a_given, b_given, out, accumulate)
        a, b = as_array(a_given, "a"), as_array(b_given, "b")
        dtype_of(a, "a")
        dtype_of(b, "b")
        same_dtype(a, b, "b")
        if a.ndim == 0 or b.ndim == 0:
            raise ShapeError(f"a is {a.shape} and b is {b.shape}: a scalar is no matrix or vector")
        a2 = a[np.newaxis, :] if a.ndim == 1 else a
        b2 = b[:, np.newaxis] if b.ndim == 1 else b
        full = product_shape(a2, b2)
        shape = full
        if b.ndim == 1:
            shape = shape[:-1]
        if a.ndim == 1:
            shape = (*full[:-2], full[-1]) if b.ndim > 1 else full[:-2]
        if out is None:
            if accumulate:
                raise ShapeError("accumulate needs an out to add to")
            result = as_array(np.empty(shape, a.dtype), "out")
            target = result.reshape(full)
        else:
            result = writable(out)
            if result.shape != shape:
                raise ShapeError(f"out is {result.shape}; the product of {a.shape} and {b.shape} "
                                 f"is {shape}")  # fmt: skip
            if result.dtype != a.dtype:
                raise DTypeError(f"out has dtype {result.dtype}, the operands {a.dtype}")
            target = result
            if b.ndim == 1:
                target = target[..., np.newaxis]
            if a.ndim == 1:
                target = target[..., np.newaxis, :]
        if result.size:
            key: tuple[object, ...] | None = None
            if a is a_given and b is b_given and not accumulate:
                key = a.shape, a.strides, b.shape, b.strides, self._session.threads
                if out is not None:
                    key = (*key, result.shape, result.strides)
            self._into(readable(a2), readable(b2), target, accumulate, key, shape, (a, b))
        return result

    def _into(
        self, a: Array, b: Array, c: Array, accumulate: bool, key: tuple[object, ...] | None,
        shape: tuple[int, ...], given: tuple[Array, Array],
    ) -> None:  # fmt: skip
        """The product of arrays of two axes or more, to `c`, whatever its strides."""
        if a.shape[-1] == 0:
            if not accumulate:
                c[...] = 0
            return
        shared = np.may_share_memory(c, a) or np.may_share_memory(c, b)
        if not unit_columns(c) and c.strides[-2] == c.itemsize:
            # C lies transposed: so does the product.
            a, b, c = b.swapaxes(-1, -2), a.swapaxes(-1, -2), c.swapaxes(-1, -2)
            key = None
        if shared or not unit_columns(c) or not c.flags.aligned or overlaps_itself(c):
            whole = c.copy() if accumulate else np.empty(c.shape, c.dtype)
            self._run(a, b, whole, accumulate)
            c[...] = whole
            return
        products, ready = self._run(a, b, c, accumulate)
        if key is not None and given[0].flags.aligned and given[1].flags.aligned:
            forget_oldest(self._recipes, MAX_RECIPES)
            self._recipes[key] = _Recipe(products, ready, c.dtype, shape)

    def _run(self, a: Array, b: Array, c: Array, accumulate: bool) -> tuple[Products, Ready]:
        dtype = dtype_of(a, "a")
        products = self._session.products(dtype)
        if b.ndim == 2 and a.ndim > 2 and a.flags.c_contiguous and c.flags.c_contiguous:
            a, c = a.reshape(-1, a.shape[-1]), c.reshape(-1, c.shape[-1])
        axes = batch_axes(c.shape[:-2], a, b, c)
        m, k = a.shape[-2:]
        page_bytes = products.compiled.library.hardware.page_bytes
        layout = a_layout(a, b.shape[-1], page_bytes)
        a_row, a_k = a.strides[-2:]
        if layout.layout == COLUMN and not layout.must_pack:
            a_row = a.itemsize
        problem = Problem(
            m=m,
            n=b.shape[-1],
            k=k,
            batch=math.prod(axis[0] for axis in axes),
            a_layout=layout.layout,
            a_must_pack=layout.must_pack,
            b_source=b_source(b),
            width=0,
            b_k_bytes=abs(b.strides[-2]),
            workers=self._session.threads,
        )
        strides = Strides(
            a_row=a_row,
            a_k=a_k,
            b_k=b.strides[-2],
            b_column=b.itemsize if unit_columns(b) else b.strides[-1],
            c_row=c.strides[-2],
            batch=axes,
            operands=(),
            accumulate=accumulate,
        )
        ready = products.ready(problem, strides)
        products.run(ready, a, b, c)
        return products, ready
