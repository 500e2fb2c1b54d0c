"""Texts that are generated together are those that each has alone."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ftuner
from ftuner.errors import (
    ClosedError,
    ConfigurationError,
    IndexRangeError,
    InputError,
    QueueFullError,
)
from ftuner.runtime.cpu import shared_panels
from ftuner.runtime.cpu.ragged import RaggedGraph
from ftuner.runtime.model import Model

pytest.importorskip("onnx")

from tests.frontends.onnx_models import parsed

SECONDS = 30
WORDS, WIDTH = 29, 32


def decoder_bytes(positions: bool, last: bool = False) -> bytes:
    """A layer of attention with a past. `positions`: whether they and a mask are inputs. `last`:
    whether there are logits of the last token alone."""
    rng = np.random.default_rng(3)
    weights = {
        "words": rng.normal(size=(WORDS, WIDTH)), "places": rng.normal(size=(64, WIDTH)),
        "last": rng.normal(size=(WIDTH, WORDS)),
        **{name: rng.normal(size=(WIDTH, WIDTH)) / 6 for name in ("q", "k", "v")},
    }  # fmt: skip
    given = ", int64[new, all] attention_mask, int64[batch, new] position_ids" * positions
    placed = """placed = Gather(places, position_ids)
        given = Add(embedded, placed)
        seen = Cast<to=9>(attention_mask)"""
    rows = f"batch, 2, {{}}, {WIDTH // 2}"
    past, every = rows.format("past"), rows.format("all")
    text = f"""(int64[batch, new] input_ids{given}, float[{past}] "past.k", float[{past}] "past.v")
            => (float[batch, {1 if last else "new"}, {WORDS}] logits, float[{every}] "present.k",
                float[{every}] "present.v")
            <int64[1] end = {{-1}}, int64[1] far = {{{1 << 40}}}, int64[1] axis = {{1}}> {{
        embedded = Gather(words, input_ids)
        {placed if positions else "given = Identity(embedded)"}
        Q = MatMul(given, q)
        K = MatMul(given, k)
        V = MatMul(given, v)
        mixed, "present.k", "present.v" = Attention<is_causal=1, q_num_heads=2, kv_num_heads=2>
            (Q, K, V, {"seen" if positions else '""'}, "past.k", "past.v")
        hidden = Add(mixed, given)
        kept = {"Slice(hidden, end, far, axis)" if last else "Identity(hidden)"}
        logits = MatMul(kept, last)
    }}"""
    constants = {name: x.astype(np.float32) for name, x in weights.items()}
    return parsed(text, 23, **constants).SerializeToString()


@pytest.fixture(
    scope="module", params=[(False, False), (True, False), (True, True)],
    ids=["copied", "in place", "last logits"],
)  # fmt: skip
def model(request: pytest.FixtureRequest) -> Model:
    in_place, last = request.param
    found = ftuner.load(decoder_bytes(False, last), append_in_place=in_place)
    assert bool(found.appended) == in_place
    return found


def alone(model: Model, prompt: list[int], tokens: int) -> list[int]:
    """The most probable tokens, by runs of this text alone."""
    return [int(logits.argmax()) for logits in logits_alone(model, prompt, tokens)]


def logits_alone(model: Model, prompt: list[int], tokens: int) -> list[Any]:
    past = {n: np.zeros((1, 2, 0, WIDTH // 2), np.float32) for n in ("past.k", "past.v")}
    given, found = np.array([prompt]), []
    for _ in range(tokens):
        feeds: dict[str, Any] = {"input_ids": given, **past}
        names = {spec.name for spec in model.inputs}
        seen = past["past.k"].shape[2]
        if "position_ids" in names:
            feeds["position_ids"] = np.arange(seen, seen + given.shape[1])[None]
            feeds["attention_mask"] = np.ones((1, seen + given.shape[1]), np.int64)
        logits, *grown = model.run(feeds)
        past = dict(zip(past, grown, strict=True))
        found.append(logits[0, -1])
        given = np.array([[found[-1].argmax()]])
    return found


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, WORDS, n).tolist() for n in rng.integers(1, 12, count)]


def test_texts_are_those_that_each_has_alone(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    together = RaggedGraph._together

    def noted(graph: RaggedGraph, group: Any, workers: int) -> Any:
        sizes.append(len(group))
        return together(graph, group, workers)

    monkeypatch.setattr(RaggedGraph, "_together", noted)
    given = [(prompt, 3 + i % 9) for i, prompt in enumerate(prompts(40))]
    with ftuner.Generator(model, max_texts=16) as generator, ThreadPoolExecutor(40) as clients:

        def text(case: tuple[list[int], int]) -> list[int]:
            return list(generator.generate(case[0], max_tokens=case[1]))

        found = list(clients.map(text, given))
        done = generator.statistics
    for (prompt, tokens), x in zip(given, found, strict=True):
        assert x == alone(model, prompt, tokens)
    assert (done.texts, done.running, done.waiting) == (40, 0, 0)
    assert done.tokens == sum(tokens for _, tokens in given)
    # Rows of several texts were multiplied together, of a single token each.
    assert max(sizes) > 1
    assert done.steps < done.tokens


def test_exact_texts_have_the_bits_that_each_has_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # The weights of a test are small.
    monkeypatch.setattr(shared_panels, "panels_room", lambda h: 1e-9 * h.l2_bytes)
    model = ftuner.load(decoder_bytes(False), append_in_place=True)
    with ftuner.Generator(model, exact=True) as generator, ThreadPoolExecutor(16) as clients:

        def logits(prompt: list[int]) -> list[bytes]:
            found = []

            def choose(given: Any) -> int:
                found.append(given.tobytes())
                return int(given.argmax())

            assert len(list(generator.generate(prompt, max_tokens=9, choose=choose))) == 9
            return found

        found = list(clients.map(logits, prompts(24)))
        done = generator.statistics
    for prompt, x in zip(prompts(24), found, strict=True):
        assert x == [y.tobytes() for y in logits_alone(model, prompt, 9)]
    assert done.steps < done.tokens


def test_positions_and_masks() -> None:
    model = ftuner.load(decoder_bytes(positions=True))
    with ftuner.Generator(model) as generator:
        texts = [generator.generate(prompt, max_tokens=6) for prompt in prompts(5)]
        for prompt, text in zip(prompts(5), texts, strict=True):
            assert list(text) == alone(model, prompt, 6)


def test_a_text_ends(model: Model) -> None:
    prompt = [3, 5]
    wanted = alone(model, prompt, 8)
    with ftuner.Generator(model) as generator:
        found = list(generator.generate(prompt, max_tokens=50, end={wanted[4]}))
        assert found == wanted[: wanted.index(wanted[4]) + 1]
        chosen = generator.generate(prompt, max_tokens=3, choose=lambda logits: len(logits) - 1)
        assert list(chosen) == [WORDS - 1] * 3


def test_only_the_text_that_fails_has_an_error(model: Model) -> None:
    def failing(logits: Any) -> int:
        raise ZeroDivisionError

    with ftuner.Generator(model) as generator:
        bad = generator.generate([1, WORDS, 2], max_tokens=4)
        worse = generator.generate([1, 2], max_tokens=4, choose=failing)
        good = generator.generate([1, 2, 3], max_tokens=4)
        with pytest.raises(IndexRangeError):
            next(bad)
        with pytest.raises(ZeroDivisionError):
            next(worse)
        assert list(good) == alone(model, [1, 2, 3], 4)


def test_a_model_that_runs_each_alone_is_given_no_batch(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where caches are written into, a batch that fails has used up those of the others."""
    monkeypatch.setattr(Model, "rows_together", 0)
    monkeypatch.setattr(Model, "run_batch", None)
    with ftuner.Generator(model) as generator:
        texts = [generator.generate(prompt, max_tokens=6) for prompt in prompts(5)]
        for prompt, text in zip(prompts(5), texts, strict=True):
            assert list(text) == alone(model, prompt, 6)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


