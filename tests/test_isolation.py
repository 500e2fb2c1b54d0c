"""What a worker does to itself is told, and the next payload is answered."""

import ctypes
import os
import time

import numpy as np
import pytest
from tests.isolation import Crash, Done, Limits, Raised, Result, Timeout, TooMuchMemory, Workers

HERE = "tests.test_isolation"


def behave(payload: tuple[str, int]) -> int:
    """What the workers of these tests call."""
    kind, number = payload
    if kind == "hang":
        time.sleep(60)
    if kind == "spin":
        # Without the interpreter's lock, and deaf to interrupts.
        ctypes.CDLL(None).usleep.restype = None
        for _ in range(60):
            ctypes.CDLL(None).usleep(1_000_000)
    if kind == "crash":
        ctypes.string_at(8)
    if kind == "exit":
        os._exit(3)
    if kind == "raise":
        raise ValueError(f"number {number}")
    if kind == "eat":
        return int(np.ones(number, np.uint8).sum())
    if kind == "print":
        print("not an answer", flush=True)
    return number + 1


def _results(payloads: list[tuple[str, int]], **options: object) -> list[Result]:
    with Workers(f"{HERE}:behave", **options) as workers:  # type: ignore[arg-type]
        found = dict(workers.run(payloads))
    assert sorted(found) == list(range(len(payloads)))
    return [found[i] for i in range(len(payloads))]


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_payload_has_its_own_result(jobs: int) -> None:
    kinds = ["add", "crash", "print", "hang", "add", "raise", "eat", "add", "exit", "add"]
    payloads = [(kind, 300 << 20 if kind == "eat" else i) for i, kind in enumerate(kinds)]
    limits = Limits(seconds=4.0, grown_bytes=100 << 20)
    results = _results(payloads, jobs=jobs, limits=limits)
    expected = {
        "add": Done, "print": Done, "crash": Crash, "exit": Crash, "hang": Timeout,
        "raise": Raised, "eat": TooMuchMemory,
    }  # fmt: skip
    assert [type(r) for r in results] == [expected[kind] for kind in kinds]
    for i, (kind, result) in enumerate(zip(kinds, results, strict=True)):
        if isinstance(result, Done):
            assert result.value == i + 1, kind
    crash, hang, failed, gone = results[1], results[3], results[5], results[8]
    assert isinstance(crash, Crash)
    assert crash.how == "SIGSEGV"
    assert isinstance(gone, Crash)
    assert gone.how == "exit status 3"
    # The stack of what hung.
    assert isinstance(hang, Timeout)
    assert "in behave" in hang.stderr
    assert isinstance(failed, Raised)
    assert (failed.kind, failed.text) == ("builtins.ValueError", "number 5")


def test_native_code_that_hangs_is_ended() -> None:
    (result,) = _results([("spin", 0)], limits=Limits(seconds=0.3))
    assert isinstance(result, Timeout)
    assert "in behave" in result.stderr


def test_a_limit_on_addresses_fails_an_allocation() -> None:
    results = _results([("eat", 1 << 30), ("add", 1)], limits=Limits(address_bytes=512 << 20))
    assert isinstance(results[0], Raised)
    assert "MemoryError" in results[0].kind
    assert isinstance(results[1], Done)


def test_workers_are_replaced() -> None:
    results = _results([("add", i) for i in range(5)], recycle=2)
    assert [r.value for r in results if isinstance(r, Done)] == [1, 2, 3, 4, 5]


def test_a_function_that_cannot_be_imported_is_told() -> None:
    with (
        Workers("tests.no_such_module:behave") as workers,
        pytest.raises(RuntimeError, match="no_such_module"),
    ):
        list(workers.run([1]))
