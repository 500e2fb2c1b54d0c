"""Chains of steps that are walked stripe by stripe of rows."""

from unittest import mock

import numpy as np
import pytest
from tests.guarded import guarding
from tests.runtime.chains import Chain
from tests.walking import walking

from ftuner.core.dtype import DTYPES
from ftuner.cost.step import Machine
from ftuner.graph.ir import Graph
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference
from ftuner.schedules.stripes.cpu_binding import stripes_at
from ftuner.schedules.stripes.cpu_plan import StripesPlanner
from ftuner.schedules.stripes.step import StripesStep, WholeStep

CHAINS = [
    Chain(residual=True),
    Chain(stride=2, wide=64, columns=70),
    Chain(kernel=(5, 3), dilation=2, pads=(4, 2), head=""),
    Chain(head="window", tail=False),
    Chain(head="window", channels=3, kernel=(5, 5), pads=(2, 2), columns=3),
    Chain(kernel=(2, 2), stride=3, pads=(0, 0), residual=True),
    Chain(pooled=True, stride=2, head="window"),
    Chain(pooled=True, kernel=(1, 4), pads=(0, 0), head=""),
    Chain(kernel=(7, 1), pads=(3, 3), tail=False, residual=True),
    Chain(dtype=DTYPES["float64"], residual=True),
]
EXTENTS = [(12, 12), (7, 40), (33, 9)]


def label(chain: Chain) -> str:
    kind = "pool" if chain.pooled else "depthwise"
    parts = [chain.head or "x", kind, "pointwise" if chain.tail else "", f"s{chain.stride}"]
    return "-".join(part for part in (*parts, str(chain.kernel[0]), chain.dtype.name) if part)


def check(chain: Chain, graph: Graph, model: Model, images: int, spatial: tuple[int, int]) -> None:
    inputs = chain.inputs(graph, images, *spatial)
    (expected,) = run_reference(graph, [x.astype(np.float64) for x in inputs])
    names = ("x", "r")
    (result,) = model.run(dict(zip(names, inputs, strict=False)))
    tolerance = 2e-5 if chain.dtype.itemsize == 4 else 1e-12
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=8 * tolerance)


def has_chain(chain: Chain, model: Model) -> None:
    kinds = [type(step) for step in model.steps]
    members = 1 + bool(chain.head) + chain.tail
    assert kinds.count(StripesStep) == 1
    assert kinds.count(WholeStep) == members == len(kinds) - 1


@pytest.mark.each_value
@pytest.mark.parametrize("chain", CHAINS, ids=label)
@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (2, 3), (5, 1), (100, 1)])
@pytest.mark.parametrize("threads", [1, 2])
def test_stripes_equal_the_reference(
    backend: CpuBackend, chain: Chain, rows: int, parts: int, threads: int
) -> None:
    graph = chain.graph()
    with walking(rows, parts):
        model = Model(graph, backend, Options(threads=threads))
        has_chain(chain, model)
        for images, spatial in zip((1, 2, 1), EXTENTS, strict=True):
            check(chain, graph, model, images, spatial)


def test_all_rows_of_the_largest_image_of_a_range_are_one_stripe(widest: CpuBackend) -> None:
    """The plan is made for the image in the middle of the range, which has fewer rows."""
    chain = CHAINS[0]
    graph = chain.graph()
    with walking(100, 1):
        model = Model(graph, widest, Options(threads=1))
        for rows in (15, 47):
            check(chain, graph, model, 2, (rows, 9))


def test_where_steps_are_faster_apart_they_do_the_work(widest: CpuBackend) -> None:
    chain = CHAINS[0]
    graph = chain.graph()
    model = Model(graph, widest, Options(threads=2))
    has_chain(chain, model)
    check(chain, graph, model, 2, (12, 12))


def test_a_large_picture_is_walked_by_estimate(widest: CpuBackend) -> None:
    chain = Chain(channels=16, wide=96, columns=24, stride=2)
    graph = chain.graph()
    model = Model(graph, widest, Options(threads=1))
    (step,) = (step for step in model.steps if isinstance(step, StripesStep))
    machine = Machine(widest.hardware, widest.hardware.widest, 1)
    stripes = stripes_at(step, {"N": 1, "H": 640, "W": 640}, machine)
    assert stripes is not None
    assert 1 <= stripes.rows < 320
    check(chain, graph, model, 1, (640, 640))


@pytest.mark.parametrize("chain", [CHAINS[0], CHAINS[3], CHAINS[7]], ids=label)
def test_empty_pictures_and_batches(widest: CpuBackend, chain: Chain) -> None:
    graph = chain.graph()
    with walking():
        model = Model(graph, widest, Options(threads=2))
        check(chain, graph, model, 0, (12, 12))
        check(chain, graph, model, 1, (12, 12))


def test_all_that_a_window_reads_may_be_padding(widest: CpuBackend) -> None:
    chain = Chain(kernel=(3, 3), pads=(4, 4), stride=2)
    graph = chain.graph()
    with walking(1, 1):
        model = Model(graph, widest, Options(threads=1))
        for spatial in ((1, 1), (2, 3), (5, 1)):
            check(chain, graph, model, 1, spatial)


def test_infinity_and_nan_reach_only_their_windows(widest: CpuBackend) -> None:
    chain = Chain(channels=4, wide=8, columns=8)
    graph = chain.graph()
    x = np.random.default_rng(0).standard_normal((1, 12, 12, 4)).astype(np.float32)
    x[0, 5, 5, 2] = np.nan
    with walking(2, 2):
        (result,) = Model(graph, widest, Options(threads=2)).run({"x": x})
    touched = np.isnan(result).any(axis=-1)[0]
    expected = np.zeros((12, 12), bool)
    expected[4:7, 4:7] = True
    assert (touched == expected).all()


@pytest.mark.parametrize("chain", CHAINS, ids=label)
def test_nothing_outside_of_arrays_is_touched(widest: CpuBackend, chain: Chain) -> None:
    graph = chain.graph()
    with guarding(), walking():
        model = Model(graph, widest, Options(threads=1))
        for spatial in EXTENTS:
            check(chain, graph, model, 2, spatial)


def test_same_bits_with_and_without_workers(widest: CpuBackend) -> None:
    """A caller that finds the pool taken does the same tasks alone."""
    chain = Chain(residual=True, wide=64)
    graph = chain.graph()
    inputs = dict(zip(("x", "r"), chain.inputs(graph, 2, 33, 21), strict=True))
    with walking(2, 3):
        model = Model(graph, widest, Options(threads=2))
        (together,) = model.run(inputs)
        pool = widest.kernels.runtime.pool
        with pool.lock:
            (alone,) = model.run(inputs)
    assert together.tobytes() == alone.tobytes()


def test_what_passes_between_steps_takes_no_memory_of_the_arena(widest: CpuBackend) -> None:
    chain = Chain(channels=16, wide=96, columns=24)
    graph = chain.graph()
    (x,) = chain.inputs(graph, 1, 64, 64)
    with mock.patch.object(StripesPlanner, "stripes", return_value=None):
        apart = Model(graph, widest, Options(threads=1)).memory({"x": x})
    with walking(4, 1):
        model = Model(graph, widest, Options(threads=1))
        by_stripes = model.memory({"x": x})
        check(chain, graph, model, 1, (64, 64))
    wide_bytes = 64 * 64 * 96 * 4
    assert apart.arena_bytes >= 2 * wide_bytes
    assert by_stripes.arena_bytes + by_stripes.workspace_bytes < wide_bytes / 2
