"""Chains of steps on pictures that may be walked by stripes, as graphs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.graph.graphs import Maker
from tests.runtime.convolutions import H, N, W

from ftuner.core.dtype import DTYPES, DType
from ftuner.graph.ir import Graph, Value
from ftuner.runtime.reference import run_reference

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Chain:
    """A depthwise convolution, or a maximum of windows, with what comes before and after it."""

    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: int = 1
    pads: tuple[int, int] = (1, 1)
    head: str = "pointwise"
    tail: bool = True
    pooled: bool = False
    residual: bool = False
    channels: int = 7
    wide: int = 37
    columns: int = 19
    dtype: DType = DTYPES["float32"]

    def graph(self) -> Graph:
        """x is (N, H, W, channels)."""
        g = Maker()
        random = np.random.default_rng(self.wide + self.columns)

        def weight(*shape: int) -> Value:
            fan = np.prod(shape[:-1])
            drawn = random.standard_normal(shape) / np.sqrt(fan)
            return g.constant(drawn.astype(self.dtype.name))

        x = g.given("x", N, H, W, self.channels, dtype=self.dtype)
        y = x
        if self.head == "pointwise":
            y = g.add("matmul", y, weight(self.channels, self.wide))
        elif self.head == "window":
            w = weight(3, 3, self.channels, self.wide)
            y = self.windows(g, "convolution", y, w, kernel=(3, 3), stride=2, dilation=1,
                             pads=(1, 0), groups=1)  # fmt: skip
        if self.head:
            y = g.add("add", y, weight(self.wide))
            y = g.add("maximum", y, g.constant(np.zeros((), self.dtype.name)))
        channels = y.shape[-1]
        assert isinstance(channels, int)
        own: dict[str, Any] = {"kernel": self.kernel, "stride": self.stride,
                               "dilation": self.dilation, "pads": self.pads}  # fmt: skip
        if self.pooled:
            y = self.windows(g, "window_reduce", y, kind="maximum", **own)
        else:
            w = weight(*self.kernel, 1, channels)
            y = self.windows(g, "convolution", y, w, groups=channels, **own)
            y = g.add("add", y, weight(channels))
        if self.tail:
            y = g.add("matmul", y, weight(channels, self.columns))
            y = g.add("add", y, weight(self.columns))
        if self.residual:
            y = g.add("add", y, g.given("r", *y.shape, dtype=self.dtype))
        return g.made(y)

    def windows(
        self, g: Maker, op: str, x: Value, *operands: Value, kernel: tuple[int, int], stride: int,
        dilation: int, pads: tuple[int, int], **attributes: Any,
    ) -> Value:  # fmt: skip
        spatial = x.shape[1:3]
        extents = tuple(
            (n + sum(pads) - (k - 1) * dilation - 1) // stride + 1
            for n, k in zip(spatial, kernel, strict=True)
        )
        if op == "window_reduce":
            attributes["kernel"] = kernel
        return g.add(
            op, x, *operands, strides=(stride, stride), dilations=(dilation, dilation),
            begin=(pads[0], pads[0]), extents=extents, **attributes,
        )  # fmt: skip

    def inputs(self, graph: Graph, images: int, height: int, width: int) -> list[Array]:
        random = np.random.default_rng(height)
        x = random.standard_normal((images, height, width, self.channels))
        found = [x.astype(self.dtype.name)]
        if self.residual:
            (result,) = run_reference(replace(self, residual=False).graph(), found)
            found.append(random.standard_normal(result.shape).astype(self.dtype.name))
        return found
