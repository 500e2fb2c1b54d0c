"""What is proven of the padding of a batch, and what a batch without it gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import B, Maker, S, T, graph_of

from ftuner.core.dim import minimum
from ftuner.core.dtype import BOOL, INT64
from ftuner.errors import ConfigurationError, FTunerError, ShapeError
from ftuner.graph.algebra import apply, concat, equal, iota, where
from ftuner.graph.ir import Graph
from ftuner.graph.padding import proven_padding
from ftuner.graph.passes.pipeline import optimised
from ftuner.graph.ragged import Axes, Padding
from ftuner.inference import load
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model
from ftuner.runtime.reference import run_reference

WIDTH, HEADS = 32, 2
Body = Callable[[Maker, Any, Any], Any]
"""What is made of the tokens' vectors and of the mask, 0.0 or 1.0."""
LENGTHS = (5, 9, 1, 7)


def graph(body: Body) -> Graph:
    def made(g: Maker) -> Any:
        x, mask = g.given("x", B, S, WIDTH), g.given("mask", B, S, dtype=INT64)
        found = body(g, x, mask.cast(x.dtype))
        # A graph keeps no input that it does not read.
        return (*(found if isinstance(found, tuple) else (found,)), mask)

    return optimised(graph_of(made), halves=False)


def softmax_of(x: Any, bias: Any) -> Any:
    """An attention of each position to each other."""
    return apply("softmax", x @ x.swapped() + bias, axis=2, log=False) @ x


def added(g: Maker, x: Any, mask: Any, low: float = -1e4) -> Any:
    return g.self_attention(x, ((1.0 - mask) * low).reshape((B, 1, 1, S)), HEADS)


def softmax(g: Maker, x: Any, mask: Any, low: float = -1e9) -> Any:
    return softmax_of(x, ((1.0 - mask) * low).reshape((B, 1, S)))


def mean(g: Maker, x: Any, mask: Any) -> Any:
    whole = mask.reshape((B, S, 1))
    return (x * whole).reduce("sum", [1]) / whole.reduce("sum", [1]).at_least(1e-9)


def largest(g: Maker, x: Any, mask: Any) -> Any:
    hidden = equal(mask.reshape((B, S, 1)), 0.0)
    return where(hidden, x.like(-1e9), x).reduce("maximum", [1])


def numbered(g: Maker, x: Any, mask: Any, reverse: bool = False) -> Any:
    """Positions that the mask counts."""
    at = apply("cumulative_sum", mask, axis=1, exclusive=False, reverse=reverse)
    return x + at.reshape((B, S, 1))


def of_table(g: Maker, x: Any, mask: Any) -> Any:
    """Each position has a row of a table, as torch exports it: there are enough by a constraint."""
    rows = g.weight(40, WIDTH).slice(0, 0, minimum(S, 40))
    return x + rows.reshape((1, S, WIDTH))


def by_number(g: Maker, x: Any, mask: Any, axis: int = 1, offset: int | None = None) -> Any:
    """The mask, of which each element is looked up, at numbers that begin with an offset."""

    def number(a: int) -> Any:
        found = iota((B, S)[a])
        if offset is not None:
            found = found + offset
        shape = tuple((B, S)[a] if a == i else 1 for i in range(2))
        return found.reshape(shape).broadcast((B, S)).reshape((B, S, 1))

    at = concat([number(0), number(axis)], 2)
    found = apply("gather_nd", mask, at, batch_dims=0)
    return (x * found.reshape((B, S, 1))).reduce("sum", [1])


