"""Outputs that append to an input in place: the same bits as without, whatever is continued."""

import weakref
from functools import partial

import numpy as np
import pytest
from tests.at_once import at_once
from tests.graph.graphs import Maker, S, T, graph_of
from tests.runtime.cpu.appending import (
    PLAIN,
    Feeds,
    assert_same,
    compiled,
    copied,
    in_place,
    tokens,
)
from tests.runtime.cpu.decoders import Decoder

from ftuner.core.dim import symbol
from ftuner.errors import AllocationError, IndexRangeError, InputError, ShapeError
from ftuner.graph.appending import ROOM_ROWS
from ftuner.graph.ir import Value
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.executable import CompiledGraph
from ftuner.runtime.model import Model
from ftuner.schedules.nest.step import NestStep

onnxruntime = pytest.importorskip("onnxruntime")

DECODERS = (
    PLAIN, Decoder(heads=4, shared=2), Decoder(heads=4, shared=4, layers=1), Decoder(layout="rows"),
    Decoder(layout="columns"), Decoder(dtype="float16"), Decoder(layers=3, depth=24),
)  # fmt: skip

# Continuations.


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("batch", "rows"), [(1, 0), (2, 1), (1, 17)])
@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_token_by_token(
    decoder: Decoder, batch: int, rows: int, threads: int, widest: CpuBackend
) -> None:
    """Beyond the room that is made at first, where nothing is there before."""
    copying, appending = (
        compiled(decoder, widest, append, threads=threads) for append in (False, True)
    )
    assert appending.appended == dict(decoder.names)
    assert copying.appended == {}
    session = None
    if decoder.dtype == "float32":
        session = onnxruntime.InferenceSession(decoder.file(), providers=["CPUExecutionProvider"])
    first = second = decoder.empty(batch, rows)
    moved, count = 0, 120 if rows else 300
    for token in range(count):
        ids = tokens(token, batch, 5 if token in (0, 40) else 1)
        wanted, found = copying(ids=ids, **first), appending(ids=ids, **second)
        assert_same(found, wanted, token)
        if session is not None and token % 43 == 0:
            theirs = session.run(["logits"], {"ids": ids, **first})[0]
            np.testing.assert_allclose(found["logits"], theirs, 1e-3, 1e-3)
        kept = in_place(decoder, second, found)
        assert len(set(kept)) == 1
        moved += not kept[0]
        first, second = decoder.continued(wanted), decoder.continued(found)
    # The first ones were the caller's, then there was no room.
    assert moved == 1 + (rows + count + 8 - 1) // ROOM_ROWS


def test_no_step_reads_the_past(plain: Model, copying: Model) -> None:
    """Neither its buffers nor, where it is now, all of its rows: a copy would have them all."""

    def copies(model: Model) -> list[str]:
        steps = [s for s in model.steps if isinstance(s, NestStep) and s.title == "copy"]
        return [s.title for s in steps if "past" in s.described(str)]

    assert len(copies(copying)) == len(PLAIN.names)
    assert copies(plain) == []
    read = {b.number for step in plain.steps for b in step.reads if b.kind == "input"}
    assert read == {0}, "only the ids are read where the caller has them"


@pytest.mark.parametrize("decoder", [PLAIN, Decoder(layout="rows"), Decoder(layout="columns")])
def test_only_the_new_rows_are_written(decoder: Decoder, widest: CpuBackend) -> None:
    """All other elements of the memory are sevens, before the run and after it."""
    model = compiled(decoder, widest, append=True)
    past = decoder.continued(model(ids=tokens(0, 2, 9), **decoder.empty(2)))
    for x in past.values():
        memory = x.base
        assert memory is not None
        memory.flags.writeable = True
        memory[...] = 7
        memory.flags.writeable = False
    found = model(ids=tokens(1, 2, 3), **past)
    for name, present in decoder.names:
        memory, axis = found[present].base, decoder.axis(name)
        assert memory is past[name].base
        sevens = np.moveaxis(np.asarray(memory) == 7, axis, 0)
        assert sevens[:9].all()
        assert not sevens[9:12].any()
        assert sevens[12:].all()


def test_room_is_used_to_its_last_row(plain: Model, copying: Model) -> None:
    past = PLAIN.empty()
    full = plain(ids=tokens(0, new=ROOM_ROWS - 1), **past)
    found = plain(ids=tokens(1), **PLAIN.continued(full))
    assert all(in_place(PLAIN, PLAIN.continued(full), found))
    assert all(x.shape == x.base.shape for x in PLAIN.continued(found).values())
    more = plain(ids=tokens(2), **PLAIN.continued(found))
    assert not any(in_place(PLAIN, PLAIN.continued(found), more))
    assert_same(more, copying(ids=tokens(2), **PLAIN.continued(found)))


