"""Cases from scripts, and scripts from seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tests.random_graphs import (  # noqa: F401
    attention_rows,
    contraction_rows,
    control_rows,
    idiom_rows,
    image_rows,
    indexing_rows,
    learning_rows,
    microsoft_rows,
    pointwise_rows,
    quantised_product_rows,
    quantised_rows,
    random_number_rows,
    recurrent_rows,
    reduction_rows,
    seam_rows,
    selecting_rows,
    sequence_rows,
    shape_rows,
    signal_rows,
    window_rows,
)
from tests.random_graphs.cases import Case, Feeds
from tests.random_graphs.drawing import DeclinedError, Draws, Script
from tests.random_graphs.extents import (
    BINDINGS,
    MAX_ELEMENTS,
    MAX_WORK,
    SMALL,
    SMALL_ELEMENTS,
    SMALL_WORK,
    shape_at,
)
from tests.random_graphs.forming import formed
from tests.random_graphs.making import Maker
from tests.random_graphs.table import ROWS, Row
from tests.random_graphs.tensors import DTYPES, Array, Input, Tensor
from tests.random_graphs.views import viewed

OPSETS = (18, 21, 17, 13, 23, 24, 20, 19, 22, 15, 14, 16, 12, 11, 10, 9, 7, 8, 26)
OPSET_WEIGHTS = (16, 10, 8, 8, 16, 16, 4, 3, 3, 3, 3, 3, 3, 2.5, 1.5, 2, 1, 0.7, 4)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
LENGTH_WEIGHTS = (5, 8, 10, 10, 9, 7, 5, 4, 3, 2)
"""Steps of a graph: each is a row of the table, with its views."""
MAX_NODES = 30
MAX_TRIES = 40
"""Of steps, for a graph of as many as wanted."""
WILD = 1
"""Further bindings, of any extents: both sides run them, or refuse them."""


@dataclass(frozen=True)
class Generated:
    case: Case
    script: Script
    """That makes the case again."""
    rows: tuple[str, ...]
    """The names of the rows that it was made of."""


def generate(
    script: Script, random: Random | None, only: Row | None = None, small: bool = False
) -> Generated | None:
    """The case of a script, drawn to its end by `random`; without it nothing is added to the
    script. `only`: the row of the first step. `small`: for the interpreter. None if nothing could
    be made.
    """
    head = Draws(random, script.head)
    opset = head.weighted(OPSETS, OPSET_WEIGHTS)
    length = head.weighted(LENGTHS, LENGTH_WEIGHTS)
    if only is not None and not only.since <= opset <= only.until:
        opset = min(max(opset, only.since), only.until)
    limits = (SMALL_ELEMENTS, SMALL_WORK) if small else (MAX_ELEMENTS, MAX_WORK)
    maker = Maker(
        opset, head, script.seed, viewed, formed, max_elements=limits[0],
        max_work=limits[1],
    )  # fmt: skip
    for _ in range(head.pick((1, 2))):
        try:
            maker.input(maker.some_shape(), maker.dtype(DTYPES))
        except DeclinedError:
            continue
    rows = [r for r in ROWS if r.since <= opset <= r.until]
    steps: list[tuple[int, ...]] = []
    names: list[str] = []
    planned: Sequence[tuple[int, ...]] = script.steps
    tries = len(planned) if random is None else MAX_TRIES
    for number in range(tries):
        if len(steps) >= length and random is not None:
            break
        given = planned[number] if number < len(planned) else ()
        draws = Draws(random, given)
        maker.draws = draws
        mark = maker.mark()
        try:
            row = draws.weighted(rows, [r.weight for r in rows])
            if only is not None and not names:
                row = only
            row.make(maker)
            if len(maker.nodes) > MAX_NODES:
                raise DeclinedError("too many nodes")
        except DeclinedError:
            maker.undo(mark)
            continue
        steps.append(tuple(draws.made))
        names.append(row.name)
    if not maker.nodes:
        return None
    tail = Draws(random, script.tail)
    maker.draws = tail
    outputs = _outputs(maker)
    model = _model(maker, outputs)
    made = Script(script.seed, tuple(head.made), tuple(steps), tuple(tail.made))
    runs = tuple(_feeds(maker, script.seed, binding, tail) for binding in range(BINDINGS + WILD))
    made = Script(script.seed, tuple(head.made), tuple(steps), tuple(tail.made))
    return Generated(Case(model.SerializeToString(), runs, script.seed, WILD), made, tuple(names))


def seeded(seed: int, only: Row | None = None, small: bool = False) -> Generated:
    """The case of a seed."""
    random = Random(seed)
    while True:
        found = generate(Script(seed), random, only, small)
        if found is not None:
            return found


def _outputs(maker: Maker) -> list[Tensor | str]:
    """What nothing reads, and a few that are read; inputs and constants now and then."""
    # A shape tells nothing of the elements.
    read = {
        name for node in maker.nodes if node.op_type not in ("Shape", "Size") for name in
        (node.input[:1] if node.op_type == "CastLike" else node.input)
    }  # fmt: skip
    own = {x.name for x in maker.inputs}
    free = [x for x in maker.tensors if x.name not in read and x.name not in own]
    # Strings are read by the next node alone.
    others = [
        x for x in maker.tensors if x.name in read and x.name not in own and x.dtype != "string"
    ]
    found: list[Tensor | str] = list(free)
    found += [x for x in others if maker.draws.chance(0.12)]
    found += maker.ends
    if maker.draws.chance(0.03) and maker.inputs:
        name = maker.draws.pick(maker.inputs).name
        found += [x for x in maker.tensors if x.name == name]
    return found


def _model(maker: Maker, outputs: Sequence[Tensor | str]) -> onnx.ModelProto:
    infos = [
        helper.make_empty_tensor_value_info(x) if isinstance(x, str) else
        helper.make_tensor_value_info(x.name, _element(x.dtype), [None] * x.rank)
        for x in outputs
    ]  # fmt: skip
    read = _read(maker.nodes)
    kept = {name: x for name, x in maker.constants.items() if name in read}
    graph = helper.make_graph(
        maker.nodes, "random",
        [helper.make_tensor_value_info(x.name, _element(x.dtype), x.dims) for x in maker.inputs],
        infos, [numpy_helper.from_array(x, name) for name, x in kept.items()],
    )  # fmt: skip
    opsets = [
        helper.make_opsetid("", maker.opset), helper.make_opsetid("com.microsoft", 1),
        helper.make_opsetid("ai.onnx.ml", 4),
    ]  # fmt: skip
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """What nodes read, and those of the graphs within them."""
    read = {name for node in nodes for name in node.input}
    return read.union(*(_read(a.g.node) for node in nodes for a in node.attribute))


def _element(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _feeds(maker: Maker, seed: int, binding: int, draws: Draws) -> Feeds:
    """The inputs at a binding; beyond those that the model is made for, of any extents."""
    wild = binding >= BINDINGS
    symbols = {
        name: draws.pick(SMALL) if wild else extent.at[binding]
        for name, extent in maker.symbols.items()
    }
    feeds = {}
    for number, x in enumerate(maker.inputs):
        if wild:
            shape = tuple(
                symbols.get(str(d), e.at[0]) if isinstance(d, str) else e.at[0]
                for d, e in zip(x.dims, x.shape, strict=True)
            )
        else:
            shape = shape_at(x.shape, binding)
        random = np.random.default_rng([seed, number, binding])
        feeds[x.name] = _elements(x, shape, min(binding, BINDINGS - 1), random)
    return feeds


def _elements(x: Input, shape: tuple[int, ...], binding: int, random: np.random.Generator) -> Array:
    fill = x.fill
    low, high = fill.low[binding], fill.high[binding]
    if fill.kind == "bool":
        return np.asarray(random.random(shape) < 0.5)
    if fill.kind == "uniform" and x.dtype not in ("float32", "float64"):
        if low >= high:
            return np.zeros(shape, x.dtype)
        return np.asarray(random.integers(int(low), int(high), shape)).astype(x.dtype)
    if fill.kind == "uniform":
        return np.asarray(random.uniform(low, high, shape)).astype(x.dtype)
    if fill.kind == "ties":
        return np.asarray(random.integers(-2, 3, shape)).astype(x.dtype)
    if fill.kind == "wild":
        return _wild_factors(shape, x.dtype, random)
    found = random.standard_normal(shape)
    if fill.kind == "special":
        marks = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e10, -1e-10])
        found = np.where(random.random(shape) < 0.1, random.choice(marks, shape), found)
    return np.asarray(found).astype(x.dtype)


def _wild_factors(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> Array:
    """Factors of which those of one magnitude follow each other, or are next to each other, along
    any axis, so that most products of lines are neither zero nor infinite."""
    exponent = 30.0 if dtype == "float32" else 300.0
    signs = np.ones(shape)
    blocks = random.random() < 0.5
    for axis, extent in enumerate(shape):
        at = np.arange(extent)
        along = at < extent // 2 if blocks else at % 2 == 0
        signs *= np.where(along, 1, -1).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    # A few that nothing makes up for.
    signs = np.where(random.random(shape) < 0.02, 0, signs)
    found = random.choice([-1.0, 1.0], shape) * random.uniform(0.5, 2.0, shape)
    found = found * 10.0 ** (exponent * signs)
    if random.random() < 0.2:
        marks = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
        found = np.where(random.random(shape) < 0.03, random.choice(marks, shape), found)
    return np.asarray(found).astype(dtype)
