"""Pads the few channels that first layers read, so that a GPU loads whole vectors of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ftuner.core.dtype import DType
from ftuner.core.gpu.tile import ALIGNMENT_BYTES
from ftuner.graph.algebra import apply, constant
from ftuner.graph.ir import Node, Value
from ftuner.graph.rewrite.rule import Rule, rule
from ftuner.graph.rewrite.surroundings import Surroundings

MOST_ROW_BYTES = 128
"""Most bytes of a row of a window with padded channels: those of a k step of every tile, so that
padding adds no step."""


def pad_channels(held: Mapping[Value, DType]) -> Rule:
    """The rule by which paddings before convolutions also pad channels, with zeros, to whole
    vectors: the pixels of a picture are then not loaded element by element. `held`: as in
    `graph.precision`."""

    @rule("convolution")
    def padded(node: Node, around: Surroundings) -> Value | None:
        x, w = node.inputs
        pad = around.producer(x, "pad")
        if pad is None or w.constant is None or around.only_consumer(x) is not node:
            return None
        channels, row = w.shape[-2], w.shape[-3]
        zeros = pad.attributes["mode"] == "constant" and _is_zero(pad.inputs[1])
        if not zeros or node.attributes["groups"] > 1:
            return None
        assert isinstance(channels, int)
        assert isinstance(row, int)
        size = held.get(node.output, node.output.dtype).itemsize
        vector = ALIGNMENT_BYTES // size
        more = -channels % vector
        if row * channels % vector == 0 or row * (channels + more) * size > MOST_ROW_BYTES:
            return None
        after = (*pad.attributes["after"][:-1], pad.attributes["after"][-1] + more)
        wide = apply("pad", *pad.inputs, **{**pad.attributes, "after": after})
        widths = [(0, 0)] * (w.rank - 2) + [(0, more), (0, 0)]
        weight = constant(np.pad(w.constant, widths), w.dtype)
        return apply("convolution", wide, weight, **node.attributes)

    return padded


def _is_zero(value: Value) -> bool:
    return value.constant is not None and not value.constant.any()
