"""Programs for new lengths of a text: nothing is planned anew within a range of lengths, and
results are right across its borders."""

from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import Maker, S, T
from tests.runtime.cpu.attention_cases import SCALE, assert_attention
from tests.runtime.cpu.decoders import Decoder
from tests.runtime.cpu.test_appending import compiled, tokens
from tests.runtime.cpu.test_attention_visibility import P, graph_of, inputs_of

from ftuner.core.attention_softmax import AttentionSoftmax
from ftuner.core.dtype import FLOAT32, INT64
from ftuner.core.ranges import coarse_start
from ftuner.core.recurrence import Activation, Cell
from ftuner.graph.passes.pipeline import optimised
from ftuner.planner.cpu.planner import Planner
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.cpu.program import MAX_FILLS
from ftuner.runtime.cpu.task_groups import MAX_GROUPS, TaskGroups
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

DECODERS = (Decoder(), Decoder(heads=4, shared=2), Decoder(layers=5, layout="columns"))
RANGE = 64
"""Lengths within which few decide anew."""
FIRST = 40
"""From this length on no step has fewer tasks than chunks because of the length alone."""


class Planned:
    """The lengths at which anything is decided."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.length = 0
        self.lengths: list[int] = []
        for owner, name in (
            (TaskGroups, "_bound"), (Planner, "plan"), (Planner, "cover"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, name, self._noted(getattr(owner, name)))

    def _noted(self, function: Any) -> Any:
        def noted(*arguments: Any, **options: Any) -> Any:
            self.lengths.append(self.length)
            return function(*arguments, **options)

        return noted


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_a_new_length_within_a_range_plans_nothing(
    decoder: Decoder, threads: int, append: bool, widest: CpuBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = compiled(decoder, widest, append, threads=threads)
    planned = Planned(monkeypatch)
    past = decoder.empty()
    for token in range(FIRST + 4 * RANGE):
        planned.length = token + 1
        found = model(ids=tokens(token), **past)
        past = decoder.continued(found)
    lanes = widest.kernels.isa.lanes(FLOAT32)
    # A vector of keys begins, or a panel is full; a range of tasks that a dim counts begins.
    borders = {n for n in range(FIRST + 4 * RANGE + 1) if n % lanes in (0, 1) or n % RANGE < 3}
    assert {n for n in planned.lengths if n > FIRST} <= borders
    assert planned.lengths, "the first lengths are planned"


def test_a_second_text_plans_nothing_at_other_lengths(
    widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has met lengths of the same ranges."""
    decoder = DECODERS[0]
    model = compiled(decoder, widest, append=False, threads=1)
    # The symbols of a text change from the first length to the second.
    for rows in (80, 81, 85):
        model(ids=tokens(rows), **decoder.empty(1, rows))
    planned = Planned(monkeypatch)
    for rows in (82, 84, 86):
        model(ids=tokens(rows), **decoder.empty(1, rows))
    assert planned.lengths == []


