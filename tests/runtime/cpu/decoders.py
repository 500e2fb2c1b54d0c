"""Decoders with keys and values of earlier tokens, as ONNX files with symbols for all extents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ftuner.runtime.cpu.arrays import Array

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@dataclass(frozen=True)
class Decoder:
    """A decoder of text. `layout`: the axes of keys and values: `heads` (batch, heads, rows,
    depth), `rows` (batch, rows, heads * depth), or `columns`, whose keys are (batch, heads, depth,
    rows)."""

    layers: int = 2
    heads: int = 2
    shared: int = 1
    """Heads that share keys and values."""
    depth: int = 16
    words: int = 50
    wide: int = 1
    """The width of the hidden part of a layer, in widths of the model; 0 for none."""
    layout: str = "heads"
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return self.heads * self.depth

    @property
    def names(self) -> list[tuple[str, str]]:
        """The inputs of keys and values, and the outputs that continue them."""
        pairs = [(i, part) for i in range(self.layers) for part in ("key", "value")]
        return [(f"past.{i}.{part}", f"present.{i}.{part}") for i, part in pairs]

    def axis(self, name: str) -> int:
        """The axis of the rows of keys or values."""
        if self.layout == "rows":
            return 1
        return 3 if self.layout == "columns" and name.endswith("key") else 2

    def shape(self, name: str, batch: Any, rows: Any) -> tuple[Any, ...]:
        heads = self.heads // self.shared
        return {
            1: (batch, rows, heads * self.depth),
            2: (batch, heads, rows, self.depth),
            3: (batch, heads, self.depth, rows),
        }[self.axis(name)]

    def empty(self, batch: int = 1, rows: int = 0, seed: int = 0) -> dict[str, Array]:
        """Keys and values of earlier tokens, by the names of inputs."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.standard_normal(self.shape(name, batch, rows)).astype(self.dtype)
            for name, _ in self.names
        }

    def continued(self, found: Mapping[str, Array]) -> dict[str, Array]:
        """The results of a run as inputs of the next one."""
        return {past: found[present] for past, present in self.names}

    def file(self, seed: int = 0) -> bytes:
        return _Writer(self, seed).file()


class _Writer:
    def __init__(self, decoder: Decoder, seed: int) -> None:
        self.decoder = decoder
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, op: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        name = name or f"{op}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, array: Any, dtype: str = "int64") -> str:
        name = f"constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        weight = self.rng.standard_normal((rows, columns)) / np.sqrt(rows)
        return self.add("MatMul", x, self.constant(weight, self.decoder.dtype))

    def heads_of(self, x: str, heads: int) -> str:
        shape = self.constant([0, 0, heads, self.decoder.depth])
        return self.add("Transpose", self.add("Reshape", x, shape), perm=[0, 2, 1, 3])

    def joined(self, x: str, layer: int, part: str) -> str:
        """Keys or values of all tokens, as (batch, heads, rows, depth)."""
        decoder, past = self.decoder, f"past.{layer}.{part}"
        heads, axis = decoder.heads // decoder.shared, decoder.axis(past)
        if axis != 1:
            x = self.heads_of(x, heads)
        if axis == 3:
            x = self.add("Transpose", x, perm=[0, 1, 3, 2])
        found = self.add("Concat", past, x, name=f"present.{layer}.{part}", axis=axis)
        if axis == 1:
            return self.heads_of(found, heads)
        return self.add("Transpose", found, perm=[0, 1, 3, 2]) if axis == 3 else found

    def repeated(self, x: str) -> str:
        """Keys or values once for each of the heads that share them."""
        decoder = self.decoder
        if decoder.shared == 1:
            return x
        x = self.add("Unsqueeze", x, self.constant([2]))
        x = self.add("Expand", x, self.constant([1, 1, decoder.shared, 1, 1]))
        return self.add("Reshape", x, self.shape_of_heads)

    def file(self) -> bytes:
        decoder, width = self.decoder, self.decoder.width
        zero, one = self.constant([0]), self.constant([1])
        table = self.constant(self.rng.standard_normal((decoder.words, width)), decoder.dtype)
        x = self.add("Gather", table, "ids")
        # Key j is seen by row i if j <= i + past.
        axis = decoder.axis("past.0.value")
        past, rows, batch = (
            self.add("Gather", self.add("Shape", name), self.constant([at]))
            for name, at in (("past.0.value", axis), ("ids", 1), ("ids", 0))
        )
        total = self.add("Add", past, rows)
        heads, depth = self.constant([decoder.heads]), self.constant([decoder.depth])
        self.shape_of_heads = self.add("Concat", batch, heads, total, depth, axis=0)
        begin, end, step = (self.add("Squeeze", n, zero) for n in (past, total, one))
        columns = self.add("Range", self.add("Squeeze", zero, zero), end, step)
        row = self.add("Unsqueeze", self.add("Range", begin, end, step), one)
        seen = self.add("LessOrEqual", columns, row)
        hidden = self.constant(-1e4, decoder.dtype)
        mask = self.add("Where", seen, self.constant(0, decoder.dtype), hidden)
        scale = self.constant(decoder.depth**-0.5, decoder.dtype)
        for layer in range(decoder.layers):
            q = self.heads_of(self.linear(x, width, width), decoder.heads)
            k, v = (
                self.joined(self.linear(x, width, width // decoder.shared), layer, part)
                for part in ("key", "value")
            )
            k = self.add("Transpose", self.repeated(k), perm=[0, 1, 3, 2])
            scores = self.add("Mul", self.add("MatMul", q, k), scale)
            weights = self.add("Softmax", self.add("Add", scores, mask), axis=-1)
            y = self.add("MatMul", weights, self.repeated(v))
            y = self.add("Transpose", y, perm=[0, 2, 1, 3])
            y = self.add("Reshape", y, self.constant([0, 0, width]))
            x = self.add("Add", x, self.linear(y, width, width))
            if decoder.wide:
                hidden_width = width * decoder.wide
                y = self.add("Relu", self.linear(x, width, hidden_width))
                x = self.add("Add", x, self.linear(y, hidden_width, width))
        last = self.linear(x, width, decoder.words)
        self.add("Identity", last, name="logits")
        return self._model()

    def _model(self) -> bytes:
        decoder, float_ = self.decoder, TYPES[self.decoder.dtype]
        info = helper.make_tensor_value_info
        inputs = [info("ids", TensorProto.INT64, ["batch", "new"])]
        outputs = [info("logits", float_, ["batch", "new", decoder.words])]
        for past, present in decoder.names:
            inputs.append(info(past, float_, decoder.shape(past, "batch", "past")))
            outputs.append(info(present, float_, decoder.shape(present, "batch", "total")))
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 17)]
        found: bytes = helper.make_model(
            graph, opset_imports=opsets, ir_version=9
        ).SerializeToString()
        return found
