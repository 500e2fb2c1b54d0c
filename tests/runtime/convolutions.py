"""Convolutions of symbolic extents for the tests of both devices, held to their reference."""

from typing import Any

import numpy as np
import numpy.typing as npt
from tests.graph.graphs import Maker

from ftuner.core.dim import Dim, symbol
from ftuner.core.dtype import DTYPES, DType
from ftuner.graph.ir import Graph, Value
from ftuner.graph.ops.windows import _reference_convolution
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

Array = npt.NDArray[Any]
N, H, W, D = (symbol(name) for name in ("N", "H", "W", "D"))
AXES = {1: (W,), 2: (H, W), 3: (D, H, W)}
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


class Convolution:
    """A convolution of symbolic extents with a bias, unless it is left out, a residual of the
    result's shape, if it is asked for, and relu."""

    def __init__(
        self, kernel: tuple[int, ...], channels: int, columns: int, groups: int = 1,
        strides: int = 1, dilation: int = 1, pads: tuple[int, int] = (1, 1), residual: bool = False,
        dtype: DType = DTYPES["float32"], bias: bool = True,
    ) -> None:  # fmt: skip
        rank = len(kernel)
        self.kernel, self.groups = kernel, groups
        self.strides, self.dilations = (strides,) * rank, (dilation,) * rank
        self.pads, self.residual, self.dtype = pads, residual, dtype
        self.random = np.random.default_rng(len(kernel) + channels + columns)
        self.w = self.made(*kernel, channels // groups, columns)
        self.w /= np.sqrt(self.w[..., 0].size, dtype=dtype.name)
        self.bias = self.made(columns) if bias else None
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
        if self.bias is not None:
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
        )  # fmt: skip
        wide = wide if self.bias is None else wide + self.bias
        return np.maximum(wide if r is None else wide + r, 0)

    def check(self, model: Model, images: int, *spatial: int, cancelling: float = 1) -> None:
        """Hold a model of the graph to the definition. `cancelling`: how many times larger the
        absolute error may be than the relative one."""
        inputs = self.inputs(images, *spatial)
        (result,) = model.run(inputs)
        expected = self.expected(**inputs)
        assert result.shape == expected.shape
        tolerance = TOLERANCE[self.dtype.name]
        np.testing.assert_allclose(result, expected, tolerance, cancelling * tolerance)


class Reduction(Convolution):
    """Sums or extremes of windows of 19 channels, of symbolic extents, times a half."""

    def __init__(
        self, kind: str, kernel: tuple[int, ...], stride: int, dilation: int, begin: int
    ) -> None:
        super().__init__(kernel, 19, 19, 19, stride, dilation, (begin, begin))
        self.kind = kind

    def graph(self) -> Graph:
        g = Maker()
        axes = AXES[len(self.kernel)]
        x = g.given("x", N, *axes, self.channels)
        y = g.add("window_reduce", x, kind=self.kind, kernel=self.kernel, **self.attributes(axes))
        return g.made(g.add("multiply", y, g.number(0.5)))

    def check_extremes(self, model: Model, images: int, *spatial: int, tolerance: float) -> None:
        """Hold a model of the graph to the reference interpreter, on elements one of which is no
        number."""
        x = self.made(images, *spatial, self.channels)
        if x.size > 100:
            x.flat[99] = np.nan
        (result,) = model.run({"x": x})
        (expected,) = run_reference(self.graph(), [x])
        np.testing.assert_allclose(result, expected, tolerance, tolerance)


def step_types(model: Model) -> list[type]:
    part: Any
    (part,) = model.parts
    return [type(step) for step in part.lowered.steps]


WINDOWS = [
    Convolution((3, 3), 16, 24),
    Convolution((3, 3), 5, 3, residual=True),
    Convolution((1, 1), 7, 70, strides=2, pads=(0, 0)),
    Convolution((2, 3), 33, 17, strides=2, pads=(0, 2)),
    Convolution((3, 2), 8, 64, dilation=2, pads=(2, 1), residual=True),
    Convolution((5,), 12, 20, pads=(2, 2)),
    Convolution((2, 3, 3), 4, 9, pads=(1, 1)),
    Convolution((3, 3, 3), 8, 16, strides=2, pads=(1, 0), residual=True),
    Convolution((7, 7), 3, 32, strides=2, pads=(3, 3)),
]
GROUPED = [
    Convolution((3, 3), 32, 48, groups=4, residual=True),
    Convolution((2, 3), 15, 20, groups=5, strides=2, pads=(0, 2)),
]
DEPTHWISE = [
    Convolution((3, 3), 16, 16, groups=16),
    Convolution((3, 3), 37, 37, groups=37, strides=2, residual=True),
    Convolution((5, 3), 8, 8, groups=8, dilation=2, pads=(2, 3)),
    Convolution((7, 7), 20, 20, groups=20, pads=(3, 3)),
    Convolution((1, 9), 3, 3, groups=3, pads=(4, 4), residual=True),
]
REDUCTIONS = [
    Reduction(kind, *window)
    for kind in ("sum", "maximum", "minimum")
    for window in (((3, 3), 2, 1, 1), ((2, 2), 1, 1, 0), ((5,), 2, 2, 3), ((1, 4), 3, 1, 2))
]


def name_of(case: Convolution) -> str:
    """In the names of tests."""
    kind = case.kind if isinstance(case, Reduction) else case.w.shape[-1]
    return f"{case.kernel}x{case.channels}x{kind}g{case.groups}"
