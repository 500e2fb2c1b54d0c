"""The work of loading a model grows with its nodes, not with their square; the depth of calls and
the number of kernels do not grow."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

from ftuner.inference import load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.step_kind import kind_of

NODE = helper.make_node
FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
FEW = 12
"""Blocks of the smallest model of a kind."""
LONG = 64
"""The same of blocks that are inlined: each joins a nest of up to `MAX_INLINED_STEPS`."""
RATIO = 2.3
"""Most calls for twice as many more blocks: 2 if they grow linearly, 4 with the square."""
SLACK = 600
"""Calls that depend on something else than the number of blocks."""
DEPTH = 4
"""Most frames by which twice as many blocks may deepen the calls."""


class Made(NamedTuple):
    """A model in the making: a block appends nodes and weights, which read the last result."""

    nodes: list[Any]
    weights: list[Any]

    def weight(self, *extents: int, dtype: str = "float32") -> str:
        name = f"weight_{len(self.weights)}"
        values = np.linspace(0.5, 1, int(np.prod(extents)), dtype=np.float32).reshape(extents)
        self.weights.append(numpy_helper.from_array(values.astype(dtype), name))
        return name

    def integers(self, *values: int) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"value_{len(self.nodes)}"
        self.nodes.append(NODE(op, inputs, [name], **attributes))
        return name


Block = Callable[[Made, str], str]


def pointwise(m: Made, x: str) -> str:
    return m.add("Relu", m.add("Mul", m.add("Add", x, m.weight(8)), m.weight(8)))


def centred(m: Made, x: str) -> str:
    return m.add("Add", m.add("Sub", x, m.add("ReduceMean", x, axes=[1])), x)


def dense(m: Made, x: str) -> str:
    y = m.add("Add", m.add("MatMul", x, m.weight(8, 8)), m.weight(8))
    error = m.add("Erf", m.add("Mul", y, m.weight(1)))
    gelu = m.add("Mul", m.add("Mul", y, m.add("Add", error, m.weight(1))), m.weight(1))
    return m.add("LayerNormalization", m.add("Add", gelu, x), m.weight(8), m.weight(8))


def residual(m: Made, x: str) -> str:
    y = m.add("Conv", x, m.weight(8, 8, 3, 3), m.weight(8), pads=[1] * 4)
    return m.add("Add", m.add("Relu", y), x)


def instances(m: Made, x: str) -> str:
    return m.add("Relu", m.add("InstanceNormalization", x, m.weight(8), m.weight(8)))


def views(m: Made, x: str) -> str:
    y = m.add("Transpose", m.add("Reshape", x, m.integers(-1, 2, 4)), perm=[1, 0, 2])
    return m.add("Reshape", m.add("Transpose", y, perm=[1, 0, 2]), m.integers(-1, 8))


def shapes(m: Made, x: str) -> str:
    count = m.add("Gather", m.add("Shape", x), m.integers(0))
    shape = m.add("Concat", m.add("Mul", count, m.integers(1)), m.integers(8), axis=0)
    return m.add("Relu", m.add("Reshape", x, shape))


def joined(m: Made, x: str) -> str:
    return m.add("Concat", x, "other", axis=1)


def constants(m: Made, x: str) -> str:
    return m.add("Tanh", m.add("Add", x, m.add("Mul", m.weight(8), m.weight(8))))


def gated(m: Made, x: str) -> str:
    return m.add("Mul", m.add("Sigmoid", x), "x")


def scores(m: Made, x: str) -> str:
    """Each block has a scale of its own."""
    name = f"scale_{len(m.nodes)}"
    m.weights.append(numpy_helper.from_array(np.float32(0.3 + len(m.nodes) / 997), name))
    y = m.add("MatMul", x, m.add("Transpose", x, perm=[1, 0]))
    return m.add("MatMul", m.add("Floor", m.add("Mul", y, name)), x)


def chain_of(count: int, block: Block, kind: int, *shape: int | str) -> Any:
    m, x = Made([], []), "x"
    for _ in range(count):
        x = block(m, x)
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    if block is joined:
        inputs.append(helper.make_tensor_value_info("other", kind, ["rows", 1]))
    return finished(m, inputs, [helper.make_tensor_value_info(x, kind, None)])


def finished(m: Made, inputs: list[Any], outputs: list[Any]) -> Any:
    graph = helper.make_graph(m.nodes, "graph", inputs, outputs, m.weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def many_outputs(count: int) -> Any:
    m = Made([], [])
    found = [m.add("Mul", "x", m.weight(8)) for _ in range(count)]
    outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in found]
    return finished(m, [helper.make_tensor_value_info("x", FLOAT, ["rows", 8])], outputs)


def body_of(count: int) -> Any:
    """A loop whose body is a chain."""
    m, x = Made([], []), "state"
    for _ in range(count):
        x = centred(m, x)
    m.nodes.append(NODE("Identity", ["go"], ["go_on"]))
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        m.nodes, "body", [info("i", INT64, []), info("go", TensorProto.BOOL, []),
                          info("state", FLOAT, ["rows", 8])],
        [info("go_on", TensorProto.BOOL, []), info(x, FLOAT, None)], m.weights,
    )  # fmt: skip
    inputs = [info("x", FLOAT, ["rows", 8]), info("n", INT64, [])]
    loop = NODE("Loop", ["n", "", "x"], ["y"], body=body)
    return finished(Made([loop], []), inputs, [info("y", FLOAT, None)])


class Work(NamedTuple):
    calls: Counter[CodeType]
    depth: int
    kernels: int


def work_of(model: Any, backend: CpuBackend) -> Work:
    """The calls of each Python function, the most that are active at once, and the kernels."""
    # Kernels are compiled beforehand. How deep their expressions are has a limit.
    load(model, threads=1)
    calls: Counter[CodeType] = Counter()
    active = depth = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal active, depth
        if event == "call":
            active += 1
            calls[frame.f_code] += 1
            depth = max(depth, active)
        elif event == "return":
            active -= 1

    before = sys.getprofile()
    # What a collection finds depends on what ran before.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        loaded = load(model, threads=1)
    finally:
        sys.setprofile(before)
        gc.enable()
    hardware, isa = backend.hardware, backend.kernels.isa
    kernels = {kind_of(step).bundle(step, hardware, isa) for step in loaded.steps}
    return Work(calls, depth, len(kernels))


ROWS = (FLOAT, "rows", 8)
PICTURE = (FLOAT, "images", 8, "height", "width")
MODELS: dict[str, Callable[[int], Any]] = {
    **{block.__name__: lambda n, block=block: chain_of(n, block, *ROWS)
       for block in (pointwise, centred, dense, views, shapes, joined, constants, gated, scores)},
    **{block.__name__: lambda n, block=block: chain_of(n, block, *PICTURE)
       for block in (residual, instances)},
    "joined halves": lambda n: chain_of(n, joined, HALF, "rows", 8),
    "outputs": many_outputs,
    "body": body_of,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_work_is_linear_in_nodes(name: str, widest: CpuBackend) -> None:
    count = LONG if name in ("pointwise", "shapes", "constants", "gated") else FEW
    few, more, most = (work_of(MODELS[name](n * count), widest) for n in (1, 2, 4))
    grown = {
        f"{code.co_filename}: {code.co_name}": (few.calls[code], more.calls[code], calls)
        for code, calls in most.calls.items()
        if calls - more.calls[code] > RATIO * (more.calls[code] - few.calls[code]) + SLACK
    }
    assert not grown
    assert most.depth - more.depth <= DEPTH
    # A long chain is cut into a few kernels that repeat. Growing rows are no equal blocks.
    assert "joined" in name or most.kernels <= more.kernels + 2
