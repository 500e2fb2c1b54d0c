"""Caches that a run has used up, and input that is refused."""

import numpy as np
import pytest
from tests.at_once import at_once
from tests.runtime.cpu import cache_files as files
from tests.runtime.cpu.appending import address, assert_same, compiled, copied, tokens
from tests.runtime.cpu.cache_files import GROUPS, SIZE
from tests.runtime.cpu.caches import GROUPED, KINDS, LENGTH, PAIRS, SCATTERED, both, is_in_place
from tests.runtime.cpu.decoders import Decoder

from ftuner.errors import GraphError, IndexRangeError, InputError, ShapeError
from ftuner.inference import load
from ftuner.runtime.cpu.backend import CpuBackend

pytestmark = pytest.mark.usefixtures("as_default")


@pytest.mark.parametrize("name", ["grouped", "scattered"])
def test_a_cache_is_used_up(name: str) -> None:
    kind = KINDS[name]
    appending, copying = both(kind)
    past = kind.begun(appending, 3)
    kept = copied(past)
    new, other = kind.new(1, 1, 1, 3), kind.new(2, 1, 1, 3)
    found = appending(**new, **past)
    assert is_in_place(kind, past, found)
    for _ in range(2):
        with pytest.raises(InputError, match="past_key is an output of an earlier run"):
            appending(**other, **past)
    # The newest one, and a copy from before, go on.
    assert_same(appending(**other, **kept), copying(**other, **kept))
    later = kind.new(3, 1, 1, 4)
    given = copied(kind.continued(found))
    assert_same(appending(**later, **kind.continued(found)), copying(**later, **given))


def test_one_array_for_two_inputs() -> None:
    appending, _ = both(SCATTERED)
    new = SCATTERED.new(0, 1, 1, 0)
    past = appending(**new, **SCATTERED.empty(1, LENGTH))["key"]
    with pytest.raises(InputError, match="past_value"):
        appending(**new, past_key=past, past_value=past)
    # The first one has been given back.
    appending(**new, past_key=past, past_value=past.copy())


def _scatter_beside() -> bytes:
    """Rows written into a cache, and twice another input."""
    nodes = """present = TensorScatter<axis = 1>(past, new, at)
        twice = Add(other, other)"""
    cache = ["b", LENGTH, SIZE]
    rows = files.tensors("float32", ["b", "rows", SIZE], "new")
    inputs = [files.tensors("float32", cache, "past", "other"), rows]
    inputs.append(files.tensors("int64", ["b"], "at"))
    return files.file_of(nodes, inputs, [files.tensors("float32", cache, "present", "twice")])


@pytest.mark.parametrize("shown", ["cache", "whole", "part", "rows"])
def test_an_input_that_shows_the_cache(shown: str) -> None:
    """It is read as it was before the run."""
    data = _scatter_beside()
    appending, copying = load(data, append_in_place=True), load(data)
    zeros = np.zeros((1, LENGTH, SIZE), np.float32)
    rows = np.arange(1, 1 + 8 * SIZE, dtype=np.float32).reshape(1, 8, SIZE)
    at = np.array([2])
    past = appending(past=zeros, new=rows, at=np.array([0]), other=zeros)["present"]
    kept = past.copy()
    new, other = (past[:, :8], zeros) if shown == "rows" else (-rows, past)
    if shown in ("whole", "part"):
        other = past[:] if shown == "whole" else past[:1]
    wanted = copying(past=kept, new=new.copy(), at=at, other=other.copy())
    found = appending(past=past, new=new, at=at, other=other)
    assert address(found["present"]) == address(past)
    assert_same(found, wanted)


def test_threads_that_copy_one_cache() -> None:
    """A cache without room for more rows is copied, by as many runs as there are."""
    appending, copying = both(GROUPED)
    full = GROUPED.begun(appending, 127)
    full = GROUPED.continued(appending(**GROUPED.new(1, 1, 1, 127), **full))
    more = GROUPED.new(2, 1, 1, 128)
    wanted = copying(**more, **copied(full))

    def go() -> None:
        assert_same(appending(**more, **full), wanted)

    for _ in range(20):
        at_once(go, go)


def test_threads_that_continue_one_cache() -> None:
    """One of them has it; the others are refused."""
    appending, _ = both(SCATTERED)
    new, past = SCATTERED.new(0, 1, 1, 0), SCATTERED.begun(appending)
    results: list[object] = []

    def go_on() -> None:
        try:
            results.append(appending(**new, **past))
        except InputError as error:
            results.append(error)

    at_once(*[go_on] * 6)
    assert sum(isinstance(x, dict) for x in results) <= 1
    assert len(results) == 6


