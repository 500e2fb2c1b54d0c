"""Convolutions one by one: the cases, each as a model of one layer, and the layer in PyTorch."""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.cases import workload
from benchmarks.onnx_writing import IR_VERSION, OPSET

Array = npt.NDArray[np.float32]
KINDS = ("conv2d", "conv1d")
FIRST, LAST = "first", "last"
"""Where the channels of a layer's input and output are."""


@dataclass(frozen=True)
class Layer:
    """A convolution with a bias and relu, whose batch and extents are dynamic."""

    kernel: tuple[int, ...]
    """One entry for each spatial axis."""
    stride: int
    pad: int
    cin: int
    cout: int
    dilation: int = 1
    groups: int = 1
    transposed: bool = False

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def label(self) -> str:
        parts = ["x".join(map(str, self.kernel)), f"{self.cin}>{self.cout}"]
        if self.stride > 1:
            parts.append(f"s{self.stride}")
        if self.dilation > 1:
            parts.append(f"d{self.dilation}")
        if self.groups > 1:
            parts.append("depthwise" if self.groups == self.cin else f"g{self.groups}")
        if self.transposed:
            parts.append("transposed")
        return " ".join(parts)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """As ONNX and PyTorch have it."""
        if self.transposed:
            return (self.cin, self.cout // self.groups, *self.kernel)
        return (self.cout, self.cin // self.groups, *self.kernel)

    def parameters(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A weight, of which outputs are about as large as inputs, and a bias."""
        fan_in = self.cin // self.groups * math.prod(self.kernel)
        weight = rng.standard_normal(self.weight_shape, np.float32) * np.float32(fan_in**-0.5)
        return weight, rng.standard_normal(self.cout, np.float32)

    def extents(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Of the output."""
        if self.transposed:
            return tuple(
                (n - 1) * self.stride - 2 * self.pad + (k - 1) * self.dilation + 1
                for n, k in zip(given, self.kernel, strict=True)
            )
        return tuple(
            (n + 2 * self.pad - (k - 1) * self.dilation - 1) // self.stride + 1
            for n, k in zip(given, self.kernel, strict=True)
        )

    def model(self, weight: Array, bias: Array, layout: str) -> onnx.ModelProto:
        """The layer as an ONNX model from `x` to `y`. Channels are first, as ONNX has them, or
        last, where transpositions stand around the layer, as exporters of TensorFlow write."""
        axes = range(1, self.rank + 1)
        first = (0, self.rank + 1, *axes)
        last = (0, *range(2, self.rank + 2), 1)
        x, y = ("x", "y") if layout == FIRST else ("x_first", "y_first")
        nodes = [
            helper.make_node(
                "ConvTranspose" if self.transposed else "Conv", [x, "weight", "bias"], ["sum"],
                kernel_shape=self.kernel, strides=[self.stride] * self.rank,
                pads=[self.pad] * 2 * self.rank, dilations=[self.dilation] * self.rank,
                group=self.groups,
            ),
            helper.make_node("Relu", ["sum"], [y]),
        ]  # fmt: skip
        if layout == LAST:
            nodes.insert(0, helper.make_node("Transpose", ["x"], [x], perm=first))
            nodes.append(helper.make_node("Transpose", [y], ["y"], perm=last))

        def info(name: str, channels: int) -> onnx.ValueInfoProto:
            free: list[Any] = [f"{name}{axis}" for axis in axes]
            dims = [channels, *free] if layout == FIRST else [*free, channels]
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])

        graph = helper.make_graph(
            nodes, "layer", [info("x", self.cin)], [info("y", self.cout)],
            [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
        )  # fmt: skip
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )


@dataclass(frozen=True)
class Convolution:
    """A layer on one picture, or on one sequence."""

    layer: Layer
    given: tuple[int, ...]
    """Spatial extents of the input."""
    batch: int = 1

    @property
    def label(self) -> str:
        return f"{self.layer.label} {'x'.join(map(str, self.given))}"

    @property
    def flops(self) -> int:
        """Multiply-adds counted as two, of windows that lie wholly within the input."""
        layer = self.layer
        placed = self.given if layer.transposed else layer.extents(self.given)
        each = math.prod(layer.weight_shape)
        return 2 * self.batch * math.prod(placed) * each

    @property
    def rotated_bytes(self) -> int:
        """Of the weight and the input, of which there are copies."""
        elements = math.prod(self.given) * self.layer.cin * self.batch
        return 4 * (math.prod(self.layer.weight_shape) + elements)

    def inputs(self, rng: np.random.Generator, layout: str) -> Array:
        shape = (
            (self.batch, self.layer.cin, *self.given)
            if layout == FIRST
            else (self.batch, *self.given, self.layer.cin)
        )
        return rng.standard_normal(shape, np.float32)


def cases(kind: str) -> tuple[Convolution, ...]:
    """Every case of `conv2d` or `conv1d` in the workload file; those of a layer stand together."""
    found = []
    for entry in workload()[kind]:
        kernel = entry["kernel"]
        layer = Layer(
            tuple(kernel) if isinstance(kernel, list) else (kernel,),
            *(entry[name] for name in ("stride", "pad", "cin", "cout")),
            **{n: entry[n] for n in ("dilation", "groups", "transposed") if n in entry},
        )
        extents = entry["hw"] if layer.rank == 2 else entry["length"]
        found += [Convolution(layer, (n,) * layer.rank) for n in extents]
    return tuple(found)


def torch_layer(
    layer: Layer, weight: Array, bias: Array, layout: str, channels_last: bool
) -> Callable[[Array], Callable[[], Array]]:
    """Binds an input to the layer in PyTorch, eager. `channels_last`: in PyTorch's memory format of
    this name, converted from and to what the caller has, where that is another."""
    torch = importlib.import_module("torch")
    functional = torch.nn.functional
    flat = layer.rank == 1
    memory = {"memory_format": torch.channels_last} if channels_last else {}
    # A sequence is a picture of one row, because the format is one of pictures.
    w = torch.from_numpy(weight)
    w = (w.unsqueeze(2) if flat else w).contiguous(**memory)
    b = torch.from_numpy(bias)
    row = (0,) if flat else ()
    pads = (*row, *[layer.pad] * layer.rank)
    steps = {
        "stride": (*(1 for _ in row), *[layer.stride] * layer.rank),
        "dilation": (*(1 for _ in row), *[layer.dilation] * layer.rank),
        "groups": layer.groups,
    }

    def computed(x: Any) -> Any:
        x = x.contiguous(**memory)
        if layer.transposed:
            y = functional.conv_transpose2d(x, w, b, padding=pads, **steps)
        else:
            y = functional.conv2d(x, w, b, padding=pads, **steps)
        return y.relu_()

    def bind(given: Array) -> Callable[[], Array]:
        x = torch.from_numpy(given)
        x = x.movedim(-1, 1) if layout == LAST else x
        x = x.unsqueeze(2) if flat else x

        def call() -> Array:
            y = computed(x)
            y = y.movedim(1, -1).contiguous() if layout == LAST else y.contiguous()
            return y.squeeze(1 if layout == LAST else 2).numpy() if flat else y.numpy()

        return call

    return bind
