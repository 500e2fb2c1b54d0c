"""Networks of ONNX files as modules of PyTorch, channels last."""

from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch
from onnx import numpy_helper

from ftuner.errors import UnsupportedOperatorError

Attributes = Mapping[str, Any]
Tensor = torch.Tensor
functional = torch.nn.functional


def _padding(attributes: Attributes, rank: int) -> list[int]:
    pads = attributes.get("pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:]:
        raise UnsupportedOperatorError(f"padding {pads}; expected the same on both sides")
    return list(pads[:rank])


def _convolution(x: Tensor, w: Tensor, b: Tensor | None = None, **attributes: Any) -> Tensor:
    rank = w.dim() - 2
    return functional.conv2d(
        x, w, b, attributes.get("strides", 1), _padding(attributes, rank),
        attributes.get("dilations", 1), attributes.get("group", 1),
    )  # fmt: skip


def _transposed(x: Tensor, w: Tensor, b: Tensor | None = None, **attributes: Any) -> Tensor:
    padding = _padding(attributes, w.dim() - 2)
    return functional.conv_transpose2d(x, w, b, attributes.get("strides", 1), padding)


def _max_pool(x: Tensor, **attributes: Any) -> Tensor:
    kernel = attributes["kernel_shape"]
    padding = _padding(attributes, len(kernel))
    return functional.max_pool2d(x, kernel, attributes.get("strides", 1), padding)


def _gemm(x: Tensor, w: Tensor, b: Tensor, **attributes: Any) -> Tensor:
    return functional.linear(x, w if attributes.get("transB") else w.T, b)


OPERATORS: Mapping[str, Callable[..., Tensor]] = {
    "Add": lambda x, y: x + y,
    "BatchNormalization": lambda x, scale, bias, mean, variance, epsilon=1e-5: (
        functional.batch_norm(x, mean, variance, scale, bias, eps=epsilon)
    ),
    "Clip": lambda x, least, most: x.clamp(least, most),
    "Concat": lambda *x, axis: torch.cat(x, axis),
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Flatten": lambda x, axis=1: x.flatten(axis),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "Identity": lambda x: x,
    "MaxPool": _max_pool,
    "Relu": lambda x: x.relu(),
}
"""What residual networks, MobileNets and U-Nets are made of."""


class OnnxNetwork(torch.nn.Module):
    """A model file with one input and one output. Weights are parameters, in channels-last memory
    where they have four axes.

    Raises:
        UnsupportedOperatorError: a node that `OPERATORS` does not have.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__()
        graph = model.graph
        missing = {node.op_type for node in graph.node} - set(OPERATORS)
        if missing:
            raise UnsupportedOperatorError(f"PyTorch's network has no {', '.join(sorted(missing))}")
        self._input, self._output = graph.input[0].name, graph.output[0].name
        self._numbers: dict[str, float] = {}
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.ndim == 0:
                self._numbers[tensor.name] = float(array)
                continue
            value = torch.from_numpy(array.copy())
            if value.dim() == 4:
                value = value.contiguous(memory_format=torch.channels_last)
            self.register_buffer(tensor.name, value)
        self._nodes = [
            (
                node.op_type, list(node.input), node.output[0],
                {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
            )
            for node in graph.node
        ]  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Any] = {**self._numbers, **dict(self.named_buffers())}
        values[self._input] = x.contiguous(memory_format=torch.channels_last)
        for op, inputs, output, attributes in self._nodes:
            values[output] = OPERATORS[op](*(values[name] for name in inputs), **attributes)
        found: Tensor = values[self._output]
        return found
