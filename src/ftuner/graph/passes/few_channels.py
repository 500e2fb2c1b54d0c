"""Pads the few channels that first layers read, so that a GPU loads whole vectors of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.graph.ir import Graph, Node, TensorType, Value
from ftuner.graph.rewrite.surroundings import Surroundings, constant, rewritten

MOST_ROW_BYTES = 128
"""Most bytes of a row of a window with padded channels: those of a k step of every tile, so that
padding adds no step."""


def pad_channels(graph: Graph, held: Mapping[Value, DType]) -> Graph:
    """The graph in which paddings before convolutions also pad channels, with zeros, to whole
    vectors: the pixels of a picture are then not loaded element by element. `held`: as in
    `graph.precision`."""
    around = Surroundings(graph)
    places: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "convolution":
            places.update(_padded(node, around, held.get(node.output, node.output.dtype)))
    return rewritten(graph, places, {})


def _padded(node: Node, around: Surroundings, dtype: DType) -> dict[Node, list[Node]]:
    """The padding of x and the convolution, with more channels; nothing where that does not pay."""
    x, w = node.inputs
    pad = around.producer(x, "pad")
    if pad is None or w.constant is None or around.only_consumer(x) is not node:
        return {}
    channels, row = w.shape[-2], w.shape[-3]
    zeros = pad.attributes["mode"] == "constant" and _is_zero(pad.inputs[1])
    if not zeros or node.attributes["groups"] > 1:
        return {}
    assert isinstance(channels, int)
    assert isinstance(row, int)
    vector = ALIGNMENT_BYTES // dtype.itemsize
    more = -channels % vector
    whole = row * channels % vector == 0
    if whole or row * (channels + more) * dtype.itemsize > MOST_ROW_BYTES:
        return {}
    after = (*pad.attributes["after"][:-1], pad.attributes["after"][-1] + more)
    wide = Value(f"{x.name}_wide", TensorType(x.dtype, (*x.shape[:-1], x.shape[-1] + more)))
    widths = [(0, 0)] * (w.rank - 2) + [(0, more), (0, 0)]
    weight = constant(f"{w.name}_wide", w.dtype, np.pad(w.constant, widths))
    return {
        pad: [replace(pad, outputs=(wide,), attributes={**pad.attributes, "after": after})],
        node: [replace(node, inputs=(wide, weight))],
    }


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not value.constant.any()