def slow(gate: threading.Event) -> Any:
    def choose(logits: Any) -> int:
        assert gate.wait(SECONDS)
        return int(logits.argmax())

    return choose


def wait_until(condition: Any) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_the_queue_is_bounded(model: Model, gate: threading.Event) -> None:
    with ftuner.Generator(model, max_texts=1, max_queue=1) as generator:
        first = generator.generate([1, 2], max_tokens=3, choose=slow(gate))
        wait_until(lambda: generator.statistics.running == 1)
        second = generator.generate([1, 3], max_tokens=3)
        with pytest.raises(QueueFullError):
            generator.generate([1, 4], max_tokens=3)
        gate.set()
        assert list(first) == alone(model, [1, 2], 3)
        assert list(second) == alone(model, [1, 3], 3)


def test_a_text_whose_iterator_is_closed_ends(model: Model) -> None:
    with ftuner.Generator(model) as generator:
        text = generator.generate([1, 2], max_tokens=10**9)
        next(text)
        text.close()  # type: ignore[attr-defined]
        wait_until(lambda: generator.statistics.running == 0)


def test_close_without_draining(model: Model) -> None:
    generator = ftuner.Generator(model)
    text = generator.generate([1, 2], max_tokens=10**9)
    next(text)
    generator.close(drain=False)
    with pytest.raises(ClosedError):
        list(text)
    with pytest.raises(ClosedError):
        generator.generate([1, 2], max_tokens=1)


def test_coroutines(model: Model) -> None:
    async def text(generator: ftuner.Generator, prompt: list[int]) -> list[int]:
        return [token async for token in generator.stream(prompt, max_tokens=7)]

    async def main(generator: ftuner.Generator) -> None:
        found = await asyncio.gather(*(text(generator, prompt) for prompt in prompts(9)))
        assert found == [alone(model, prompt, 7) for prompt in prompts(9)]

        async def endless() -> None:
            async for _ in generator.stream([1, 2], max_tokens=10**9):
                pass

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(endless(), 0.05)

    with ftuner.Generator(model) as generator:
        asyncio.run(main(generator))
        wait_until(lambda: generator.statistics.running == 0)


@pytest.mark.parametrize(
    ("prompt", "tokens"), [([], 1), ([0.5], 1), ([[1, 2]], 1), ([1], 0), (["a"], 1)], ids=str
)
def test_bad_prompts(prompt: Any, tokens: int, model: Model) -> None:
    with ftuner.Generator(model) as generator, pytest.raises(InputError, match="expected integers"):
        generator.generate(prompt, max_tokens=tokens)


def test_other_models_are_refused(model: Model) -> None:
    class Other:
        inputs, outputs = model.inputs, model.outputs[:1]

    with pytest.raises(InputError, match="expected a decoder"):
        ftuner.Generator(Other())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        ftuner.Generator(model, max_texts=0)
