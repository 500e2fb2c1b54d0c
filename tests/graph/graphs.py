"""Small graphs, and what all tests of graphs ask of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner.core.dim import Dim, Shape, symbol
from ftuner.core.dtype import FLOAT32, INT64, DType
from ftuner.core.evaluation import evaluate
from ftuner.graph.buffers import View
from ftuner.graph.builder import Builder
from ftuner.graph.ir import Graph, Value
from ftuner.graph.lowering import lower
from ftuner.graph.steps import Lowered
from ftuner.graph.verify import verify
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.runtime.shapes.layout import StridedArray
from ftuner.schedules.convolution.step import ConvolutionStep
from ftuner.schedules.product.step import ProductStep

Array = npt.NDArray[Any]
B, S, T = symbol("B"), symbol("S"), symbol("T")


class Maker(Builder):
    """A builder that keeps the inputs, and knows constants by their shape."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[Value] = []
        self._random = np.random.default_rng(0)

    def given(self, name: str, *shape: Dim, dtype: DType = FLOAT32) -> Value:
        """An input."""
        value = self.input(name, dtype, shape)
        self.inputs.append(value)
        return value

    def weight(self, *shape: int) -> Value:
        """A constant of random numbers."""
        return self.constant(self._random.standard_normal(shape).astype(np.float32))

    def number(self, value: float) -> Value:
        return self.constant(np.float32(value))

    def linear(self, x: Value, n: int, bias: bool = True) -> Value:
        """`x @ weight + bias`."""
        k = x.shape[-1]
        assert isinstance(k, int)
        scaled = self._random.standard_normal((k, n)) / k**0.5
        y = self.add("matmul", x, self.constant(scaled.astype(np.float32)))
        return self.add("add", y, self.weight(n)) if bias else y

    def heads(self, x: Value, count: int, perm: tuple[int, ...]) -> Value:
        """(B, S, count * depth) as (B, S, count, depth), transposed."""
        depth = x.shape[-1]
        assert isinstance(depth, int)
        apart = self.add("reshape", x, shape=(*x.shape[:-1], count, depth // count))
        return self.add("transpose", apart, perm=perm)

    def gelu(self, x: Value) -> Value:
        """As PyTorch writes it."""
        lifted = self.add("add", self.add("erf", self.add("divide", x, self.number(2**0.5))),
                          self.number(1))  # fmt: skip
        return self.add("multiply", self.add("multiply", x, lifted), self.number(0.5))

    def attention(self, q: Value, k: Value, v: Value, scale: float, mask: Value | None) -> Value:
        """Written out: products, scale, mask, softmax."""
        scores = self.add("multiply", self.add("matmul", q, k), self.number(scale))
        if mask is not None:
            scores = self.add("add", scores, mask)
        weights = self.add("softmax", scores, axis=scores.rank - 1, log=False)
        return self.add("matmul", weights, v)

    def self_attention(self, x: Value, mask: Value, heads: int) -> Value:
        """Heads of three projections of one tensor, side by side again; a mask of ones and
        zeros."""
        *_, width = x.shape
        assert isinstance(width, int)
        q, k, v = (self.linear(x, width) for _ in range(3))
        q = self.heads(q, heads, (0, 2, 1, 3))
        k = self.heads(k, heads, (0, 2, 3, 1))
        v = self.heads(v, heads, (0, 2, 1, 3))
        shown = self.add("reshape", mask, shape=(B, 1, 1, S))
        hidden = self.add("multiply", self.add("subtract", self.number(1), shown),
                          self.number(-1e9))  # fmt: skip
        y = self.attention(q, k, v, (width / heads) ** -0.5, hidden)
        return self.add("reshape", self.add("transpose", y, perm=(0, 2, 1, 3)), shape=x.shape)

    def made(self, *outputs: Value) -> Graph:
        """The graph of outputs `y0`, `y1`, ..."""
        graph = self.graph(self.inputs, [(f"y{i}", y) for i, y in enumerate(outputs)])
        verify(graph)
        return graph


def graph_of(body: Callable[[Maker], Value | Sequence[Value]]) -> Graph:
    """The graph that a function makes."""
    maker = Maker()
    with maker.writing():
        outputs = body(maker)
    return maker.made(*([outputs] if isinstance(outputs, Value) else outputs))


def builds(body: Callable[..., Value | Sequence[Value]]) -> Callable[..., Graph]:
    """A function that makes the graph which `body` writes; it has its other arguments."""
    return lambda *given: graph_of(lambda maker: body(maker, *given))


def selection() -> Graph:
    """Elements of `x` at indices along its first axis, and `x` with others there."""
    maker = Maker()
    x, at = maker.given("x", B, S), maker.given("at", T, symbol("U"), dtype=INT64)
    updates = maker.given("updates", *at.shape)
    return maker.made(
        maker.add("gather_elements", x, at, axis=0),
        maker.add("scatter_elements", x, at, updates, axis=0, kind="none"),
    )


def selected(x: Array, at: Array, updates: Array) -> list[Array]:
    """What `selection` gives."""
    scattered = x.copy()
    columns = np.arange(at.shape[1])
    scattered[at, columns] = updates
    return [x[at, columns], scattered]


def grown() -> Graph:
    """`x` in S copies of a row, read again and again: as a result, and in memory between two steps.
    Extents of a model are few, its results may be any."""
    maker = Maker()
    x, n = maker.given("x", 1, 3), maker.given("n", S, dtype=INT64)
    wide = maker.add("broadcast", x, shape=(S * S * S * S, 3))
    largest, _ = maker.add_many("top_k", wide, axis=0, k=1, largest=True)
    return maker.made(maker.add("exp", wide), largest, n)


def layer(width: int = 24, heads: int = 2, hidden: int = 40) -> Graph:
    """An encoder layer, with a mask of ones and zeros."""
    maker = Maker()
    x, mask = maker.given("x", B, S, width), maker.given("mask", B, S)
    y = maker.self_attention(x, mask, heads)
    y = maker.add("add", maker.linear(y, width), x)
    y = maker.add("norm", y, maker.weight(width), maker.weight(width), axis=2, epsilon=1e-5,
                  rms=False)  # fmt: skip
    z = maker.linear(maker.gelu(maker.linear(y, hidden)), width)
    return maker.made(maker.add("add", z, y))


def inputs_of(graph: Graph, bindings: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random arrays by name: floats are normal, integers are indices of three elements, in order
    and from the back."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for value in graph.inputs:
        shape = shape_of(value.shape, bindings)
        if value.dtype.kind == "float":
            x: Array = random.standard_normal(shape).astype(value.dtype.name)
        elif value.dtype.kind == "bool":
            x = random.random(shape) < 0.5
        else:
            x = random.integers(-3, 3, shape).astype(value.dtype.name)
        found[value.name] = x
    return found


def shape_of(shape: Shape, bindings: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(n, bindings) for n in shape)


def strided(view: View, bindings: Mapping[str, int]) -> StridedArray:
    """How a view lies at some extents."""
    size = view.layout.dtype.itemsize
    strides = tuple(n * size for n in shape_of(view.layout.strides, bindings))
    return StridedArray(shape_of(view.shape, bindings), strides, size)


def reference(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    return run_reference(graph, [inputs[v.name] for v in graph.inputs])


def assert_close(found: Sequence[Array], expected: Sequence[Array], message: str = "") -> None:
    """Equal to within what sums of some dozens in another order explain."""
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype, message
        assert x.shape == y.shape, message
        np.testing.assert_allclose(x, y, 1e-4, 1e-4, err_msg=message)


Pass = Callable[[Graph], Graph]
Body = Callable[[Maker], Value]
Function = Callable[[Value], Value]
PASS_BINDINGS = ({"B": 2, "S": 5, "T": 3}, {"B": 1, "S": 1, "T": 1})


def of_x(function: Function, *shape: Dim) -> Body:
    """A function of one input, (B, S) unless a shape is given."""
    return lambda g: function(g.given("x", *(shape or (B, S))))


def applied(apply: Pass, graph: Graph) -> Graph:
    """The graph after a pass: valid, with the same names and results."""
    found = apply(graph)
    verify(found)
    assert [name for name, _ in found.outputs] == [name for name, _ in graph.outputs]
    assert [v.type for _, v in found.outputs] == [v.type for _, v in graph.outputs]
    assert found.inputs == graph.inputs
    assert found.constraints == graph.constraints
    for bindings in PASS_BINDINGS:
        inputs = inputs_of(graph, bindings)
        assert_close(reference(found, inputs), reference(graph, inputs))
    return found


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def assert_steps_are_sound(lowered: Lowered) -> None:
    """What native code takes for granted: a product with a matrix B walks the rows of all axes as
    one, in each array that it touches."""
    for step in lowered.steps:
        if isinstance(step, ProductStep):
            flat = len(step.b.shape) == 2
            for view in (step.c, *step.operands):
                assert view.layout.strides[-1] == 1, step.title
            through_window = isinstance(step, ConvolutionStep)
            matrices = (step.c,) if through_window else (step.a, step.c)
            for view in matrices if flat else ():
                assert len(view.shape) == 2, f"{step.title}: {view.layout} is no matrix"
            for view in step.operands:
                assert view.shape in (step.c.shape, (1, step.c.shape[-1])), step.title


def assert_left_alone(apply: Callable[[Graph], Graph], body: Body) -> None:
    """A pass finds nothing in a graph."""
    graph = graph_of(body)
    assert ops(applied(apply, graph)) == ops(graph)


def titles(graph: Graph) -> list[str]:
    """Of the steps that a graph becomes."""
    lowered = lower(graph)
    assert_steps_are_sound(lowered)
    return [step.title for step in lowered.steps]


def assert_runs(
    graph: Graph, backend: CpuBackend, *bindings: Mapping[str, int], threads: Sequence[int] = (1, 2)
) -> Model:
    """A model of the graph gives what the references give, at all extents."""
    assert_steps_are_sound(lower(graph))
    model = Model(graph, backend)
    for count in threads:
        backend.threads = count
        for seed, bound in enumerate(bindings):
            inputs = inputs_of(graph, bound, seed)
            message = f"{dict(bound)}, {count} threads"
            assert_close(model.run(inputs), reference(graph, inputs), message)
    return model