@pytest.mark.parametrize("threads", [1, 2])
def test_a_whole_text_within_a_range_plans_nothing(
    threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its positions is a row and a key."""
    model = Model(graph_of(AttentionSoftmax(SCALE, T - S)), widest, Options(threads=threads))
    planned = Planned(monkeypatch)
    for length in range(1, 4 * RANGE):
        planned.length = length
        feeds = inputs_of((2, 3, length, length, 16, 24))
        (found,) = model.run(feeds)
        assert_attention(
            found, feeds["q"], feeds["k"], feeds["v"], None, AttentionSoftmax(SCALE, 0)
        )
    lanes = widest.kernels.isa.lanes(FLOAT32)
    borders = {n for n in range(4 * RANGE) if n % lanes in (0, 1) or n == coarse_start(n)}
    assert set(planned.lengths) <= borders


@pytest.mark.parametrize("threads", [1, 2])
def test_a_recurrent_layer_plans_no_length(
    threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are counted for each of them."""
    sigmoid, tanh = Activation("sigmoid"), Activation("tanh")
    g = Maker()
    x, past = g.given("x", S, 3, 64), g.given("past", T, 3, 64)
    cell = Cell("lstm", (sigmoid, tanh, tanh))
    both = g.add("concat", past, x, axis=0)
    y, *_ = g.add_many("recurrence", both, g.weight(64, 16), cell=cell)
    graph = g.graph(g.inputs, [("y", y)])
    model = Model(graph, widest, Options(threads=threads))
    rng = np.random.default_rng(0)
    planned = Planned(monkeypatch)
    for length in range(1, 20):
        feeds = [rng.uniform(-1, 1, (n, 3, 64)).astype(np.float32) for n in (length, 5)]
        (found,) = model.run(dict(zip(("x", "past"), feeds, strict=True)))
        (expected,) = run_reference(graph, feeds)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert bool(planned.lengths) == (length == 1)
        planned.lengths.clear()


def test_many_texts_plan_nothing(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that are enough for the workers are cut alike."""
    model = Model(graph_of(AttentionSoftmax(SCALE, None)), widest, Options(threads=2))
    hardware = widest.hardware
    most = hardware.tuning.chunks_per_worker * hardware.cores
    planned = Planned(monkeypatch)
    for heads in range(most, most + 4):
        planned.length = heads
        feeds = inputs_of((heads, 1, 9, 11, 4, 4))
        (found,) = model.run(feeds)
        assert_attention(found, feeds["q"], feeds["k"], feeds["v"])
    assert set(planned.lengths) == {most}


@pytest.mark.parametrize("threads", [1, 2])
def test_experts_do_not_plan_each_length(
    threads: int, widest: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of a mixture of experts are as many for each length of the text."""
    g = Maker()
    x, index = g.given("x", S, 24), g.given("index", S, 2, dtype=INT64)
    weight = g.weight(5, 24, 40)
    products = g.add("expert_matmul", x, weight, index, transposed=False, node="experts")
    past = g.given("past", T, 16)
    graph = g.graph(g.inputs, [("y", products), ("z", g.add("softmax", past, axis=1, log=False))])
    model = Model(optimised(graph, halves=False), widest, Options(threads=threads))
    assert "experts" in [step.kind for step in model.steps]
    random = np.random.default_rng(0)

    def check(tokens: int, rows: int) -> None:
        rows_of_x = random.standard_normal((tokens, 24)).astype(np.float32)
        chosen = random.integers(0, 5, (tokens, 2))
        past = random.standard_normal((rows, 16)).astype(np.float32)
        found = model(x=rows_of_x, index=chosen, past=past)
        assert weight.constant is not None
        wanted = np.einsum("tk,tskn->tsn", rows_of_x, weight.constant[chosen].astype(np.float64))
        np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-4)
        assert found["z"].shape == past.shape

    check(1, 65)
    check(1, 66)
    planned = Planned(monkeypatch)
    for rows in range(67, 129):
        check(1, rows)
    assert planned.lengths == []
    check(7, 90)
    assert planned.lengths
    planned.lengths.clear()
    check(6, 90)
    assert planned.lengths == []


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("extents", [(1, 1, 1), (2, 3, 1), (3, 1, 1), (2, 2, 5)])
@pytest.mark.parametrize("causal", [None, T - S, P])
def test_attention_across_borders_is_as_in_float64(
    extents: tuple[int, ...], causal: Any, threads: int, widest: CpuBackend
) -> None:
    """Keys one by one, past the borders of vectors, panels and ranges."""
    model = Model(graph_of(AttentionSoftmax(SCALE, causal)), widest, Options(threads=threads))
    heads, group, rows = extents
    for keys in range(rows, 2 * RANGE + 20):
        feeds = inputs_of((heads, group, rows, keys, 16, 24), past=keys // 2)
        limit = {None: None, T - S: keys - rows, P: keys // 2}[causal]
        (found,) = model.run(feeds)
        softmax = AttentionSoftmax(SCALE, limit)
        assert_attention(found, feeds["q"], feeds["k"], feeds["v"], None, softmax)


@pytest.mark.parametrize("threads", [1, 2])
def test_shapes_in_any_order_have_the_same_bits(threads: int, widest: CpuBackend) -> None:
    """What was run before decides where buffers are, and nothing else."""
    decoder = DECODERS[1]
    one, other = (compiled(decoder, widest, False, threads=threads) for _ in range(2))
    shapes = [(batch, new, rows) for batch in (1, 3) for new in (1, 4) for rows in (0, 1, 15, 16,
              17, 63, 64, 100, 129)]  # fmt: skip
    order = np.random.default_rng(5).permutation(len(shapes))

    def results(model: Model, numbers: Any) -> dict[int, bytes]:
        found = {}
        for number in numbers:
            batch, new, rows = shapes[number]
            outputs = model(ids=tokens(number, batch, new), **decoder.empty(batch, rows))
            found[int(number)] = b"".join(x.tobytes() for x in outputs.values())
        return found

    assert results(one, range(len(shapes))) == results(other, order)


def test_memory_is_bounded(widest: CpuBackend) -> None:
    """However many lengths are met."""
    decoder = Decoder(layers=1, depth=4, wide=0)
    model = compiled(decoder, widest, append=False, threads=2)
    for batch in range(1, 31):
        for rows in range(0, 400, 7):
            model(ids=tokens(rows, batch), **decoder.empty(batch, rows))
    (graph,) = model.parts
    assert isinstance(graph, CompiledGraph)
    writer = graph._writer
    assert len(writer._groups._known) <= MAX_GROUPS
    assert len(writer._known_fills) <= MAX_FILLS
