"""Convolutional operators of files that onnxruntime has saved at its highest level of optimisation:
their weights are in the order of its kernels, for one width of vectors.

Tensors are channels first here. A convolution gives channels up to a whole number of blocks: those
that were added have weights of zero where they are read, until `ReorderOutput` drops them.
"""

from __future__ import annotations

import numpy as np

from ftuner.errors import GraphError
from ftuner.frontends.onnx.context import Context, NodeView
from ftuner.frontends.onnx.records import NCHWC, GraphRecord
from ftuner.frontends.onnx.resizing import upsampled
from ftuner.frontends.onnx.signatures import onnx
from ftuner.frontends.onnx.windows import fused_conv
from ftuner.graph.checks import malformed
from ftuner.graph.compositions import windows
from ftuner.graph.ir import Value
from ftuner.hardware.system import read_system

_NARROW, _WIDE = 8, 16
"""Channels of a block: of onnxruntime's kernels for AVX2, and for AVX-512 and NEON."""


def channels_of_blocks(graph: GraphRecord) -> int:
    """The channels of a block: as the extents of weights tell or, if they fit both, of this
    machine, for whose like onnxruntime has written the file.

    Raises:
        GraphError: the weights are of different machines.
    """
    weights = [
        graph.constants[node.inputs[1]].array.shape
        for node in graph.nodes
        if (node.domain, node.op) == (NCHWC, "Conv") and node.inputs[1] in graph.constants
    ]
    narrow = any(n[0] % _WIDE or (n[1] > _WIDE and n[1] % _WIDE) for n in weights)
    wide = any(_NARROW < n[1] < _WIDE for n in weights)
    if narrow and wide:
        raise GraphError("weights in blocks of 8 channels, and others in blocks of 16")
    if narrow or wide or not weights:
        return _WIDE if wide else _NARROW
    facts = read_system()
    return _WIDE if facts.architecture == "aarch64" or "avx512f" in facts.features else _NARROW


@onnx("Conv", domain=NCHWC)
def _conv(
    context: Context, node: NodeView, x: Value, w: Value, bias: Value | None,
    addend: Value | None, group: int = 1, activation: str = "",
    activation_params: tuple[float, ...] = (),
) -> Value:  # fmt: skip
    block = context.block
    array = context.array_of(w, "the weight")
    if array.ndim != 4 or array.shape[0] % block:
        raise malformed(f"the weight is {w.type}; expected blocks of {block} channels")
    outputs, inputs, *kernel = array.shape
    if inputs % block:
        # Those of pictures, and of convolutions of each channel, are not in blocks.
        array = array.reshape(outputs // block, inputs, *kernel, block).transpose(0, 4, 1, 2, 3)
    else:
        array = array.reshape(outputs // block, inputs // block, *kernel, block, block)
        array = array.transpose(0, 5, 1, 4, 2, 3)
    array = array.reshape(outputs, inputs, *kernel)
    channels = x.shape[1] if x.rank > 1 else 0
    if isinstance(channels, int) and group == 1:
        array = array[:, :channels]
    plain = context.builder.stored(np.ascontiguousarray(array), w.dtype)
    return fused_conv(node, x, plain, bias, addend, activation_params, activation)


@onnx("ReorderInput", domain=NCHWC)
def _reorder_input(x: Value, channels_last: bool = False) -> Value:
    return windows.channels_first(x) if channels_last else x


@onnx("ReorderOutput", domain=NCHWC)
def _reorder_output(x: Value, channels: int, channels_last: bool = False) -> Value:
    if x.rank < 3:
        raise malformed(f"channels of {x.type}, which has no spatial axis")
    x = x.slice(1, 0, channels)
    return windows.channels_last(x) if channels_last else x


@onnx("Upsample", domain=NCHWC)
def _upsample(
    node: NodeView, x: Value, scales: tuple[int, ...],
    coordinate_transformation_mode: str = "asymmetric",
) -> Value:  # fmt: skip
    return upsampled(node, x, [(n, 1) for n in scales], coordinate_transformation_mode)
