"""Loops over bags of rows: each iteration reduces a part of a tensor that data bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends.control_models import (
    BOOL,
    INT64,
    NODE,
    RNG,
    expect_agreement,
    floats,
    model_of,
    stored,
    value,
)

from ftuner.errors import IndexRangeError
from ftuner.frontends.onnx import import_model
from ftuner.graph.passes.pipeline import optimised
from ftuner.inference import Model, load
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model as RuntimeModel
from ftuner.runtime.reference import run_reference

Feeds = dict[str, Any]
ROWS = 50
WEIGHING = (
    NODE("Slice", ["weights", "from", "to", "zero"], ["own"]),
    NODE("Unsqueeze", ["own", "one"], ["column"]),
    NODE("Mul", ["rows", "column"], ["weighted"]),
)


def embedding_bag(
    reduction: str = "ReduceSum", weighted: bool = False, table: Any = None,
    extents: tuple[int | str, int | str] = ("n", "bags"), nodes: Sequence[Any] = (),
    results: Sequence[str] = ("sum",),
) -> Any:  # fmt: skip
    """Reduced rows of a table, of bags of indices that begin at `offsets`: as PyTorch's older
    exporter writes `nn.EmbeddingBag`. `nodes`: others of the body, which may give other `results`
    to be stacked. `extents`: of indices and offsets."""
    table = floats(ROWS, 8) if table is None else table
    element = helper.np_dtype_to_tensor_dtype(table.dtype)
    n, bags = extents
    body = helper.make_graph(
        [
            NODE("Gather", ["begins", "i"], ["begin"], axis=0),
            NODE("Gather", ["ends", "i"], ["end"], axis=0),
            NODE("Unsqueeze", ["begin", "zero"], ["from"]),
            NODE("Unsqueeze", ["end", "zero"], ["to"]),
            NODE("Slice", ["ids", "from", "to", "zero"], ["bag"]),
            NODE("Gather", ["table", "bag"], ["rows"], axis=0),
            *(WEIGHING if weighted else ()),
            NODE(reduction, ["weighted" if weighted else "rows", "zero"], ["sum"], keepdims=0),
            *nodes,
            NODE("Cast", ["always"], ["go_next"], to=BOOL),
        ],
        "body", [value("i", [], INT64), value("go", [], BOOL)],
        [value("go_next", [], BOOL), *(value(name, None, element) for name in results)],
    )  # fmt: skip
    return model_of(
        [
            NODE("Shape", ["ids"], ["count"]),
            NODE("Concat", ["offsets", "count"], ["begins"], axis=0),
            NODE("Slice", ["begins", "one", "far", "zero", "one"], ["ends"]),
            NODE("Shape", ["ends"], ["bags"]),
            NODE("Gather", ["bags", "first"], ["trips"], axis=0),
            NODE("Loop", ["trips", "always"], [f"all_{name}" for name in results], body=body),
        ],
        [
            value("ids", [n], INT64), value("offsets", [bags], INT64),
            *([value("weights", [n], element)] if weighted else []),
        ],
        [value(f"all_{name}", None, element) for name in results],
        [
            stored("zero", np.array([0])), stored("one", np.array([1])),
            stored("far", np.array([2**63 - 1])), stored("first", np.int64(0)),
            stored("always", np.array(True)), stored("table", table),
        ],
    )  # fmt: skip


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
    nodes = [NODE("ReduceMax", ["rows", "zero"], ["most"], keepdims=1)]
    model = embedding_bag(nodes=nodes, results=("sum", "most"))
    assert is_one_nest(model)
    expect_agreement(model, given(9, [0, 4, 5]), given(30, [*range(30)]))


def test_the_number_of_an_iteration_is_read(widest: CpuBackend) -> None:
    nodes = [NODE("CastLike", ["i", "sum"], ["number"]), NODE("Mul", ["number", "sum"], ["scaled"])]
    model = embedding_bag(nodes=nodes, results=("scaled",))
    assert is_one_nest(model)
    expect_agreement(model, *(given(n, at) for n, at in LENGTHS))


OTHERS: Mapping[str, Sequence[Any]] = {
    "of a reduction of it": [
        NODE("Sub", ["rows", "sum"], ["apart"]), NODE("ReduceMax", ["apart", "zero"], ["y"]),
    ],
    "of a sorted part": [
        NODE("TopK", ["bag", "one"], ["y", "at"]),
    ],
    "of a product": [
        NODE("Unsqueeze", ["sum", "zero"], ["row"]), NODE("Transpose", ["row"], ["column"]),
        NODE("MatMul", ["column", "row"], ["y"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("nodes", OTHERS.values(), ids=OTHERS)
def test_other_results_are_a_loop(widest: CpuBackend, nodes: Sequence[Any]) -> None:
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


def distances(count: int, nodes: Sequence[Any] = (), result: str = "apart") -> Any:
    """A scan over samples, each of which is compared with all rows, as skl2onnx writes it. `nodes`:
    others of the body, which give another `result` to be stacked."""
    body = helper.make_graph(
        [
            NODE("Identity", ["row"], ["same"]),
            NODE("Sub", ["row", "sample"], ["difference"]),
            NODE("ReduceSumSquare", ["difference", "one"], ["apart"], keepdims=0),
            *nodes,
        ],
        "body", [value("row", [None, 10]), value("sample", [10])],
        [value("same", [None, 10]), value(result, None)],
        [stored("one", np.array([1]))],
    )  # fmt: skip
    return model_of(
        [NODE("Scan", ["rows", "samples"], ["last", "all"], body=body, num_scan_inputs=1)],
        [value("rows", ["n", 10])],
        [value("last", ["n", 10]), value("all", None)],
        [stored("samples", floats(count, 10))],
    )


@pytest.mark.parametrize("count", [9, 300])
def test_a_scan_that_carries_nothing_is_one_nest(count: int, widest: CpuBackend) -> None:
    model = distances(count)
    assert is_one_nest(model)
    expect_agreement(model, *({"rows": floats(n, 10)} for n in (1, 7, 65)))


def test_sums_that_elements_share_are_computed_once(widest: CpuBackend) -> None:
    """Each element of a row divided by the sum of the row: a nest would compute that again."""
    shared = [NODE("Unsqueeze", ["apart", "one"], ["c"]), NODE("Div", ["difference", "c"], ["y"])]
    model = distances(9, shared, "y")
    assert not is_one_nest(model)
    expect_agreement(model, {"rows": floats(5, 10)})
