"""What exporters write out, and how few steps it becomes."""

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx_models import parsed

from ftuner.core.dim import symbol
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.runtime.reference import run_reference

ROWS, HEADS = "float[b, s, 6] x", "float[b, 3, s, 8] x"


def steps_of(inputs: str, nodes: str, opset: int = 18, **constants: Any) -> list[str]:
    """The titles of the steps of a model whose result is y."""
    model = parsed(f"({inputs}) => (y) {{ {nodes} }}", opset, **constants)
    return [step.title for step in lower(optimised(import_model(model).graph)).steps]


def row(*values: float) -> Any:
    return np.array(values, np.float32)


def test_softmax() -> None:
    nodes = """
        largest = ReduceMax<keepdims=1>(x, last)
        above = Sub(x, largest)
        power = Exp(above)
        total = ReduceSum<keepdims=1>(power, last)
        y = Div(power, total)
    """
    assert steps_of(ROWS, nodes, last=np.array([-1])) == ["softmax"]


SIDES = np.ones((6, 5), np.float32)
"""The weight of a product."""


def test_gelu_with_tanh() -> None:
    nodes = """
        h = MatMul(x, w)
        cube = Pow(h, three)
        small = Mul(cube, a)
        sum = Add(h, small)
        argument = Mul(sum, root)
        tanh = Tanh(argument)
        lifted = Add(tanh, one)
        whole = Mul(h, lifted)
        y = Mul(whole, half)
    """
    numbers = {"three": 3, "a": 0.044715, "root": 0.7978845834732056, "one": 1, "half": 0.5}
    constants = {name: np.float32(x) for name, x in numbers.items()}
    assert steps_of(ROWS, nodes, w=SIDES, **constants) == ["matmul + gelu_tanh"]


ACTIVATIONS = {
    # Nodes from h to y, the version of ONNX's operators, and the step.
    "silu": ("g = Sigmoid(h) y = Mul(h, g)", 18, "silu"),
    "Swish": ("y = Swish(h)", 24, "silu"),
    "QuickGelu": ("y = com.microsoft.QuickGelu(h)", 18, "swish"),
    "HardSwish": ("y = HardSwish(h)", 18, "hard_swish"),
    "HardSigmoid": ("g = HardSigmoid<alpha=0.16666667>(h) y = Mul(h, g)", 18, "hard_swish"),
    "Clip": (
        "sum = Add(h, three) g = Clip(sum, zero, six) whole = Mul(h, g) y = Div(whole, six)",
        18,
        "hard_swish",
    ),
}


