"""Models run on any number of threads, from several threads, and after a fork."""

import os
import random
import threading
from functools import partial

import pytest
from tests.apart import Note, apart
from tests.at_once import at_once
from tests.runtime.cpu.small_models import LAYER, assert_right, small

from ftuner.graph.ir import Graph
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.model import Model


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_thread_counts(widest: CpuBackend, encoder: Model, threads: int) -> None:
    """Those of the back end, and a model's own."""
    widest.threads = threads
    assert encoder.threads == threads
    own = Model(LAYER, widest, Options(threads))
    widest.threads = 1
    assert own.threads == threads
    for b, s in ((1, 1), (3, 17), (2, 64)):
        assert_right(own, LAYER, B=b, S=s)
        assert_right(encoder, LAYER, B=b, S=s)


def test_several_threads_call_at_once(widest: CpuBackend, encoder: Model, sums: Model) -> None:
    """One model from several threads, and two models, which have one pool of workers."""
    widest.threads = 2

    def call(model: Model, graph: Graph, seed: int) -> None:
        source = random.Random(seed)
        for _ in range(40):
            b, s = source.randint(1, 4), source.randint(1, 40)
            assert_right(model, graph, seed, B=b, S=s)

    models = ((encoder, LAYER), (sums, small()))
    at_once(*(partial(call, *model, seed) for seed in range(3) for model in models))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork(widest: CpuBackend, encoder: Model) -> None:
    """With programs written before it, and others; the parent goes on."""
    widest.threads = 2
    assert_right(encoder, LAYER, B=2, S=9)

    def body(note: Note) -> None:
        assert_right(encoder, LAYER, B=2, S=9)
        assert_right(encoder, LAYER, B=3, S=11)

    apart(body)
    assert_right(encoder, LAYER, B=2, S=9)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_within_a_call(widest: CpuBackend, encoder: Model) -> None:
    """Another thread of the parent may be in the midst of a run."""
    widest.threads = 2
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            assert_right(encoder, LAYER, B=2, S=30)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        for _ in range(5):
            apart(lambda note: assert_right(encoder, LAYER, B=2, S=30))
    finally:
        stop.set()
        caller.join()