PROVEN: dict[str, Body] = {
    "scores with the mask": added,
    "a softmax with the mask": softmax,
    "a mean by the mask": mean,
    "a maximum by the mask": largest,
    "the first position": lambda g, x, mask: x.slice(1, 0, 1),
    "numbers of positions": numbered,
    "one axis of all positions": lambda g, x, mask: g.linear(x.reshape((B * S, WIDTH)), 3).reshape(
        (B, S, 3)
    ),
    "elements by their numbers": by_number,
    "numbers from zero": lambda g, x, mask: by_number(g, x, mask, offset=0),
    "rows of a table": of_table,
    "all": lambda g, x, mask: (
        mean(g, numbered(g, g.linear(added(g, x, mask), WIDTH), mask), mask),
        largest(g, softmax(g, x, mask), mask),
    ),
}
REFUSED: dict[str, tuple[Body, str]] = {
    "no mask": (lambda g, x, mask: softmax(g, x, mask, 0.0), "no mask hides"),
    "scores that are seen": (lambda g, x, mask: softmax(g, x, mask, -5.0), "no mask hides"),
    "a sum of all": (lambda g, x, mask: x.reduce("sum", [1]), "no mask hides"),
    "a mean of all": (lambda g, x, mask: (x * mask.like(1.0)).mean([1], keep=False), ""),
    "a maximum of all": (lambda g, x, mask: x.reduce("maximum", [1]), "no mask hides"),
    "a sum over requests": (lambda g, x, mask: x.reduce("sum", [0]), "mixes requests"),
    "positions from the end": (
        lambda g, x, mask: numbered(g, x, mask, reverse=True), "mixes requests"
    ),
    "the last position": (lambda g, x, mask: x.slice(1, S - 1, 1), ""),
    "one axis": (lambda g, x, mask: x.reshape((B * S, WIDTH)), "no axis of requests"),
    "requests by their numbers": (
        lambda g, x, mask: by_number(g, x, mask, 0), "takes requests by their number"
    ),
    "numbers from one": (
        lambda g, x, mask: by_number(g, x, mask, offset=1), "numbers of requests"
    ),
    "numbers of requests": (
        lambda g, x, mask: x * iota(B).cast(x.dtype).reshape((B, 1, 1)), "numbers of requests"
    ),
    "the number of positions": (lambda g, x, mask: x * x.like(S), "number of requests"),
    # A score that is about as low as the number is not the number.
    "an equal score": (
        lambda g, x, mask: equal(
            x + ((1.0 - mask) * -1e9).reshape((B, S, 1)), -1e9
        ).cast(x.dtype).reduce("sum", [1]), "no mask hides",
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", PROVEN.values(), ids=[*PROVEN])
def test_what_a_mask_hides_is_left_out(body: Body, widest: CpuBackend) -> None:
    found = graph(body)
    proof = proven_padding(found)
    assert isinstance(proof, Padding), proof
    assert proof.inputs == (Axes(0, (1,)), Axes(0, (1,)))
    expect_the_same(found, widest)


def feeds_of(found: Graph, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    x = rng.standard_normal((*mask.shape, WIDTH)).astype(np.float32)
    return {v.name: {"x": x, "mask": mask}[v.name] for v in found.inputs}


def expect_the_same(found: Graph, widest: CpuBackend) -> None:
    """At all positions that the mask has, the values of the padded batch, and zeros elsewhere."""
    feeds = feeds_of(found)
    padded = run_reference(found, [*feeds.values()])
    proof = proven_padding(found)
    assert isinstance(proof, Padding)
    model = Model(found, widest, Options(unpad=True))
    # Without a product nothing runs together, and the batch is run as it is.
    for x, wanted, axes in zip(model.run(feeds), padded, proof.outputs, strict=True):
        kept = np.array(wanted)
        if axes.lengths and not model.padding_kept:
            assert axes.lengths == (1,)
            kept[feeds["mask"] == 0] = 0
        np.testing.assert_allclose(x, kept, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("body", "why"), REFUSED.values(), ids=[*REFUSED])
def test_what_depends_on_padding_is_refused(body: Body, why: str) -> None:
    found = proven_padding(graph(body))
    assert isinstance(found, str)
    assert why in found


def test_a_causal_attention_sees_no_padding() -> None:
    def body(g: Maker, offset: Any) -> Any:
        q, mask = g.given("q", B, HEADS, S, 8), g.given("mask", B, S, dtype=INT64)
        k, v = g.given("k", B, HEADS, 8, S), g.given("v", B, HEADS, S, 8)
        softmax = {"causal": offset, "hidden": -np.inf, "safe": True, "hides_nan": False}
        found = g.add("attention", q, k, v, scale=1.0, softcap=0.0, sinks=False, **softmax)
        return found, mask

    assert isinstance(proven_padding(graph_of(lambda g: body(g, 0))), Padding)
    for offset in (1, S - T):
        assert isinstance(proven_padding(graph_of(lambda g, o=offset: body(g, o))), str)  # type: ignore[misc]


@pytest.fixture(scope="module")
def model(widest: CpuBackend) -> Model:
    return Model(graph(PROVEN["all"]), widest, Options(unpad=True))


def of_each(model: Model, feeds: dict[str, Any], lengths: tuple[int, ...]) -> list[list[Any]]:
    """The outputs of requests without their padding."""
    return model.run_batch(
        [{k: v[i : i + 1, :n] for k, v in feeds.items()} for i, n in enumerate(lengths)]
    )


def test_requests_have_the_bits_that_they_have_alone(model: Model) -> None:
    feeds = feeds_of(graph(PROVEN["all"]))
    assert model.padding_kept == ""
    alone = of_each(model, feeds, LENGTHS)
    for x, *parts in zip(model.run(feeds)[:2], *alone, strict=False):
        assert x.tobytes() == np.concatenate(parts).tobytes()


def counted(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests each call runs together."""
    found: list[int] = []
    (part,) = model.parts
    run = type(part).run_batch

    def noted(self: Any, batch: Any, exact: bool) -> Any:
        found.append(len(batch))
        return run(self, batch, exact)

    monkeypatch.setattr(type(part), "run_batch", noted)
    return found


@pytest.mark.parametrize(
    ("mask", "calls"),
    [
        ([[1, 1, 1], [1, 0, 0]], [2]),
        ([[1, 0, 1], [1, 0, 0]], [2]),
        ([[2, 1, 0]], [1]),
        ([[0, 1, 1], [0, 0, 1]], []),
        ([[1, 1, 1], [1, 0, 1]], []),
        ([[1, 1, 1], [0, 0, 0]], []),
        ([[1, 1, 1]], []),
    ],
    ids=["right", "a hole", "other numbers", "left", "full", "an empty row", "one"],
)
def test_masks(
    mask: list[list[int]], calls: list[int], model: Model, widest: CpuBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    found = counted(model, monkeypatch)
    rng = np.random.default_rng(1)
    given = np.array(mask, np.int64)
    feeds = {"mask": given, "x": rng.standard_normal((*given.shape, WIDTH)).astype(np.float32)}
    whole = Model(graph(PROVEN["all"]), widest).run(feeds)
    for x, y in zip(model.run(feeds), whole, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-4)
    assert found == calls


def test_shapes_are_checked_before(model: Model) -> None:
    feeds = feeds_of(graph(PROVEN["all"]))
    with pytest.raises(ShapeError):
        model.run({**feeds, "mask": feeds["mask"][:, :-1]})
    with pytest.raises(FTunerError):
        model.run({**feeds, "mask": feeds["mask"].astype(np.float64)})
    empty = {name: x[:0] for name, x in feeds.items()}
    assert [x.shape[0] for x in model.run(empty)] == [0, 0, 0]


def test_nothing_is_left_out_unasked(widest: CpuBackend) -> None:
    model = Model(graph(PROVEN["all"]), widest)
    assert "unpad" in model.padding_kept


def test_a_mask_of_booleans(widest: CpuBackend) -> None:
    def made(g: Maker) -> Any:
        x, mask = g.given("x", B, S, WIDTH), g.given("mask", B, S, dtype=BOOL)
        least = float(np.finfo(np.float32).min)
        return softmax_of(x, where(mask.reshape((B, 1, S)), x.like(0.0), least))

    assert isinstance(proven_padding(optimised(graph_of(made), halves=False)), Padding)


@pytest.mark.parametrize("unpad", ["yes", True])
def test_unpad_is_auto_or_nothing(unpad: Any) -> None:
    with pytest.raises(ConfigurationError, match="unpad"):
        load("model.onnx", unpad=unpad)
