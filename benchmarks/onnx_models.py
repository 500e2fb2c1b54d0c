"""Whole models as ONNX files, written as exporters write them: a BERT, and blocks of a Llama.

Batch and length are dynamic. Weights are given as `benchmarks.torch_models.weights_of` does, and
lie in a file beside the model, so that models of more than 2 GiB can be written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from benchmarks.onnx_writing import Array, Dims, Writer

Weights = Mapping[str, Array]
MODEL_FILE, WEIGHTS_FILE = "model.onnx", "weights.bin"
EPSILON = 1e-5
ROTARY_BASE = 500_000.0
"""Of Llama 3."""


@dataclass(frozen=True)
class Encoder:
    """The widths of a BERT: post-norm, with biases and gelu."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    """The longest length."""


@dataclass(frozen=True)
class Decoder:
    """The widths of blocks of a Llama: RMS norms, rotary positions, causal attention of heads that
    share keys and values, SwiGLU; no biases."""

    layers: int
    width: int
    heads: int
    groups: int
    """Heads of keys and values."""
    inner: int
    positions: int

    @property
    def depth(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


BERT_BASE = Encoder(12, 768, 12, 3072, 30522, 512)
MINILM = Encoder(3, 384, 12, 1536, 30522, 512)
LLAMA_BLOCK = Decoder(1, 4096, 32, 8, 14336, 8192)
"""One of the 32 blocks of Llama 3 8B, which are alike."""
SMOLLM2 = Decoder(30, 576, 9, 3, 1536, 8192)
"""SmolLM2-135M."""
TINY_ENCODER = Encoder(2, 32, 4, 48, 50, 40)
TINY_DECODER = Decoder(2, 32, 4, 2, 48, 40)


def rotary_tables(shape: Decoder) -> tuple[Array, Array]:
    """Cosines and sines of `(positions, depth)`, both halves of a row alike (Su et al., 2021)."""
    half = np.arange(0, shape.depth, 2) / shape.depth
    angles = np.outer(np.arange(shape.positions), ROTARY_BASE**-half)
    both = np.concatenate([angles, angles], 1)
    return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


class _Writer(Writer):
    """A writer whose weights are given, and lie in a file beside the model."""

    def __init__(self, folder: Path, weights: Weights) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._weights = folder, weights
        self._file = (folder / WEIGHTS_FILE).open("wb")

    def stored(self, name: str, array: Array) -> str:
        """A tensor in the file of weights."""
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", WEIGHTS_FILE), ("offset", self._file.tell()), ("length", array.nbytes),
        ):  # fmt: skip
            tensor.external_data.add(key=key, value=str(value))
        np.ascontiguousarray(array, np.float32).tofile(self._file)
        self._initialisers.append(tensor)
        return name

    def weight(self, name: str) -> str:
        return self.stored(name, self._weights[name])

    def linear(self, x: str, name: str) -> str:
        """A product by a weight, `(inputs, outputs)`, and a bias where there is one."""
        y: str = self.node("MatMul", x, self.weight(f"{name}.weight"))
        if f"{name}.bias" in self._weights:
            y = self.node("Add", self.weight(f"{name}.bias"), y)
        return y

    def saved(self, inputs: dict[str, tuple[int, Dims]], output: str) -> Path:
        """Write the model; inputs are element types and dims by name."""
        self._file.close()
        self._nodes.append(helper.make_node("Identity", [output], ["output"]))
        model = self.model(inputs, {"output": ["batch", "length", None]})
        path = self._folder / MODEL_FILE
        path.write_bytes(model.SerializeToString())
        return path


def write_encoder(folder: Path, shape: Encoder, weights: Weights) -> Path:
    """A BERT from token ids and a mask, `(batch, length)` integers, to its last hidden states."""
    w = _Writer(folder, weights)
    ids, given = "input_ids", "attention_mask"
    batch, length = w.extent(ids, 0), w.extent(ids, 1)
    words = w.node("Gather", w.weight("words.weight"), ids, axis=0)
    table = w.weight("positions.weight")
    positions = w.node("Slice", table, w.constant([0]), length, w.constant([0]))
    x = w.node("Add", w.node("Add", words, w.weight("kind")), positions)
    x = _layer_norm(w, x, "norm")
    wide = w.node("Unsqueeze", w.node("Unsqueeze", given, w.constant([1])), w.constant([2]))
    hidden = w.node("Sub", w.number(1.0), w.node("Cast", wide, to=TensorProto.FLOAT))
    mask = w.node("Mul", hidden, w.number(np.finfo(np.float32).min))
    depth = shape.width // shape.heads
    for number in range(shape.layers):
        at = f"layers.{number}"
        q, k, v = (
            w.heads(w.linear(x, f"{at}.{n}"), batch, length, shape.heads, depth)
            for n in ("query", "key", "value")
        )
        mixed = w.node("Transpose", w.attention(q, k, v, depth, mask), perm=[0, 2, 1, 3])
        mixed = w.reshaped(mixed, batch, length, shape.width)
        x = _layer_norm(w, w.node("Add", w.linear(mixed, f"{at}.out"), x), f"{at}.mixed_norm")
        inner = _gelu(w, w.linear(x, f"{at}.up"))
        x = _layer_norm(w, w.node("Add", w.linear(inner, f"{at}.down"), x), f"{at}.norm")
    dims: Dims = ["batch", "length"]
    return w.saved({ids: (TensorProto.INT64, dims), given: (TensorProto.INT64, dims)}, x)


def write_decoder(folder: Path, shape: Decoder, weights: Weights) -> Path:
    """Blocks of a Llama from hidden states, `(batch, length, width)`, to those behind them."""
    w = _Writer(folder, weights)
    x = first = "hidden_states"
    batch, length = w.extent(x, 0), w.extent(x, 1)
    tables = [
        w.node("Slice", w.stored(name, table), w.constant([0]), length, w.constant([0]))
        for name, table in zip(("cosines", "sines"), rotary_tables(shape), strict=True)
    ]
    mask = _triangle(w, length)
    depth, times = shape.depth, shape.heads // shape.groups
    for number in range(shape.layers):
        at = f"layers.{number}"
        normed = _rms_norm(w, x, f"{at}.mixed_norm")
        counts = {"query": shape.heads, "key": shape.groups, "value": shape.groups}
        q, k, v = (
            w.heads(w.linear(normed, f"{at}.{n}"), batch, length, count, depth)
            for n, count in counts.items()
        )
        q, k = (_turned(w, each, tables, depth) for each in (q, k))
        k, v = (_repeated(w, each, batch, length, shape, times) for each in (k, v))
        mixed = w.node("Transpose", w.attention(q, k, v, depth, mask), perm=[0, 2, 1, 3])
        mixed = w.reshaped(mixed, batch, length, shape.width)
        x = w.node("Add", x, w.linear(mixed, f"{at}.out"))
        normed = _rms_norm(w, x, f"{at}.norm")
        gate = w.linear(normed, f"{at}.gate")
        opened = w.node("Mul", gate, w.node("Sigmoid", gate))
        inner = w.node("Mul", opened, w.linear(normed, f"{at}.up"))
        x = w.node("Add", x, w.linear(inner, f"{at}.down"))
    return w.saved({first: (TensorProto.FLOAT, ["batch", "length", shape.width])}, x)


def _layer_norm(w: _Writer, x: str, name: str) -> str:
    scale, shift = w.weight(f"{name}.weight"), w.weight(f"{name}.bias")
    return str(w.node("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON))


def _rms_norm(w: _Writer, x: str, name: str) -> str:
    mean = w.node("ReduceMean", w.node("Pow", x, w.number(2.0)), axes=[-1], keepdims=1)
    root = w.node("Sqrt", w.node("Add", mean, w.number(EPSILON)))
    return str(w.node("Mul", w.weight(f"{name}.weight"), w.node("Div", x, root)))


def _gelu(w: _Writer, x: str) -> str:
    error = w.node("Erf", w.node("Div", x, w.number(2**0.5)))
    lifted = w.node("Add", error, w.number(1.0))
    return str(w.node("Mul", w.node("Mul", x, lifted), w.number(0.5)))


def _triangle(w: _Writer, length: str) -> str:
    """An addend of `(1, 1, length, length)` that hides what is behind each position."""
    last = w.node("Squeeze", length, w.constant([0]))
    steps = w.node("Range", w.constant(0), last, w.constant(1))
    rows, columns = (w.node("Unsqueeze", steps, w.constant([axis])) for axis in (1, 0))
    behind = w.node("Greater", columns, rows)
    lowest = w.number(np.finfo(np.float32).min)
    mask = w.node("Where", behind, lowest, w.number(0.0))
    return str(w.node("Unsqueeze", mask, w.constant([0, 1])))


def _turned(w: _Writer, x: str, tables: list[str], depth: int) -> str:
    """Pairs of elements half a head apart, turned by the angles of their positions."""
    half = w.constant([depth // 2])
    first = w.node("Slice", x, w.constant([0]), half, w.constant([3]))
    second = w.node("Slice", x, half, w.constant([2**63 - 1]), w.constant([3]))
    across = w.node("Concat", w.node("Neg", second), first, axis=-1)
    straight = w.node("Mul", x, tables[0])
    return str(w.node("Add", straight, w.node("Mul", across, tables[1])))


def _repeated(w: _Writer, x: str, batch: str, length: str, shape: Decoder, times: int) -> str:
    """Heads of keys or values, each for all heads of queries that share it."""
    five = w.node("Unsqueeze", x, w.constant([2]))
    extents = [w.constant([n]) for n in (shape.groups, times, shape.depth)]
    wide = w.node("Concat", batch, *extents[:2], length, extents[2], axis=0)
    repeated = w.node("Expand", five, wide)
    return w.reshaped(repeated, batch, shape.heads, length, shape.depth)