def test_caches_of_other_models(widest: CpuBackend) -> None:
    """What a concatenation appended to is copied by a run that may write over it, and the other
    way round."""
    decoder = Decoder(layers=1, heads=GROUPS)
    model = compiled(decoder, widest, append=True)
    found = model(ids=tokens(0, new=3), **decoder.empty())
    past = {"past_key": found["present.0.key"], "past_value": found["present.0.value"]}
    kept = copied(past)
    appending, copying = both(GROUPED)
    new = GROUPED.new(0, 1, 1, 3)
    result = appending(**new, **past)
    assert not is_in_place(GROUPED, past, result)
    assert_same(result, copying(**new, **kept))
    assert_same(past, kept)
    back = {"past.0.key": result["key"], "past.0.value": result["value"]}
    again = model(ids=tokens(1), **back)
    assert address(again["present.0.key"]) != address(result["key"])
    # Neither has been used up.
    model(ids=tokens(1), **decoder.continued(found))
    appending(**GROUPED.new(1, 1, 1, 4), **GROUPED.continued(result))


def test_measuring_steps_changes_nothing() -> None:
    appending, copying = both(SCATTERED)
    past = SCATTERED.begun(appending)
    kept = copied(past)
    new = SCATTERED.new(1, 1, 1, 1)
    assert len(appending.step_seconds({**new, **past})) == len(appending.steps)
    assert_same(past, kept)
    assert_same(appending(**new, **past), copying(**new, **kept))


# Bad input.


@pytest.mark.parametrize("last", [4, 1000, -1])
def test_numbers_of_keys_beyond_all(last: int) -> None:
    """A run that fails has used the cache up."""
    appending, copying = both(GROUPED)
    past = GROUPED.begun(appending, 3)
    kept, new = copied(past), GROUPED.new(1, 1, 1, 3)
    with pytest.raises(IndexRangeError, match="seqlens_k"):
        appending(**new | {"last": np.array([last], np.int32)}, **past)
    with pytest.raises(InputError, match="or failed while it did"):
        appending(**new, **past)
    assert_same(appending(**new, **kept), copying(**new, **kept))


def test_rows_that_no_run_has_written() -> None:
    """They are zero, as where the past is copied: two rows more, of which one is written."""
    appending, copying = both(GROUPED)
    past = GROUPED.begun(appending, 3)
    kept, new = copied(past), GROUPED.new(2, 1, 1, 3) | {"total": np.array(5, np.int32)}
    found = appending(**new, **past)
    assert is_in_place(GROUPED, past, found)
    assert not found["key"][:, :, 4].any()
    assert_same(found, copying(**new, **kept))


@pytest.mark.parametrize("at", [-1, LENGTH, LENGTH - 1, 2**40])
def test_positions_beyond_a_cache(at: int) -> None:
    appending, copying = both(SCATTERED)
    for model in (appending, copying):
        new = SCATTERED.new(0, 1, 2, 0) | {"at": np.array([at])}
        with pytest.raises(IndexRangeError, match="TensorScatter"):
            model(**new, **SCATTERED.empty(1, LENGTH))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_cache_without_rows(mode: str) -> None:
    appending, _ = both(SCATTERED, mode=mode)
    with pytest.raises(ShapeError):
        appending(**SCATTERED.new(0, 1, 1, 0), **SCATTERED.empty(1, 0))


def test_a_run_that_has_not_begun() -> None:
    """It gives the cache back: here, no array of another input can be had."""
    appending, copying = both(SCATTERED)
    new = SCATTERED.new(0, 1, 1, 0)
    past, used = SCATTERED.begun(appending), SCATTERED.begun(appending)
    appending(**new, **used)
    with pytest.raises(InputError, match="past_value"):
        appending(**new, past_key=past["past_key"], past_value=used["past_value"])
    kept = copied(past)
    assert_same(appending(**new, **past), copying(**new, **kept))


def test_a_past_of_another_rank() -> None:
    with pytest.raises(GraphError, match="four axes"):
        load(files.grouped(rank=3), append_in_place=True)(
            **GROUPED.new(0, 1, 1, 3),
            **{name: np.zeros((1, GROUPS, 3), np.float32) for name in PAIRS},
        )
    model = load(files.grouped(), append_in_place=True)
    past = GROUPED.empty(1, 3)
    with pytest.raises(InputError, match="past_key"):
        model(**GROUPED.new(0, 1, 1, 3), **{n: x[0] for n, x in past.items()})


def test_positions_beyond_the_tables() -> None:
    data = files.grouped(positions=4)
    model = load(data, append_in_place=True)
    tables = {name: np.ones((4, SIZE // 2), np.float32) for name in ("cosines", "sines")}
    past = GROUPED.empty(1, 3)
    found = model(**GROUPED.new(0, 1, 1, 3), **tables, **past)
    with pytest.raises(IndexRangeError):
        model(**GROUPED.new(0, 1, 1, 4), **tables, **GROUPED.continued(found))
