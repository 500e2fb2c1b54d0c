"""What is said of single steps: their plans in words, their costs, by kinds."""

from collections.abc import Mapping

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, graph_of, layer
from tests.runtime.chains import Chain

from ftuner.core.dtype import INT64
from ftuner.core.recurrence import Activation, Cell
from ftuner.cost.step import Machine
from ftuner.graph.ir import Value
from ftuner.graph.lowering import lower
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.steps import Step
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded
from ftuner.runtime.cpu.step_kind import StepReport, kind_of


def milan(workers: int) -> Machine:
    machine = load_recorded("epyc-milan-2")
    assert isinstance(machine, CpuHardware)
    return Machine(machine, machine.isa("avx2"), workers)


def linear(g: Maker) -> Value:
    return g.linear(g.given("x", S, 768), 768)


def gelu(g: Maker) -> Value:
    return g.gelu(linear(g))


def batched(g: Maker) -> Value:
    return g.add("matmul", g.given("x", B, S, 64), g.given("y", B, 64, S))


def attention(g: Maker) -> Value:
    q, v = (g.given(n, B, S, 64) for n in "qv")
    return g.attention(q, g.given("k", B, 64, S), v, 0.125, None)


def norm(g: Maker) -> Value:
    return g.add("norm", g.given("x", S, 768), axis=1, epsilon=1e-5, rms=True)


def copy(g: Maker) -> Value:
    return g.add("concat", g.given("x", S, 8), g.given("y", S, 8), axis=1)


def best(g: Maker) -> Value:
    return g.add_many("top_k", g.given("x", S, 1000), axis=1, k=5, largest=True)[0]


def suppressed(g: Maker) -> Value:
    operands = g.given("scores", B, 2, S), g.given("boxes", B, S, 4)
    attributes = {"centred": False, "iou_threshold": 0.5, "score_threshold": 0.1, "limit": 5}
    return g.add("suppress", *operands, **attributes)


def recurrent(g: Maker) -> Value:
    sigmoid, tanh = Activation("sigmoid"), Activation("tanh")
    cell = Cell("lstm", (sigmoid, tanh, tanh))
    return g.add_many("recurrence", g.given("x", S, B, 256), g.weight(256, 64), cell=cell)[0]


def experts(g: Maker) -> Value:
    operands = (g.given("x", S, 256), g.weight(8, 256, 96), g.given("at", S, 2, dtype=INT64))
    return g.add("expert_matmul", *operands, transposed=False)


EXTENTS = {"B": 12, "S": 77}


def steps_of(body: object) -> tuple[Step, ...]:
    assert callable(body)
    return lower(optimised(graph_of(body))).steps


def report_of(
    step: Step, extents: Mapping[str, int], machine: Machine, resident_bytes: int
) -> StepReport:
    return kind_of(step).report(step, extents, machine, resident_bytes)


def reported(body: object, workers: int = 1, resident_bytes: int = 0) -> StepReport:
    """Of the first step."""
    return report_of(steps_of(body)[0], EXTENTS, milan(workers), resident_bytes)


@pytest.mark.parametrize(
    ("body", "workers", "plan", "flops", "moved"),
    [
        (linear, 1, "12 x 6x16, 1 x 5x16", 77 * 768 * (2 * 768 + 1),
         4 * (77 * 768 + 768 * 769 + 77 * 768)),
        (linear, 2, "12 x 6x16, 1 x 5x16, n in 2, 16 chunks", 77 * 768 * (2 * 768 + 1),
         4 * (77 * 768 + 768 * 769 + 77 * 768)),
        (batched, 2, "12 x 6x16, 1 x 5x16, batch in 2, 10 chunks", 12 * 77 * 77 * 128,
         4 * 12 * (2 * 77 * 64 + 77 * 77)),
        (attention, 2, "blocks of 48 rows, 12 tasks", 12 * 77 * (77 * (4 * 64 + 5) + 64),
         4 * 12 * 4 * 77 * 64),
        (norm, 1, "8 lanes along axis 1, 77 tasks", 77 * (3 * 768 + 4), 8 * 77 * 768),
        (copy, 1, "8 lanes along axis 1, 77 tasks", 0, 8 * 77 * 8),
        (best, 1, "77 tasks", 0, 77 * (4000 + 5 * 12)),
        (suppressed, 2, "24 tasks", 0, 24 * (77 * 4 + 5 * 12)),
        # Eight sums, three products, five functions.
        (recurrent, 1, "1 task of 12 sequences", 77 * 12 * 64 * (8 * 64 + 13),
         4 * (256 * 64 + 77 * 12 * (256 + 64) + 2 * 12 * 64)),
        (experts, 2, "154 rows by expert, 4 tasks", 154 * 96 * 2 * 256,
         4 * (77 * 256 + 8 * 256 * 96 + 154 * 96) + 8 * 154),
    ],
)  # fmt: skip
def test_known_steps(body: object, workers: int, plan: str, flops: int, moved: int) -> None:
    found = reported(body, workers)
    assert (found.plan, found.cost.flops, found.cost.bytes_moved) == (plan, flops, moved)
    assert (found.cost.estimate.synchronise_s > 0) == (workers > 1)


