"""Convolutions of symbolic extents as graphs, and what they give in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tests.graph.graphs import Maker

from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import DTYPES, DType
from ftuner.graph.ir import Graph, Value
from ftuner.graph.ops.windows import _reference_convolution

Array = npt.NDArray[Any]
N, H, W, D = (symbol(name) for name in ("N", "H", "W", "D"))
AXES = {1: (W,), 2: (H, W), 3: (D, H, W)}


class Convolution:
    """A convolution of symbolic extents with a bias, a residual of the result's shape and relu."""

    def __init__(
        self, kernel: tuple[int, ...], channels: int, columns: int, groups: int = 1,
        strides: int = 1, dilation: int = 1, pads: tuple[int, int] = (1, 1), residual: bool = False,
        dtype: DType = DTYPES["float32"],
    ) -> None:  # fmt: skip
        rank = len(kernel)
        self.kernel, self.groups = kernel, groups
        self.strides, self.dilations = (strides,) * rank, (dilation,) * rank
        self.pads, self.residual, self.dtype = pads, residual, dtype
        self.random = np.random.default_rng(len(kernel) + channels + columns)
        self.w = self.made(*kernel, channels // groups, columns)
        self.w /= np.sqrt(self.w[..., 0].size, dtype=dtype.name)
        self.bias = self.made(columns)
        self.channels = channels

    def made(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(self.dtype.name)

    def extents(self, spatial: tuple[Dim, ...]) -> tuple[Dim, ...]:
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        total = sum(self.pads)
        return tuple(
            (n + total - r) // s + 1 for n, r, s in zip(spatial, reach, self.strides, strict=True)
        )

    def attributes(self, spatial: tuple[Dim, ...]) -> dict[str, Any]:
        begin = (self.pads[0],) * len(self.kernel)
        return {
            "strides": self.strides, "dilations": self.dilations, "begin": begin,
            "extents": self.extents(spatial),
        }  # fmt: skip

    def graph(self) -> Graph:
        g = Maker()
        axes = AXES[len(self.kernel)]
        x = g.given("x", N, *axes, self.channels, dtype=self.dtype)
        y: Value = g.add(
            "convolution", x, g.constant(self.w), groups=self.groups, **self.attributes(axes)
        )
        y = g.add("add", y, g.constant(self.bias))
        if self.residual:
            y = g.add("add", y, g.given("r", *y.shape, dtype=self.dtype))
        return g.made(g.add("maximum", y, g.constant(np.zeros((), self.dtype.name))))

    def inputs(self, images: int, *spatial: int) -> dict[str, Array]:
        found = {"x": self.made(images, *spatial, self.channels)}
        if self.residual:
            shape = tuple(int(n) for n in self.extents(spatial) if isinstance(n, int))
            found["r"] = self.made(images, *shape, self.w.shape[-1])
        return found

    def expected(self, x: Array, r: Array | None = None) -> Array:
        wide = _reference_convolution(
            x.astype(np.float64), self.w.astype(np.float64), self.groups,
            **self.attributes(x.shape[1:-1]),
        ) + self.bias  # fmt: skip
        return np.maximum(wide if r is None else wide + r, 0)
