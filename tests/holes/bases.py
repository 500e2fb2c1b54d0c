"""Small networks as exporters write them, and feeds, that holes are made in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from tests.frontends.onnx_models import model_of

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
HEADS, DEPTH, WIDTH, WORDS, POSITIONS = 2, 4, 8, 11, 6
node = helper.make_node


@dataclass(frozen=True)
class Base:
    """A model, and feeds that it runs with."""

    name: str
    model: bytes
    feeds: tuple[Feeds, ...]

    @property
    def proto(self) -> onnx.ModelProto:
        return onnx.ModelProto.FromString(self.model)


class Network:
    """Nodes, inputs and constants of a network that is written layer by layer."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, tuple[str, Sequence[int | str | None]]] = {}
        self.constants: dict[str, Array] = {}
        self._random = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(node(op, list(inputs), [name], name=f"/{name}", **attributes))
        return name

    def weight(self, *shape: int) -> str:
        x = self._random.standard_normal(shape).astype(np.float32)
        return self.constant(x / np.float32(2))

    def constant(self, x: Any) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(x)
        return name

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", x, self.weight(inputs, outputs))
        return self.add("Add", product, self.weight(outputs))

    def norm(self, x: str) -> str:
        return self.add("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)

    def extent(self, x: str, axis: int) -> str:
        """A vector of one element."""
        return self.add("Gather", self.add("Shape", x), self.constant([axis]))

    def heads(self, x: str) -> str:
        split = self.add("Reshape", x, self.constant([0, 0, HEADS, DEPTH]))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def attention(self, q: str, k: str, v: str, bias: str | None) -> str:
        """Of heads to rows of all heads."""
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.add("Div", scores, self.constant(np.float32(DEPTH**0.5)))
        if bias is not None:
            scores = self.add("Add", scores, bias)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        turned = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.add("Reshape", turned, self.constant([0, 0, WIDTH]))

    def feed_forward(self, x: str) -> str:
        wide = self.linear(x, WIDTH, 2 * WIDTH)
        half = self.add("Div", wide, self.constant(np.float32(2**0.5)))
        one = self.add("Add", self.add("Erf", half), self.constant(np.float32(1)))
        gelu = self.add("Mul", self.add("Mul", wide, one), self.constant(np.float32(0.5)))
        return self.norm(self.add("Add", x, self.linear(gelu, 2 * WIDTH, WIDTH)))

    def embedded(self, ids: str, positions: str) -> str:
        words = self.add("Gather", self.weight(WORDS, WIDTH), ids)
        return self.add("Add", words, self.add("Gather", self.weight(POSITIONS, WIDTH), positions))

    def hiding(self, mask: str, least: float = float(np.finfo(np.float32).min)) -> str:
        """A bias of scores that hides keys whose mask is zero."""
        hidden = self.add("Equal", mask, self.constant(0))
        wide = self.add("Unsqueeze", hidden, self.constant([1, 2]))
        limits = self.constant(np.float32(least)), self.constant(np.float32(0))
        return self.add("Where", wide, *limits)

    def made(self, *outputs: str) -> bytes:
        for number, name in enumerate(outputs):
            self.nodes.append(node("Identity", [name], [f"out_{number}"]))
        names = [f"out_{number}" for number in range(len(outputs))]
        model = model_of(self.nodes, self.inputs, names, self.constants)
        model.ir_version = 10
        return bytes(model.SerializeToString())


def _tokens(random: np.random.Generator, *shape: int) -> Array:
    return random.integers(0, WORDS, shape)


def encoder() -> Base:
    """BERT: a mask of keys, positions counted from the extent."""
    made, feeds = _encoder(float(np.finfo(np.float32).min))
    return Base("encoder", made, feeds)


def hidden_by_infinity() -> Base:
    """The same with minus infinity, such that a row without keys is NaN."""
    made, feeds = _encoder(-np.inf)
    return Base("hidden by infinity", made, feeds)


def _encoder(least: float) -> tuple[bytes, tuple[Feeds, ...]]:
    net = Network()
    net.inputs = {"ids": ("int64", ("batch", "length")), "mask": ("int64", ("batch", "length"))}
    length = net.add("Squeeze", net.extent("ids", 1), net.constant([0]))
    positions = net.add("Range", net.constant(0), length, net.constant(1))
    x = net.norm(net.embedded("ids", positions))
    q, k, v = (net.heads(net.linear(x, WIDTH, WIDTH)) for _ in range(3))
    x = net.norm(net.add("Add", x, net.attention(q, k, v, net.hiding("mask", least))))
    made = net.made(net.feed_forward(x))
    feeds = []
    for batch, length_ in ((2, 5), (1, 1), (3, 4)):
        random = np.random.default_rng(batch)
        mask = np.ones((batch, length_), np.int64)
        mask[1:, length_ // 2 :] = 0
        feeds.append({"ids": _tokens(random, batch, length_), "mask": mask})
    return made, tuple(feeds)


def decoder() -> Base:
    """GPT-2: keys and values of earlier tokens, positions as an input, a causal mask."""
    net = Network()
    past = ("float32", ("batch", HEADS, "past", DEPTH))
    net.inputs = {
        "ids": ("int64", ("batch", "new")), "positions": ("int64", ("batch", "new")),
        "past_key": past, "past_value": past,
    }  # fmt: skip
    x = net.norm(net.embedded("ids", "positions"))
    q, k, v = (net.heads(net.linear(x, WIDTH, WIDTH)) for _ in range(3))
    k, v = net.add("Concat", "past_key", k, axis=2), net.add("Concat", "past_value", v, axis=2)
    ends = [net.add("Squeeze", net.extent(y, axis), net.constant([0]))
            for y, axis in (("past_key", 2), (k, 2))]  # fmt: skip
    zero, one = net.constant(0), net.constant(1)
    rows = net.add("Unsqueeze", net.add("Range", ends[0], ends[1], one), net.constant([1]))
    later = net.add("Greater", net.add("Range", zero, ends[1], one), rows)
    limits = net.constant(np.finfo(np.float32).min), net.constant(np.float32(0))
    x = net.norm(net.add("Add", x, net.attention(q, k, v, net.add("Where", later, *limits))))
    made = net.made(net.linear(net.feed_forward(x), WIDTH, WORDS), k, v)
    feeds = []
    for batch, past_, new in ((2, 3, 2), (1, 1, 1), (1, 0, 4)):
        random = np.random.default_rng(batch + new)
        kept = [random.standard_normal((batch, HEADS, past_, DEPTH), np.float32) for _ in "kv"]
        positions = np.tile(np.arange(past_, past_ + new), (batch, 1))
        feeds.append({"ids": _tokens(random, batch, new), "positions": positions,
                      "past_key": kept[0], "past_value": kept[1]})  # fmt: skip
    return Base("decoder", made, tuple(feeds))


def translator() -> Base:
    """T5: a decoder that reads an encoder's rows, with a bias by distance."""
    net = Network()
    net.inputs = {
        "rows": ("float32", ("batch", "length", WIDTH)), "mask": ("int64", ("batch", "length")),
        "target": ("int64", ("batch", "target_length")),
    }  # fmt: skip
    length = net.add("Squeeze", net.extent("target", 1), net.constant([0]))
    zero, one = net.constant(0), net.constant(1)
    count = net.add("Range", zero, length, one)
    x = net.embedded("target", count)
    apart = net.add("Sub", count, net.add("Unsqueeze", count, net.constant([1])))
    near = net.add("Min", net.add("Abs", apart), net.constant(POSITIONS - 1))
    bias = net.add("Transpose", net.add("Gather", net.weight(POSITIONS, HEADS), near),
                   perm=[2, 0, 1])  # fmt: skip
    q, k, v = (net.heads(net.linear(x, WIDTH, WIDTH)) for _ in range(3))
    bias = net.add("Unsqueeze", bias, net.constant([0]))
    x = net.norm(net.add("Add", x, net.attention(q, k, v, bias)))
    q = net.heads(net.linear(x, WIDTH, WIDTH))
    k, v = (net.heads(net.linear("rows", WIDTH, WIDTH)) for _ in range(2))
    x = net.norm(net.add("Add", x, net.attention(q, k, v, net.hiding("mask"))))
    made = net.made(net.feed_forward(x))
    feeds = []
    for batch, length_, target in ((2, 5, 3), (1, 1, 1), (2, 3, 6)):
        random = np.random.default_rng(target)
        mask = np.ones((batch, length_), np.int64)
        mask[1:, length_ // 2 :] = 0
        rows = random.standard_normal((batch, length_, WIDTH), np.float32)
        feeds.append({"rows": rows, "mask": mask, "target": _tokens(random, batch, target)})
    return Base("translator", made, tuple(feeds))


def viewer() -> Base:
    """A vision transformer over patches that a convolution makes, of any resolution."""
    net = Network()
    net.inputs = {"pixels": ("float32", ("batch", 3, "height", "width"))}
    patches = net.add("Conv", "pixels", net.weight(WIDTH, 3, 4, 4), net.weight(WIDTH),
                      strides=[4, 4])  # fmt: skip
    patches = net.add("Relu", net.add("Conv", patches, net.weight(WIDTH, 1, 3, 3), group=WIDTH,
                                      pads=[1, 1, 1, 1]))  # fmt: skip
    flat = net.add("Reshape", patches, net.constant([0, WIDTH, -1]))
    rows = net.add("Transpose", flat, perm=[0, 2, 1])
    shape = net.add("Concat", net.extent("pixels", 0), net.constant([1, WIDTH]), axis=0)
    x = net.add("Concat", net.add("Expand", net.weight(1, 1, WIDTH), shape), rows, axis=1)
    q, k, v = (net.heads(net.linear(x, WIDTH, WIDTH)) for _ in range(3))
    x = net.norm(net.add("Add", x, net.attention(q, k, v, None)))
    first = net.add("Gather", net.feed_forward(x), net.constant(0), axis=1)
    pooled = net.add("GlobalAveragePool", patches)
    made = net.made(net.add("Gemm", first, net.weight(WIDTH, 5), net.weight(5)), pooled)
    feeds = []
    for batch, height, width in ((2, 8, 12), (1, 4, 4), (3, 12, 8)):
        random = np.random.default_rng(height)
        pixels = random.standard_normal((batch, 3, height, width), np.float32)
        feeds.append({"pixels": pixels})
    return Base("viewer", made, tuple(feeds))


def listener() -> Base:
    """A convolution over sound and a mean over frames that lengths leave."""
    net = Network()
    net.inputs = {"sound": ("float32", ("batch", "samples")), "lengths": ("int64", ("batch",))}
    x = net.add("Unsqueeze", "sound", net.constant([1]))
    x = net.add("Conv", x, net.weight(WIDTH, 1, 3), net.weight(WIDTH), pads=[1, 1])
    x = net.norm(net.add("Transpose", x, perm=[0, 2, 1]))
    length = net.add("Squeeze", net.extent("sound", 1), net.constant([0]))
    count = net.add("Range", net.constant(0), length, net.constant(1))
    kept = net.add("Less", count, net.add("Unsqueeze", "lengths", net.constant([1])))
    kept = net.add("Unsqueeze", net.add("Cast", kept, to=1), net.constant([2]))
    total = net.add("ReduceSum", net.add("Mul", x, kept), net.constant([1]), keepdims=0)
    mean = net.add("Div", total, net.add("ReduceSum", kept, net.constant([1]), keepdims=0))
    made = net.made(mean, x)
    feeds = []
    for batch, samples in ((2, 7), (1, 1), (3, 16)):
        random = np.random.default_rng(samples)
        sound = random.standard_normal((batch, samples), np.float32)
        feeds.append({"sound": sound, "lengths": random.integers(1, samples + 1, batch)})
    return Base("listener", made, tuple(feeds))


BASES: dict[str, Callable[[], Base]] = {
    make.__name__: make
    for make in (encoder, hidden_by_infinity, decoder, translator, viewer, listener)
}


def exported(folder: Path, most: int = 3) -> Base:
    """An architecture of the zoo, from the folder that `benchmarks.zoo` keeps its files in."""
    model = onnx.load(folder / "model.onnx")
    feeds = []
    for number in range(most):
        with np.load(folder / f"feeds-{number}.npz") as archive:
            feeds.append(dict(archive))
    return Base(folder.name, model.SerializeToString(), tuple(feeds))