@pytest.mark.parametrize(
    "body", [linear, gelu, batched, attention, norm, copy, best, recurrent, experts]
)
def test_more_rows_are_not_cheaper(body: object, recorded: CpuHardware) -> None:
    """Products to within a few percent: tiles fit some heights better than others."""
    (step, *_) = steps_of(body)
    for workers in {1, min(2, recorded.cores)}:
        machine = Machine(recorded, recorded.widest, workers)
        before = 0.0
        for rows in (*range(1, 40), 77, 128, 200, 512, 1000):
            cost = report_of(step, {"B": 3, "S": rows}, machine, 0).cost
            assert cost.estimate.seconds >= 0.97 * before, rows
            before = max(before, cost.estimate.seconds)


def test_an_epilogue_costs_what_it_computes() -> None:
    plain, activated = (reported(body).cost for body in (linear, gelu))
    assert activated.estimate.tile_s > plain.estimate.tile_s
    # An elementary function counts as one operation.
    assert activated.flops == plain.flops + 77 * 768
    assert activated.bytes_moved == plain.bytes_moved


def test_weights_come_from_where_the_program_leaves_them() -> None:
    near, far = (reported(linear, 1, size).cost.estimate for size in (0, 1 << 30))
    assert near.dram_s == 0
    assert far.dram_s == pytest.approx(4 * 768 * 768 / 2.3e10)
    # What is no constant was made a moment ago.
    assert reported(batched, 1, 1 << 30).cost == reported(batched, 1, 0).cost


def test_no_elements_cost_nothing(recorded: CpuHardware) -> None:
    machine = Machine(recorded, recorded.widest, 1)
    for body in (linear, batched, attention, norm, copy, best):
        (step, *_) = steps_of(body)
        found = report_of(step, {"B": 2, "S": 0}, machine, 0)
        assert (found.cost.flops, found.cost.estimate.seconds) == (0, 0.0), body


def test_a_layer_is_a_sum_of_all_kinds() -> None:
    costs = [
        report_of(step, {"B": 2, "S": 31}, milan(2), 0).cost
        for step in lower(optimised(layer(96, 4, 384))).steps
    ]
    assert len(costs) > 5
    assert np.isfinite([c.estimate.seconds for c in costs]).all()
    assert min(c.estimate.seconds for c in costs) > 0


def test_scattering_walks_element_by_element() -> None:
    """The copy that it begins with, then one task."""
    copied, scattered = steps_of(
        lambda g: g.add(
            "scatter_elements", g.given("x", S, 8), g.given("i", S, 8, dtype=INT64),
            g.given("y", S, 8), axis=0, kind="add",
        )
    )  # fmt: skip
    assert report_of(copied, EXTENTS, milan(2), 0).plan == "8 lanes along axis 0, 2 tasks"
    found = report_of(scattered, EXTENTS, milan(2), 0)
    assert found.plan == "scalars, 1 task"
    assert found.cost.bytes_moved == 77 * 8 * (4 + 8 + 4)
    # At least two loads, a load and a store of the element, none of them of vectors.
    assert found.cost.estimate.issue_s * 3.22e9 > 77 * 8 * 2.5


def test_a_chain_is_reported_once() -> None:
    """By stripes where pictures are large: its members then do nothing, otherwise all the work."""
    steps = lower(Chain(channels=16, wide=96, columns=24, stride=2).graph()).steps
    assert [step.kind for step in steps] == ["whole", "whole", "stripes", "whole"]
    for side, walked in ((640, True), (7, False)):
        extents = {"N": 1, "H": side, "W": side}
        reports = [report_of(step, extents, milan(1), 0) for step in steps]
        working = [step.kind for step, r in zip(steps, reports, strict=True) if r.cost.flops]
        assert working == (["stripes"] if walked else ["whole"] * 3)
        idle = [r for step, r in zip(steps, reports, strict=True) if not r.cost.flops]
        assert all(r.plan.startswith("nothing") for r in idle)
        assert all(r.cost.estimate.seconds == 0 for r in idle)
    assert "stripes of" in report_of(steps[2], {"N": 1, "H": 640, "W": 640}, milan(1), 0).plan