def test_programs_are_bound_once_for_each_number_of_rows(widest: CpuBackend) -> None:
    """Wherever the past came from, and whatever has room: as many as without appending in place."""
    counts = []
    for append in (False, True):
        model = compiled(PLAIN, widest, append, threads=1)
        for first in (1, 3, ROOM_ROWS, 7):
            past = PLAIN.empty(rows=first)
            while past["past.0.key"].shape[2] < ROOM_ROWS + 9:
                past = PLAIN.continued(model(ids=tokens(0), **past))
        (part,) = model.parts
        assert isinstance(part, CompiledGraph)
        (state,) = part.states.all
        counts.append(len(state.programs))
    assert counts == [ROOM_ROWS + 8] * 2


def test_a_second_continuation_is_apart(plain: Model, copying: Model) -> None:
    past = PLAIN.continued(plain(ids=tokens(0, new=20), **PLAIN.empty()))
    kept = copied(past)
    one, two, three = (plain(ids=tokens(seed), **past) for seed in (1, 2, 3))
    assert all(in_place(PLAIN, past, one))
    assert not any(in_place(PLAIN, past, two) + in_place(PLAIN, past, three))
    for number, found in enumerate((one, two, three), 1):
        assert_same(found, copying(ids=tokens(number), **kept), number)
    # Each goes on in place by itself.
    for number, found in enumerate((two, one, three)):
        ids, given_ = tokens(number + 7), PLAIN.continued(found)
        before = copied(given_)
        more = plain(ids=ids, **given_)
        assert all(in_place(PLAIN, given_, more))
        assert_same(more, copying(ids=ids, **before))
        assert_same(given_, before)
    assert_same(past, kept)


def test_arrays_of_the_caller(plain: Model, copying: Model) -> None:
    """What a beam search, a cut text or another layout gives: these are copied."""
    found = PLAIN.continued(plain(ids=tokens(0, 3, 20), **PLAIN.empty(3)))
    beams = np.array([2, 0, 0])
    unaligned = {}
    for name, x in found.items():
        memory = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
        unaligned[name] = memory.reshape(x.shape)
        unaligned[name][...] = x
    cases: list[Feeds] = [
        {name: x[beams] for name, x in found.items()},
        {name: x[:, :, :13] for name, x in found.items()},
        {name: x[:, ::-1, 3:15:2] for name, x in found.items()},
        {name: np.asarray(x, order="F") for name, x in found.items()},
        {name: x[:] for name, x in found.items()},
        {name: x.base[:, :, :20] for name, x in found.items()},
        {name: np.asarray(x.base) for name, x in found.items()},
        {name: np.broadcast_to(x[:1], x.shape) for name, x in found.items()},
        unaligned,
    ]
    for case in cases:
        ids = tokens(5, 3)
        given_ = {name: np.ascontiguousarray(x) for name, x in case.items()}
        result = plain(ids=ids, **case)
        assert_same(result, copying(ids=ids, **given_))
        assert not any(in_place(PLAIN, case, result))
        assert_same(case, given_)
    # They took nothing over.
    assert all(in_place(PLAIN, found, plain(ids=tokens(1, 3), **found)))


def test_one_array_for_two_inputs(plain: Model, copying: Model) -> None:
    past = plain(ids=tokens(0, new=6), **PLAIN.empty())["present.0.key"]
    given_ = {name: past for name, _ in PLAIN.names}
    found = plain(ids=tokens(1), **given_)
    assert in_place(PLAIN, given_, found) == [True, False, False, False]
    assert_same(found, copying(ids=tokens(1), **given_))


def test_only_some_inputs_are_new(plain: Model, copying: Model) -> None:
    past = PLAIN.continued(plain(ids=tokens(0, new=6), **PLAIN.empty()))
    past["past.1.key"] = past["past.1.key"] * 2
    found = plain(ids=tokens(1), **past)
    assert in_place(PLAIN, past, found) == [True, True, False, True]
    assert_same(found, copying(ids=tokens(1), **past))


def test_another_model_goes_on(widest: CpuBackend, plain: Model) -> None:
    other = compiled(PLAIN, widest, append=True)
    past = PLAIN.continued(plain(ids=tokens(0, new=6), **PLAIN.empty()))
    found = other(ids=tokens(1), **past)
    assert all(in_place(PLAIN, past, found))
    assert_same(plain(ids=tokens(1), **past), found)