@pytest.mark.parametrize(("nodes", "opset", "title"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activations_of_products(nodes: str, opset: int, title: str) -> None:
    numbers = {name: np.float32(x) for name, x in (("zero", 0), ("three", 3), ("six", 6))}
    found = steps_of(ROWS, f"h = MatMul(x, w) {nodes}", opset, w=SIDES, **numbers)
    assert found == [f"matmul + {title}"]


def test_batch_norm_of_a_product() -> None:
    nodes = """
        h = Gemm(x, w, b)
        centred = Sub(h, mean)
        scaled = Mul(centred, scale)
        lifted = Add(variance, epsilon)
        root = Sqrt(lifted)
        normal = Div(scaled, root)
        whole = Add(normal, shift)
        y = Relu(whole)
    """
    found = steps_of(
        "float[n, 6] x", nodes, w=np.ones((6, 2), np.float32), b=row(1, 2), mean=row(3, 4),
        scale=row(5, 6), variance=row(7, 8), epsilon=np.float32(1e-5), shift=row(9, 10),
    )  # fmt: skip
    assert found == ["matmul + add + maximum"]


@pytest.mark.parametrize("rank", [2, 4])
def test_batch_norm(rank: int) -> None:
    """By constants it is one multiplication and one addition, or none after a product."""
    constants = {"w": np.ones((6, 2), np.float32)}
    constants |= {name: row(1, 2) for name in ("scale", "shift", "mean", "variance")}
    node = "y = BatchNormalization(h, scale, shift, mean, variance)"
    if rank == 2:
        found = steps_of("float[n, 6] x", f"h = MatMul(x, w) {node}", **constants)
        assert found == ["matmul + add"]
    else:
        assert steps_of("float[n, 2, r, c] h", node, **constants) == ["multiply + add"]


def test_an_element_by_a_constant_index_is_a_view() -> None:
    model = parsed("(float[b, 5, s] x) => (y) { one = Gather<axis=1>(x, at) y = Tanh(one) }", at=-2)
    graph = import_model(model).graph
    assert [step.title for step in lower(optimised(graph)).steps] == ["tanh"]
    x = np.arange(30, dtype=np.float32).reshape(2, 5, 3) / 10
    (found,) = run_reference(graph, [x])
    np.testing.assert_array_equal(found, np.tanh(x[:, 3]))


SLICED = "x1 = Slice(x, zero, half, last) x2 = Slice(x, half, end, last)"
SPLIT = "x1, x2 = Split<axis=-1, num_outputs=2>(x)"


@pytest.mark.parametrize("parts", [SLICED, SPLIT])
def test_rotary_positions(parts: str) -> None:
    nodes = f"""
        {parts}
        negative = Neg(x2)
        turned = Concat<axis=-1>(negative, x1)
        straight = Mul(x, cos)
        across = Mul(turned, sin)
        y = Add(straight, across)
    """
    numbers = {"zero": [0], "half": [4], "end": [2**63 - 1], "last": [-1]}
    inputs = f"{HEADS}, float[b, 1, s, 8] cos, float[b, 1, s, 8] sin"
    assert steps_of(inputs, nodes, **numbers) == ["rotary"]


@pytest.mark.each_value
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("placed", [False, True])
def test_rotary_embedding(interleaved: int, rank: int, placed: bool) -> None:
    """One step. The angles of positions are looked up before, once for all heads."""
    at, table = (", at", "50, 4") if placed else ("", "b, s, 4")
    inputs = f"float[{'b, s, 24' if rank == 3 else 'b, 3, s, 8'}] x"
    inputs += f", float[{table}] cos, float[{table}] sin{', int64[b, s] at' if placed else ''}"
    node = f"y = RotaryEmbedding<interleaved={interleaved}, num_heads=3>(x, cos, sin{at})"
    assert steps_of(inputs, node, 23) == [*(["gather"] * 2 if placed else []), "rotary"]


def test_rotary_embedding_by_angles_that_all_sequences_share() -> None:
    """Torch's exporter writes tables with a batch of 1, which ONNX's definition broadcasts."""
    inputs = f"{HEADS}, float[1, s, 4] cos, float[1, s, 4] sin"
    model = parsed(f"({inputs}) => (y) {{ y = RotaryEmbedding(x, cos, sin) }}", 23)
    graph = import_model(model).graph
    assert [step.title for step in lower(optimised(graph)).steps] == ["rotary"]
    rng = np.random.default_rng(0)
    x, *tables = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 5, 8), *[(1, 5, 4)] * 2)
    )
    cosines, sines = (t[:, None] for t in tables)
    first, second = np.split(x, 2, -1)
    wanted = np.concatenate(
        [first * cosines - second * sines, first * sines + second * cosines], -1
    )
    np.testing.assert_allclose(run_reference(graph, [x, *tables])[0], wanted, rtol=1e-5, atol=1e-6)


def test_rotary_embedding_of_part_of_a_head() -> None:
    inputs = f"{HEADS}, float[b, s, 3] cos, float[b, s, 3] sin"
    node = "y = RotaryEmbedding<rotary_embedding_dim=6>(x, cos, sin)"
    model = parsed(f"({inputs}) => (y) {{ {node} }}", 23)
    graph = optimised(import_model(model).graph)
    assert [n.op for n in graph.nodes].count("rotary") == 1
    assert graph.outputs[0][1].shape == (symbol("b"), 3, symbol("s"), 8)
