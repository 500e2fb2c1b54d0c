"""Keys and values that operators write: in place, with the same results as without."""

import numpy as np
import pytest
from tests.runtime.cpu import cache_files as files
from tests.runtime.cpu.appending import address, assert_same, copied
from tests.runtime.cpu.cache_files import GROUPS, SIZE
from tests.runtime.cpu.caches import GROUPED, KINDS, LENGTH, PAIRS, SCATTERED, both, is_in_place

from ftuner.graph.appending import ROOM_ROWS
from ftuner.inference import load
from ftuner.schedules.nest.step import NestStep

onnxruntime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.usefixtures("as_default")


@pytest.mark.each_value
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
    past, before = kind.empty(2, 0), 0
    for count in (5, 1, 1, 2 if name == "stacked" else 1):
        new = kind.new(before, 2, count, before)
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
        first = second = theirs = GROUPED.empty(1, rows)
        places = set()
        for before in range(12):
            new = GROUPED.new(before, 1, 1, before)
            wanted, found = copying(**new, **first), appending(**new, **second)
            y, key, value = session.run(["y", "key", "value"], {**new, **theirs})
            np.testing.assert_allclose(found["y"], y, 1e-4, 1e-5)
            assert found["key"].shape == key.shape == (1, GROUPS, rows, SIZE)
            assert_same(found, wanted)
            places.add(address(found["key"]))
            first, second = GROUPED.continued(wanted), GROUPED.continued(found)
            theirs = {"past_key": key, "past_value": value}
        assert len(places) == 1


def test_numbers_of_keys_that_a_mask_has() -> None:
    """What is appended is known when the file is loaded, and nothing is compiled in a run."""
    data = files.grouped(masked=True)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    model = load(data, append_in_place=True)
    assert model.appended == PAIRS
    past, places, before = GROUPED.empty(2, 2 * ROOM_ROWS), set(), 0
    for count in (5, 1, 1, 1):
        new = GROUPED.new(before, 2, count, before)
        del new["last"], new["total"]
        before += count
        new["mask"] = np.ones((2, before), np.int64)
        y, key, value = session.run(["y", "key", "value"], {**new, **past})
        found = model(**new, **past)
        np.testing.assert_allclose(found["y"], y, 1e-4, 1e-5)
        for x, theirs in ((found["key"], key), (found["value"], value)):
            np.testing.assert_allclose(x[:, :, :before], theirs[:, :, :before], 1e-5, 1e-6)
        places.add(address(found["key"]))
        past = GROUPED.continued(found)
    assert len(places) == 1


def test_keys_that_are_not_there_yet_are_not_read() -> None:
    """Whatever is in the rows beyond those of the tokens so far."""
    model = load(files.grouped())
    new = GROUPED.new(0, 1, 1, 4)
    past = GROUPED.empty(1, LENGTH)
    wild = copied(past)
    for x in wild.values():
        x[:, :, 5:] = np.nan
    assert np.array_equal(model(**new, **past)["y"], model(**new, **wild)["y"])


@pytest.mark.parametrize("name", KINDS)
def test_no_step_copies_a_past(name: str) -> None:
    kind = KINDS[name]
    appending, _ = both(kind)
    kind.begun(appending)
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
        first = second = kind.empty(1, LENGTH)
        for number, before in enumerate((0, 1, 2, 3, 1, 2, 0, 1)):
            new = kind.new(number, 1, 1, before)
            wanted, found = copying(**new, **first), appending(**new, **second)
            assert_same(found, wanted, number)
            assert is_in_place(kind, second, found) == (number > 0)
            first, second = kind.continued(wanted), kind.continued(found)


def test_sequences_of_several_lengths() -> None:
    """The cache is as long as the longest; new rows are behind those of their own sequence."""
    appending, copying = both(GROUPED)
    first = second = GROUPED.empty(3, 0)
    lengths = np.array([6, 2, 4])
    for token in range(20):
        new = GROUPED.new(token, 3, 6 if token == 0 else 1, int(lengths.max()))
        total = int(lengths.max()) + (token > 0)
        new["last"] = (lengths - (token == 0)).astype(np.int32)
        new["total"] = np.array(total, np.int32)
        lengths += token > 0
        wanted, found = copying(**new, **first), appending(**new, **second)
        assert_same(found, wanted, token)
        first, second = GROUPED.continued(wanted), GROUPED.continued(found)


def test_a_ring() -> None:
    appending, copying = both(SCATTERED, mode="circular")
    first = second = SCATTERED.empty(2, 5)
    for token in range(17):
        new = SCATTERED.new(token, 2, 2, token)
        new["at"], new["valid"] = np.array([token, 2 * token]), np.full(2, 5)
        wanted, found = copying(**new, **first), appending(**new, **second)
        assert_same(found, wanted, token)
        for past, present in SCATTERED.names.items():
            row = found[present][1, :, 2 * token % 5]
            assert np.array_equal(row, new[present[0]][1, :, 0])
            assert first[past].shape == found[present].shape
        first, second = SCATTERED.continued(wanted), SCATTERED.continued(found)
