"""Loops over bags of rows: each iteration reduces a part of a tensor that data bounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.frontends.control_models import RNG, expect_agreement, floats
from tests.frontends.onnx_models import parsed

from ftuner.errors import IndexRangeError
from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.passes.pipeline import optimised
from ftuner.inference import Model, load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model as RuntimeModel
from ftuner.runtime.reference import run_reference

Feeds = dict[str, Any]
ROWS = 50
WEIGHING = """
    own = Slice(weights, from, to, zero)
    column = Unsqueeze(own, one)
    weighted = Mul(rows, column)
"""
NAMES = {"float32": "float", "float64": "double"}
"""Of ONNX, where they are not NumPy's."""


def embedding_bag(
    reduction: str = "ReduceSum", weighted: bool = False, table: Any = None,
    extents: tuple[int | str, int | str] = ("n", "bags"), nodes: str = "",
    results: Sequence[str] = ("sum",),
) -> Any:  # fmt: skip
    """Reduced rows of a table, of bags of indices that begin at `offsets`: as PyTorch's older
    exporter writes `nn.EmbeddingBag`. `nodes`: others of the body, which may give other `results`
    to be stacked. `extents`: of indices and offsets."""
    table = floats(ROWS, 8) if table is None else table
    element = NAMES.get(table.dtype.name, table.dtype.name)
    n, bags = extents
    stacked = ", ".join(f"{element}[] {name}" for name in results)
    text = f"""(int64[{n}] ids, int64[{bags}] offsets {f", {element}[{n}] weights" * weighted})
            => ({", ".join(f"{element}[] all_{name}" for name in results)})
            <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] far = {{9223372036854775807}},
             int64 first = {{0}}, bool always = {{1}}> {{
        count = Shape(ids)
        begins = Concat<axis=0>(offsets, count)
        ends = Slice(begins, one, far, zero, one)
        bags = Shape(ends)
        trips = Gather<axis=0>(bags, first)
        {", ".join(f"all_{name}" for name in results)} = Loop(trips, always) <body = body
                (int64 i, bool go) => (bool go_next, {stacked}) {{
            begin = Gather<axis=0>(begins, i)
            end = Gather<axis=0>(ends, i)
            from = Unsqueeze(begin, zero)
            to = Unsqueeze(end, zero)
            bag = Slice(ids, from, to, zero)
            rows = Gather<axis=0>(table, bag)
            {WEIGHING * weighted}
            sum = {reduction}<keepdims=0>({"weighted" if weighted else "rows"}, zero)
            {nodes}
            go_next = Cast<to=9>(always)
        }}>
    }}"""
    return parsed(text, table=table)


def given(n: int, offsets: Sequence[int], weighted: bool = False, dtype: Any = np.float32) -> Feeds:
    found: Feeds = {"ids": RNG.integers(-ROWS, ROWS, n), "offsets": np.array(offsets, np.int64)}
    return {**found, "weights": floats(n).astype(dtype)} if weighted else found


LENGTHS: tuple[tuple[int, list[int]], ...] = (
    (9, [0, 4, 5]), (20, [0, 0, 7, 19, 20]), (3, [0]), (30, [*range(30)]), (1, [0, 1, 1]),
    # Bags from the back, beyond the end, and of an end before the begin.
    (11, [-4, -20, 3, 40, 2, 2**40, -(2**40)]), (2311, [0, 1009, 1009, 2310]), (0, [0, 0]), (5, []),
)  # fmt: skip


def is_one_nest(model: Any) -> bool:
    """Whether no loop is left for the host."""
    found = [node.op for node in optimised(import_model(model).graph, halves=False).nodes]
    assert ("loop" in found) != ("independent_loop" in found)
    return "loop" not in found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceMean"])
def test_bags_of_rows(
    widest: CpuBackend, compiled: list[Any], reduction: str, weighted: bool
) -> None:
    model = embedding_bag(reduction, weighted)
    loaded = expect_agreement(model, *(given(n, at, weighted) for n, at in LENGTHS))
    assert type(loaded) is Model
    assert len(loaded.parts) == 1
    # Another load compiles as much as the load and the calls so far.
    count = len(compiled)
    load(model)
    assert len(compiled) == 2 * count


