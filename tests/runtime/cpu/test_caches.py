"""Keys and values that operators write: in place, with the same results as without."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from tests.runtime.cpu import cache_files as files
from tests.runtime.cpu.appending import Feeds, address, assert_same, compiled, tokens
from tests.runtime.cpu.cache_files import GROUPS, HEADS, SIZE, floats
from tests.runtime.cpu.decoders import Decoder

from ftuner.errors import GraphError, IndexRangeError, InputError, ShapeError
from ftuner.graph.appending import ROOM_ROWS
from ftuner.graph.steps import NestStep
from ftuner.inference import load
from ftuner.runtime.cpu.arrays import Array
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model

LENGTH = 64
"""Rows of a cache of a fixed length."""


class Kind(NamedTuple):
    """An operator that returns keys and values."""

    file: Callable[..., bytes]
    names: Mapping[str, str]
    """The outputs by the inputs that they continue."""
    grows: bool = True
    heads: int = GROUPS

    def empty(self, batch: int, rows: int, dtype: str) -> dict[str, Array]:
        rng = np.random.default_rng(rows)
        shape = (batch, self.heads, rows, SIZE)
        shape = (2, *shape) if "past" in self.names else shape
        return {name: floats(rng, *shape, dtype=dtype) for name in self.names}

    def new(self, seed: int, batch: int, count: int, before: int, dtype: str) -> dict[str, Array]:
        """What is given with keys and values of `before` tokens, for `count` more."""
        rng = np.random.default_rng(seed)
        width = HEADS * SIZE
        if self.file is files.stacked:
            constant = np.random.default_rng(0)
            return {
                "x": floats(rng, batch, count, width, dtype=dtype),
                "weight": floats(constant, width, 3 * width, dtype=dtype) / 8,
                "bias": floats(constant, 3 * width, dtype=dtype),
            }
        sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        if self.file is files.grouped:
            found = {n: floats(rng, batch, count, x * SIZE, dtype=dtype) for n, x in sizes.items()}
            found["last"] = np.full(batch, before + count - 1, np.int32)
            return found | {"total": np.array(before + count, np.int32)}
        found = {n: floats(rng, batch, x, count, SIZE, dtype=dtype) for n, x in sizes.items()}
        if self.file is files.scattered:
            found["at"] = np.full(batch, before)
            found["valid"] = np.full(batch, before + count)
        return found

    def continued(self, found: Feeds) -> dict[str, Array]:
        return {past: found[present] for past, present in self.names.items()}


PAIRS = {"past_key": "key", "past_value": "value"}
GROUPED = Kind(files.grouped, PAIRS)
SCATTERED = Kind(files.scattered, PAIRS, grows=False)
STACKED = Kind(files.stacked, {"past": "present"}, heads=HEADS)
KINDS = {
    "grouped": GROUPED, "scattered": SCATTERED, "stacked": STACKED,
    "apart": Kind(files.given_apart, PAIRS),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _on_widest(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftuner.inference.backend_of", lambda device: widest)


def both(kind: Kind, dtype: str = "float32", **options: Any) -> tuple[Model, Model]:
    """A model that appends in place, and one that copies."""
    data = kind.file(dtype, **options)
    return load(data, append_in_place=True), load(data)


def is_in_place(kind: Kind, past: Feeds, found: Feeds) -> bool:
    same = [address(found[y]) == address(past[x]) for x, y in kind.names.items()]
    assert len(set(same)) == 1
    return same[0]


# Continuations.


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", KINDS)
def test_token_by_token(name: str, batch: int, dtype: str) -> None:
    kind = KINDS[name]
    appending, copying = both(kind, dtype)
    first = second = kind.empty(batch, 0 if kind.grows else LENGTH, dtype)
    before = moved = 0
    for token in range(ROOM_ROWS + 10 if kind.grows else LENGTH - 6):
        count = 7 if token == 0 else 1
        new = kind.new(token, batch, count, before, dtype)
        wanted, found = copying(**new, **first), appending(**new, **second)
        assert_same(found, wanted, token)
        moved += not is_in_place(kind, second, found)
        before += count
        first, second = kind.continued(wanted), kind.continued(found)
    assert appending.appended == kind.names
    assert appending.copied == {}
    # The first ones were the caller's, then there was no room.
    assert moved == 1 + kind.grows


@pytest.mark.parametrize("name", ["grouped", "stacked"])
def test_as_onnxruntime_has_it(name: str) -> None:
    kind = KINDS[name]
    data = kind.file()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    model = load(data, append_in_place=True)
    past, before = kind.empty(2, 0, "float32"), 0
    for count in (5, 1, 1, 2 if name == "stacked" else 1):
        new = kind.new(before, 2, count, before, "float32")
        theirs = dict(zip(names, session.run(None, {**new, **past}), strict=True))
        found = model(**new, **past)
        for output, x in theirs.items():
            np.testing.assert_allclose(found[output], x, 1e-4, 1e-5)
        past, before = kind.continued(found), before + count


def test_a_buffer_of_a_maximal_length() -> None:
    """As onnxruntime-genai gives it: `past` and `present` have room for all tokens to come."""
    appending, copying = both(GROUPED)
    session = onnxruntime.InferenceSession(files.grouped(), providers=["CPUExecutionProvider"])
    for rows in (2 * ROOM_ROWS, 2 * ROOM_ROWS + 44):
        first = second = theirs = GROUPED.empty(1, rows, "float32")
        places = set()
        for before in range(12):
            new = GROUPED.new(before, 1, 1, before, "float32")
            wanted, found = copying(**new, **first), appending(**new, **second)
            y, key, value = session.run(["y", "key", "value"], {**new, **theirs})
            np.testing.assert_allclose(found["y"], y, 1e-4, 1e-5)
            assert found["key"].shape == key.shape == (1, GROUPS, rows, SIZE)
            assert_same(found, wanted)
            places.add(address(found["key"]))
            first, second = GROUPED.continued(wanted), GROUPED.continued(found)
            theirs = {"past_key": key, "past_value": value}
        assert len(places) == 1


def test_keys_that_are_not_there_yet_are_not_read() -> None:
    """Whatever is in the rows beyond those of the tokens so far."""
    model = load(files.grouped())
    new = GROUPED.new(0, 1, 1, 4, "float32")
    past = GROUPED.empty(1, LENGTH, "float32")
    wild = {name: x.copy() for name, x in past.items()}
    for x in wild.values():
        x[:, :, 5:] = np.nan
    assert np.array_equal(model(**new, **past)["y"], model(**new, **wild)["y"])


@pytest.mark.parametrize("name", KINDS)
def test_no_step_copies_a_past(name: str) -> None:
    kind = KINDS[name]
    appending, _ = both(kind)
    new = kind.new(0, 1, 1, 0, "float32")
    appending(**new, **kind.empty(1, 0 if kind.grows else LENGTH, "float32"))
    read = {b.number for step in appending.steps for b in step.reads if b.kind == "input"}
    names = [spec.name for spec in appending.inputs]
    assert not {names[number] for number in read} & set(kind.names)
    rows = "past" if kind.grows else "rows"
    copies = [s for s in appending.steps if isinstance(s, NestStep) and s.title == "copy"]
    assert not [step for step in copies if rows in step.described(str)]


def test_tokens_that_are_taken_back() -> None:
    """A draft that is not accepted: later tokens are written over rows of the newest cache."""
    for kind in (GROUPED, SCATTERED):
        appending, copying = both(kind)
        first = second = kind.empty(1, LENGTH, "float32")
        for number, before in enumerate((0, 1, 2, 3, 1, 2, 0, 1)):
            new = kind.new(number, 1, 1, before, "float32")
            wanted, found = copying(**new, **first), appending(**new, **second)
            assert_same(found, wanted, number)
            assert is_in_place(kind, second, found) == (number > 0)
            first, second = kind.continued(wanted), kind.continued(found)


def test_sequences_of_several_lengths() -> None:
    """The cache is as long as the longest; new rows are behind those of their own sequence."""
    appending, copying = both(GROUPED)
    first = second = GROUPED.empty(3, 0, "float32")
    lengths = np.array([6, 2, 4])
    for token in range(20):
        new = GROUPED.new(token, 3, 6 if token == 0 else 1, int(lengths.max()), "float32")
        total = int(lengths.max()) + (token > 0)
        new["last"] = (lengths - (token == 0)).astype(np.int32)
        new["total"] = np.array(total, np.int32)
        lengths += token > 0
        wanted, found = copying(**new, **first), appending(**new, **second)
        assert_same(found, wanted, token)
        first, second = GROUPED.continued(wanted), GROUPED.continued(found)


def test_a_ring() -> None:
    appending, copying = both(SCATTERED, mode="circular")
    first = second = SCATTERED.empty(2, 5, "float32")
    for token in range(17):
        new = SCATTERED.new(token, 2, 2, token, "float32")
        new["at"], new["valid"] = np.array([token, 2 * token]), np.full(2, 5)
        wanted, found = copying(**new, **first), appending(**new, **second)
        assert_same(found, wanted, token)
        for past, present in SCATTERED.names.items():
            row = found[present][1, :, 2 * token % 5]
            assert np.array_equal(row, new[present[0]][1, :, 0])
            assert first[past].shape == found[present].shape
        first, second = SCATTERED.continued(wanted), SCATTERED.continued(found)


# Caches that are used up.


@pytest.mark.parametrize("name", ["grouped", "scattered"])
def test_a_cache_is_used_up(name: str) -> None:
    kind = KINDS[name]
    appending, copying = both(kind)
    rows = 0 if kind.grows else LENGTH
    past = kind.continued(
        appending(**kind.new(0, 1, 3, 0, "float32"), **kind.empty(1, rows, "float32"))
    )
    kept = {n: x.copy() for n, x in past.items()}
    new, other = kind.new(1, 1, 1, 3, "float32"), kind.new(2, 1, 1, 3, "float32")
    found = appending(**new, **past)
    assert is_in_place(kind, past, found)
    for _ in range(2):
        with pytest.raises(InputError, match="past_key is an output of an earlier run"):
            appending(**other, **past)
    # The newest one, and a copy from before, go on.
    assert_same(appending(**other, **kept), copying(**other, **kept))
    later = kind.new(3, 1, 1, 4, "float32")
    given = {n: x.copy() for n, x in kind.continued(found).items()}
    assert_same(appending(**later, **kind.continued(found)), copying(**later, **given))


def test_one_array_for_two_inputs() -> None:
    appending, _ = both(SCATTERED)
    new = SCATTERED.new(0, 1, 1, 0, "float32")
    past = appending(**new, **SCATTERED.empty(1, LENGTH, "float32"))["key"]
    with pytest.raises(InputError, match="past_value"):
        appending(**new, past_key=past, past_value=past)
    # The first one has been given back.
    appending(**new, past_key=past, past_value=past.copy())


def test_threads_that_continue_one_cache() -> None:
    """One of them has it; the others are refused."""
    appending, _ = both(SCATTERED)
    new = SCATTERED.new(0, 1, 1, 0, "float32")
    past = SCATTERED.continued(appending(**new, **SCATTERED.empty(1, LENGTH, "float32")))
    begin = threading.Barrier(6)
    results: list[object] = []

    def go_on() -> None:
        begin.wait()
        try:
            results.append(appending(**new, **past))
        except InputError as error:
            results.append(error)

    threads = [threading.Thread(target=go_on) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(x, dict) for x in results) <= 1
    assert len(results) == 6


def test_caches_of_other_models(widest: CpuBackend) -> None:
    """What a concatenation appended to is copied by a run that may write over it, and the other
    way round."""
    decoder = Decoder(layers=1, heads=GROUPS)
    model = compiled(decoder, widest, append=True)
    found = model(ids=tokens(0, new=3), **decoder.empty())
    past = {"past_key": found["present.0.key"], "past_value": found["present.0.value"]}
    kept = {name: x.copy() for name, x in past.items()}
    appending, copying = both(GROUPED)
    new = GROUPED.new(0, 1, 1, 3, "float32")
    result = appending(**new, **past)
    assert not is_in_place(GROUPED, past, result)
    assert_same(result, copying(**new, **kept))
    assert_same(past, kept)
    back = {"past.0.key": result["key"], "past.0.value": result["value"]}
    again = model(ids=tokens(1), **back)
    assert address(again["present.0.key"]) != address(result["key"])
    # Neither has been used up.
    model(ids=tokens(1), **decoder.continued(found))
    appending(**GROUPED.new(1, 1, 1, 4, "float32"), **GROUPED.continued(result))


def test_measuring_steps_changes_nothing() -> None:
    appending, copying = both(SCATTERED)
    new = SCATTERED.new(0, 1, 1, 0, "float32")
    past = SCATTERED.continued(appending(**new, **SCATTERED.empty(1, LENGTH, "float32")))
    kept = {name: x.copy() for name, x in past.items()}
    new = SCATTERED.new(1, 1, 1, 1, "float32")
    assert len(appending.step_seconds({**new, **past})) == len(appending.steps)
    assert_same(past, kept)
    assert_same(appending(**new, **past), copying(**new, **kept))


# Bad input.


@pytest.mark.parametrize("last", [4, 1000, -1])
def test_numbers_of_keys_beyond_all(last: int) -> None:
    """A run that fails has used the cache up."""
    appending, copying = both(GROUPED)
    first = GROUPED.new(0, 1, 3, 0, "float32")
    past = GROUPED.continued(appending(**first, **GROUPED.empty(1, 0, "float32")))
    kept = {name: x.copy() for name, x in past.items()}
    new = GROUPED.new(1, 1, 1, 3, "float32")
    with pytest.raises(IndexRangeError, match="seqlens_k"):
        appending(**new | {"last": np.array([last], np.int32)}, **past)
    with pytest.raises(InputError, match="or failed while it did"):
        appending(**new, **past)
    assert_same(appending(**new, **kept), copying(**new, **kept))


def test_rows_that_no_run_has_written() -> None:
    """They are zero, as where the past is copied: two rows more, of which one is written."""
    appending, copying = both(GROUPED)
    first = GROUPED.new(0, 1, 3, 0, "float32")
    past = GROUPED.continued(appending(**first, **GROUPED.empty(1, 0, "float32")))
    kept = {name: x.copy() for name, x in past.items()}
    new = GROUPED.new(2, 1, 1, 3, "float32") | {"total": np.array(5, np.int32)}
    found = appending(**new, **past)
    assert is_in_place(GROUPED, past, found)
    assert not found["key"][:, :, 4].any()
    assert_same(found, copying(**new, **kept))


@pytest.mark.parametrize("at", [-1, LENGTH, LENGTH - 1, 2**40])
def test_positions_beyond_a_cache(at: int) -> None:
    appending, copying = both(SCATTERED)
    for model in (appending, copying):
        new = SCATTERED.new(0, 1, 2, 0, "float32") | {"at": np.array([at])}
        with pytest.raises(IndexRangeError, match="TensorScatter"):
            model(**new, **SCATTERED.empty(1, LENGTH, "float32"))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_cache_without_rows(mode: str) -> None:
    appending, _ = both(SCATTERED, mode=mode)
    with pytest.raises(ShapeError):
        appending(**SCATTERED.new(0, 1, 1, 0, "float32"), **SCATTERED.empty(1, 0, "float32"))


def test_a_run_that_has_not_begun() -> None:
    """It gives the cache back: here, no array of another input can be had."""
    appending, copying = both(SCATTERED)
    new = SCATTERED.new(0, 1, 1, 0, "float32")
    past = SCATTERED.continued(appending(**new, **SCATTERED.empty(1, LENGTH, "float32")))
    used = SCATTERED.continued(appending(**new, **SCATTERED.empty(1, LENGTH, "float32")))
    appending(**new, **used)
    with pytest.raises(InputError, match="past_value"):
        appending(**new, past_key=past["past_key"], past_value=used["past_value"])
    kept = {name: x.copy() for name, x in past.items()}
    assert_same(appending(**new, **past), copying(**new, **kept))


def test_a_past_of_another_rank() -> None:
    with pytest.raises(GraphError, match="four axes"):
        load(files.grouped(rank=3), append_in_place=True)(
            **GROUPED.new(0, 1, 1, 3, "float32"),
            **{name: np.zeros((1, GROUPS, 3), np.float32) for name in PAIRS},
        )
    model = load(files.grouped(), append_in_place=True)
    past = GROUPED.empty(1, 3, "float32")
    with pytest.raises(InputError, match="past_key"):
        model(**GROUPED.new(0, 1, 1, 3, "float32"), **{n: x[0] for n, x in past.items()})


def test_positions_beyond_the_tables() -> None:
    data = files.grouped(positions=4)
    model = load(data, append_in_place=True)
    tables = {name: np.ones((4, SIZE // 2), np.float32) for name in ("cosines", "sines")}
    past = GROUPED.empty(1, 3, "float32")
    found = model(**GROUPED.new(0, 1, 1, 3, "float32"), **tables, **past)
    with pytest.raises(IndexRangeError):
        model(**GROUPED.new(0, 1, 1, 4, "float32"), **tables, **GROUPED.continued(found))
