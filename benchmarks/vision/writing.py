"""Layers of vision networks as exporters write them, with random weights.

Activations are channels first, `(batch, channels, height, width)`, with dynamic batch, height and
width, or tokens, `(batch, length, channels)`. A network can be made narrower and shallower.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.onnx_writing import Array, Dims, Writer

BATCH_NORM_EPSILON = 1e-5
LAYER_NORM_EPSILON = 1e-6
LEAST_CHANNELS = 8
"""Numbers of channels are multiples of it where a network is made narrower."""
PICTURE = "picture"
PICTURE_CHANNELS = 3
BRANCH_SCALE = 0.3
"""Scale of the last norm of a branch that is added to its input: sums keep their size over many
blocks, as they do in trained networks."""


@dataclass(frozen=True)
class Size:
    """How much of a network is written; 1 is all of it."""

    width: float = 1.0
    """Factor of the numbers of channels."""
    depth: float = 1.0
    """Factor of the numbers of blocks."""
    seed: int = 0


class VisionWriter(Writer):
    """A writer that draws weights, and knows the channels of what it has written."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self._size = size
        self._rng = np.random.default_rng(size.seed)
        self._channels = {PICTURE: PICTURE_CHANNELS}

    def wide(self, channels: int) -> int:
        """A number of channels of the network as it is written."""
        if self._size.width == 1.0:
            return channels
        units = round(channels * self._size.width / LEAST_CHANNELS)
        return LEAST_CHANNELS * max(1, units)

    def deep(self, blocks: int) -> int:
        """A number of blocks of the network as it is written."""
        return max(1, round(blocks * self._size.depth))

    def channels(self, x: str) -> int:
        """The channels of a result of `conv`, `linear` and of what passes them on."""
        return self._channels[x]

    def carrying(self, x: str, like: str | int) -> str:
        """x, whose channels are those of another, or a number."""
        self._channels[x] = like if isinstance(like, int) else self._channels[like]
        return x

    def weight(self, array: Array) -> str:
        """A weight of its own."""
        name = f"weight_{len(self._initialisers)}"
        self._initialisers.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def normal(self, *shape: int, deviation: float = 1.0) -> str:
        return self.weight(deviation * self._rng.standard_normal(shape, np.float32))

    def uniform(self, low: float, high: float, *shape: int) -> str:
        return self.weight(self._rng.uniform(low, high, shape))

    # Layers.

    def conv(
        self, x: str, channels: int, kernel: int = 3, stride: int = 1, *, pad: int | None = None,
        groups: int = 1, bias: bool = True, gain: float = 2.0,
    ) -> str:  # fmt: skip
        """A convolution by weights of variance `gain / fan_in` (He et al., 2015). `pad`: by default
        half of the window. `groups`: 0 for one of each channel."""
        given = self.channels(x)
        groups = groups or given
        pad = kernel // 2 if pad is None else pad
        fan_in = given // groups * kernel**2
        inputs = [self.normal(channels, given // groups, kernel, kernel,
                              deviation=(gain / fan_in) ** 0.5)]  # fmt: skip
        if bias:
            inputs.append(self.normal(channels, deviation=0.1))
        y = self.node(
            "Conv", x, *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
            dilations=[1, 1], group=groups,
        )  # fmt: skip
        return self.carrying(y, channels)

    def up_conv(self, x: str, channels: int) -> str:
        """A transposed convolution that doubles height and width."""
        given = self.channels(x)
        w = self.normal(given, channels, 2, 2, deviation=(2 / given) ** 0.5)
        b = self.normal(channels, deviation=0.1)
        y = self.node("ConvTranspose", x, w, b, kernel_shape=[2, 2], strides=[2, 2])
        return self.carrying(y, channels)

    def batch_norm(self, x: str, scale: float = 1.0) -> str:
        c = self.channels(x)
        y = self.node(
            "BatchNormalization", x, self.uniform(0.7 * scale, 1.3 * scale, c),
            self.normal(c, deviation=0.1), self.normal(c, deviation=0.1), self.uniform(0.7, 1.5, c),
            epsilon=BATCH_NORM_EPSILON,
        )  # fmt: skip
        return self.carrying(y, c)

    def conv_norm(
        self, x: str, channels: int, kernel: int = 3, stride: int = 1, *, groups: int = 1,
        scale: float = 1.0,
    ) -> str:  # fmt: skip
        """A convolution without a bias and its batch norm."""
        return self.batch_norm(self.conv(x, channels, kernel, stride, groups=groups, bias=False),
                               scale)  # fmt: skip

    def layer_norm(self, x: str) -> str:
        """Over the last axis, of channels."""
        c = self.channels(x)
        scale, shift = self.uniform(0.7, 1.3, c), self.normal(c, deviation=0.1)
        y = self.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=LAYER_NORM_EPSILON)
        return self.carrying(y, c)

    def linear(self, x: str, channels: int, gain: float = 1.0) -> str:
        """A product over the last axis and a bias."""
        given = self.channels(x)
        w = self.normal(given, channels, deviation=(gain / given) ** 0.5)
        y = self.node("Add", self.normal(channels, deviation=0.1), self.node("MatMul", x, w))
        return self.carrying(y, channels)

    def classifier(self, x: str, classes: int) -> str:
        """Logits of `(batch, channels)`."""
        given = self.channels(x)
        w = self.normal(classes, given, deviation=given**-0.5)
        y = self.node("Gemm", x, w, self.normal(classes, deviation=0.1), transB=1)
        return self.carrying(y, classes)

    def unary(self, op: str, x: str, **attributes: Any) -> str:
        """An operator that keeps the channels."""
        return self.carrying(self.node(op, x, **attributes), x)

    def relu(self, x: str) -> str:
        return self.unary("Relu", x)

    def silu(self, x: str) -> str:
        return self.carrying(self.node("Mul", x, self.node("Sigmoid", x)), x)

    def gelu(self, x: str) -> str:
        error = self.node("Erf", self.node("Div", x, self.number(2**0.5)))
        lifted = self.node("Mul", x, self.node("Add", error, self.number(1.0)))
        return self.carrying(self.node("Mul", lifted, self.number(0.5)), x)

    def add(self, x: str, y: str) -> str:
        return self.carrying(self.node("Add", x, y), x)

    def concat(self, *parts: str) -> str:
        """Along the channels of pictures."""
        y = self.node("Concat", *parts, axis=1)
        return self.carrying(y, sum(map(self.channels, parts)))

    def halves(self, x: str) -> list[str]:
        """Both halves of the channels of pictures."""
        half = self.channels(x) // 2
        parts = self.node("Split", x, self.constant([half, half]), outputs=2, axis=1)
        return [self.carrying(part, half) for part in parts]

    def max_pool(self, x: str, kernel: int, stride: int) -> str:
        pad = (kernel - 1) // 2
        return self.unary("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                          pads=[pad] * 4)  # fmt: skip

    def pooled(self, x: str) -> str:
        """The mean of each channel: `(batch, channels, 1, 1)`."""
        return self.unary("GlobalAveragePool", x)

    def flat(self, x: str) -> str:
        return self.unary("Flatten", x, axis=1)

    def resized(self, x: str, factor: float, mode: str) -> str:
        """A picture with height and width multiplied."""
        scales = self.constant([1.0, 1.0, factor, factor], np.float32)
        if mode == "nearest":
            return self.carrying(
                self.node("Resize", x, "", scales, mode="nearest", nearest_mode="floor",
                          coordinate_transformation_mode="asymmetric"), x)  # fmt: skip
        y = self.node("Resize", x, "", scales, mode=mode,
                      coordinate_transformation_mode="half_pixel")  # fmt: skip
        return self.carrying(y, x)

    # Between pictures and tokens.

    def tokens(self, x: str) -> str:
        """`(batch, channels, height, width)` as `(batch, height * width, channels)`."""
        c = self.channels(x)
        flat = self.reshaped(x, self.extent(x, 0), c, -1)
        return self.carrying(self.node("Transpose", flat, perm=[0, 2, 1]), c)

    def picture(self, x: str, height: str, width: str) -> str:
        """The opposite."""
        c = self.channels(x)
        turned = self.node("Transpose", x, perm=[0, 2, 1])
        return self.carrying(self.reshaped(turned, self.extent(x, 0), c, height, width), c)

    def channels_last(self, x: str) -> str:
        return self.unary("Transpose", x, perm=[0, 2, 3, 1])

    def channels_first(self, x: str) -> str:
        return self.unary("Transpose", x, perm=[0, 3, 1, 2])

    def network(self, output: str, dims: Dims) -> onnx.ModelProto:
        """The model from a picture to `output`, whose dims are given."""
        self._nodes.append(helper.make_node("Identity", [output], ["output"]))
        picture: Dims = ["batch", PICTURE_CHANNELS, "height", "width"]
        return self.model({PICTURE: (TensorProto.FLOAT, picture)}, {"output": dims})