# Arrays.


def test_outputs_are_read_only_and_lead_to_their_memory(plain: Model) -> None:
    found = plain(ids=tokens(0, new=3), **PLAIN.empty())
    assert found["logits"].flags.writeable
    for _, present in PLAIN.names:
        x = found[present]
        assert type(x) is np.ndarray
        assert type(x.base) is np.ndarray
        assert x.base.shape == (1, PLAIN.heads, ROOM_ROWS, PLAIN.depth)
        with pytest.raises(ValueError, match="read-only"):
            x[0, 0, 0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            x.flags.writeable = True


def test_memory_lives_as_long_as_its_views(plain: Model) -> None:
    past = PLAIN.empty()
    for token in range(3):
        past = PLAIN.continued(plain(ids=tokens(token), **past))
    known = [weakref.ref(x.base) for x in past.values()]
    assert all(memory() is not None for memory in known)
    past.clear()
    assert all(memory() is None for memory in known)


def test_memory_is_counted_with_its_room(plain: Model, copying: Model) -> None:
    feeds = {"ids": tokens(0), **PLAIN.empty(rows=4)}
    rows = ROOM_ROWS - 5
    more = len(PLAIN.names) * PLAIN.heads * rows * PLAIN.depth * 4
    assert plain.memory(feeds).outputs_bytes == copying.memory(feeds).outputs_bytes + more


def test_measuring_steps_changes_nothing(plain: Model, copying: Model) -> None:
    past = PLAIN.continued(plain(ids=tokens(0, new=6), **PLAIN.empty()))
    kept = copied(past)
    assert len(plain.step_seconds({"ids": tokens(1), **past})) == len(plain.steps)
    assert_same(plain(ids=tokens(1), **past), copying(ids=tokens(1), **kept))


# Failures.


def test_a_failed_run_leaves_the_past(plain: Model, copying: Model) -> None:
    past = PLAIN.continued(plain(ids=tokens(0, new=6), **PLAIN.empty()))
    kept = copied(past)
    with pytest.raises(IndexRangeError):
        plain(ids=np.array([[PLAIN.words]]), **past)
    with pytest.raises(ShapeError):
        plain(ids=tokens(1), **{**past, "past.1.key": past["past.1.key"][:, :, :3]})
    with pytest.raises(ShapeError):
        plain(ids=tokens(1, batch=2), **past)
    with pytest.raises(InputError, match=r"past\.0\.value"):
        plain(ids=tokens(1), **{**past, "past.0.value": past["past.0.value"].astype(np.float64)})
    with pytest.raises(InputError):
        plain(ids=tokens(1), **{**past, "past.0.value": past["past.0.value"][0]})
    with pytest.raises(InputError):
        plain(ids=tokens(1))
    assert_same(past, kept)
    found = plain(ids=tokens(1), **past)
    assert all(in_place(PLAIN, past, found))
    assert_same(found, copying(ids=tokens(1), **kept))


def test_memory_that_cannot_be_had(widest: CpuBackend) -> None:
    n, row = 1 << 34, symbol("N")

    def body(g: Maker) -> Value:
        return g.add("concat", g.given("x", S, row), g.given("new", T, row), axis=0)

    model = Model(graph_of(body), widest, Options(append_in_place=True))
    assert model.appended == {"x": "y0"}
    past = np.broadcast_to(np.float32(0), (1, n))
    with pytest.raises(AllocationError):
        model.run({"x": past, "new": np.empty((0, n), np.float32)})


def test_threads_that_continue_one_past(widest: CpuBackend, copying: Model) -> None:
    model = compiled(PLAIN, widest, append=True, threads=2)
    past = PLAIN.continued(model(ids=tokens(0, new=6), **PLAIN.empty()))
    kept = copied(past)
    count, length = 6, 12
    results: list[list[Feeds]] = [[] for _ in range(count)]

    def go_on(number: int) -> None:
        at = past
        for token in range(length):
            results[number].append(model(ids=tokens(100 * number + token), **at))
            at = PLAIN.continued(results[number][-1])

    at_once(*(partial(go_on, number) for number in range(count)))
    assert sum(all(in_place(PLAIN, past, found[0])) for found in results) <= 1
    for number, found in enumerate(results):
        at: Feeds = kept
        for token, result in enumerate(found):
            wanted = copying(ids=tokens(100 * number + token), **at)
            assert_same(result, wanted, (number, token))
            at = PLAIN.continued(wanted)
    assert_same(past, kept)