def test_bags_on_each_isa(backend: CpuBackend) -> None:
    graph = import_model(embedding_bag(weighted=True, table=floats(ROWS, 37))).graph
    model = RuntimeModel(optimised(graph, halves=False), backend)
    for n, at in LENGTHS:
        feeds = given(n, at, True)
        (found,), (expected,) = model.run(feeds), run_reference(graph, [*feeds.values()])
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("reduction", ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"])
def test_bags_are_reduced_in_other_ways(widest: CpuBackend, reduction: str) -> None:
    model = embedding_bag(reduction, True)
    assert is_one_nest(model)
    # ONNX Runtime refuses the maximum of no element.
    some = ((9, [0, 4, 5]), (3, [0]), (30, [*range(30)]), (1009, [0, 1, 1000]))
    expect_agreement(model, *(given(n, at, True) for n, at in some))
    graph, feeds = import_model(model).graph, given(20, [0, 0, 7, 19, 20], True)
    (found,), (expected,) = load(model).run(feeds), run_reference(graph, [*feeds.values()])
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (17,), (64,), (300,), (5, 7), (2, 1, 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_rows_of_any_extents(widest: CpuBackend, shape: tuple[int, ...], dtype: Any) -> None:
    table = RNG.integers(-9, 9, (ROWS, *shape)).astype(dtype)
    model = embedding_bag(table=table)
    assert is_one_nest(model)
    expect_agreement(model, *(given(n, at) for n, at in LENGTHS))


@pytest.mark.parametrize(("n", "bags"), [(1, 1), (1, 2), (7, 1), (7, 3)])
def test_extents_that_the_file_has(widest: CpuBackend, n: int, bags: int) -> None:
    """An axis of one element is no loop of code, but may be reduced or not."""
    model = embedding_bag(weighted=True, extents=(n, bags))
    assert is_one_nest(model)
    for first in (0, 1, n):
        expect_agreement(model, given(n, [first] * bags, True))


def test_as_many_bags_as_rows(widest: CpuBackend) -> None:
    """The product of both, which is no number of iterations, is more than a loop may have."""
    table = floats(ROWS, 8)
    ids = RNG.integers(0, ROWS, 1 << 19)
    (found,) = load(embedding_bag(table=table)).run({"ids": ids, "offsets": np.arange(1 << 19)})
    np.testing.assert_array_equal(found, table[ids])


def test_each_stacked_result_has_a_nest(widest: CpuBackend) -> None:
    nodes = "most = ReduceMax<keepdims=1>(rows, zero)"
    model = embedding_bag(nodes=nodes, results=("sum", "most"))
    assert is_one_nest(model)
    expect_agreement(model, given(9, [0, 4, 5]), given(30, [*range(30)]))


def test_the_number_of_an_iteration_is_read(widest: CpuBackend) -> None:
    nodes = "number = CastLike(i, sum) scaled = Mul(number, sum)"
    model = embedding_bag(nodes=nodes, results=("scaled",))
    assert is_one_nest(model)
    expect_agreement(model, *(given(n, at) for n, at in LENGTHS))


OTHERS = {
    "of a reduction of it": "apart = Sub(rows, sum) y = ReduceMax(apart, zero)",
    "of a sorted part": "y, at = TopK(bag, one)",
    "of a product": "row = Unsqueeze(sum, zero) column = Transpose(row) y = MatMul(column, row)",
}


@pytest.mark.parametrize("nodes", OTHERS.values(), ids=OTHERS)
def test_other_results_are_a_loop(widest: CpuBackend, nodes: str) -> None:
    table = RNG.integers(0, 9, (ROWS, 8))
    model = embedding_bag(table=table, nodes=nodes, results=("sum", "y"))
    assert not is_one_nest(model)
    expect_agreement(model, given(9, [0, 4, 5]), given(30, [*range(30)]))


def without_symbol(model: Any) -> Any:
    """The weights may be more or less than the indices."""
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "m"
    return model


def test_weights_of_another_extent_are_a_loop(widest: CpuBackend) -> None:
    model = without_symbol(embedding_bag(weighted=True))
    assert not is_one_nest(model)
    expect_agreement(model, *(given(n, at, True) for n, at in LENGTHS[:4]))


@pytest.mark.parametrize("wrong", [ROWS, -ROWS - 1])
def test_an_index_out_of_range(widest: CpuBackend, wrong: int) -> None:
    model = load(embedding_bag())
    feeds = given(9, [0, 4, 5])
    model.run(feeds)
    feeds["ids"][6] = wrong
    with pytest.raises(IndexRangeError, match=rf"'rows'.*out of range: {wrong}"):
        model.run(feeds)
    # Nothing reads an index that is in no bag.
    model.run({"ids": feeds["ids"], "offsets": np.array([7, 8])})


def distances(count: int, nodes: str = "", result: str = "apart") -> Any:
    """A scan over samples, each of which is compared with all rows, as skl2onnx writes it. `nodes`:
    others of the body, which give another `result` to be stacked."""
    text = f"""(float[n, 10] rows) => (float[n, 10] last, float[] all) {{
        last, all = Scan<num_scan_inputs=1, body = body (float[?, 10] row, float[10] sample)
                => (float[?, 10] same, float[] {result}) <int64[1] one = {{1}}> {{
            same = Identity(row)
            difference = Sub(row, sample)
            apart = ReduceSumSquare<keepdims=0>(difference, one)
            {nodes}
        }}>(rows, samples)
    }}"""
    return parsed(text, samples=floats(count, 10))


@pytest.mark.parametrize("count", [9, 300])
def test_a_scan_that_carries_nothing_is_one_nest(count: int, widest: CpuBackend) -> None:
    model = distances(count)
    assert is_one_nest(model)
    expect_agreement(model, *({"rows": floats(n, 10)} for n in (1, 7, 65)))


def test_sums_that_elements_share_are_computed_once(widest: CpuBackend) -> None:
    """Each element of a row divided by the sum of the row: a nest would compute that again."""
    shared = "c = Unsqueeze(apart, one) y = Div(difference, c)"
    model = distances(9, shared, "y")
    assert not is_one_nest(model)
    expect_agreement(model, {"rows": floats(5, 10)})
