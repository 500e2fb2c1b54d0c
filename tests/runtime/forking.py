"""A program that forks while another thread is at something: `python -m tests.runtime.forking AT`.

The child, which has neither that thread nor the workers, then does all that the library offers, and
so does the parent.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module

import numpy as np
from tests.frontends.onnx_models import parsed

import ftuner
from ftuner.codegen.llvm.objects.compile import compile_bundle
from ftuner.codegen.llvm.objects.jit import host_target
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.core import fork_safety
from ftuner.graph.schedules import Schedule, register_schedule
from ftuner.runtime import compile_processes as processes
from ftuner.runtime.cache import Cache
from ftuner.runtime.cpu import attention as attending
from ftuner.runtime.cpu import memory, session
from ftuner.runtime.cpu.backend import default_backend
from ftuner.runtime.cpu.matmul import Matmul
from ftuner.runtime.step_kinds import StepKinds

SECONDS = 60
"""What a child may take."""
RANDOM = np.random.default_rng(0)
A, B = (RANDOM.random(shape, np.float32) for shape in ((300, 200), (200, 260)))
PRODUCT = A @ B
"""NumPy's BLAS has threads and locks of its own, and is not asked again."""


def model_bytes(columns: int) -> bytes:
    """A product, a softmax and an activation; `columns` tells one model from another."""
    text = f"""(float[rows, 24] x) => (float[rows, {columns}] y) {{
        scores = MatMul(x, w)
        shares = Softmax(scores)
        y = Tanh(shares)
    }}"""
    return parsed(text, w=RANDOM.random((24, columns), np.float32)).SerializeToString()


MODEL = model_bytes(16)
X = RANDOM.random((37, 24), np.float32)


def everything() -> None:
    """Calls of each kind, twice: the second is recognised by native code."""
    for _ in range(3):
        assert np.allclose(ftuner.matmul(A, B), PRODUCT, rtol=1e-4)
    layer = ftuner.Dense(np.ascontiguousarray(B.T), activation="relu")
    for _ in range(3):
        assert np.allclose(layer(A), PRODUCT, rtol=1e-4)
    model = ftuner.load(MODEL)
    for _ in range(2):
        assert np.allclose(np.arctanh(model(x=X)["y"]).sum(1), 1, rtol=1e-4)
    q = A[np.newaxis, :40, :32]
    assert np.allclose(ftuner.attention(q, q, q).shape, q.shape)
    assert ftuner.tune("float32", calibrate="none").isa
    assert ftuner.tune("float64", calibrate="none").isa


class At:
    """What another thread is at. `began` is set when it is there; it goes on until `stop` is."""

    def __init__(self) -> None:
        self.began, self.stop = threading.Event(), threading.Event()
        self.errors: list[BaseException] = []

    def pause(self) -> None:
        """Stay here, in the thread that is not the main one."""
        if threading.current_thread() is not threading.main_thread() and not self.began.is_set():
            self.began.set()
            self.stop.wait()

    def paused(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function, which pauses first."""

        def wrapped(*arguments: object, **named: object) -> object:
            self.pause()
            return function(*arguments, **named)

        return wrapped


def tuning(at: At) -> None:
    ftuner.tune("float64", progress=lambda *_: at.pause(), calibrate="none")


def probing(at: At) -> None:
    session.known_hardware = at.paused(session.known_hardware)  # type: ignore[assignment]
    everything()


def compiling_somewhere(at: At) -> None:
    """Within the locks of the back end and of its kernels."""
    Cache.read = at.paused(Cache.read)  # type: ignore[method-assign,assignment]
    everything()


def loading(at: At) -> None:
    LoadedObject.__init__ = at.paused(  # type: ignore[method-assign,assignment]
        LoadedObject.__init__
    )
    everything()


def loading_a_model(at: At) -> None:
    ftuner.load(MODEL, progress=lambda *_: at.pause())


def attending_first(at: At) -> None:
    attending.Model = at.paused(attending.Model)  # type: ignore[attr-defined,assignment,misc]
    everything()


def planning(at: At) -> None:
    everything()
    at.began.set()
    rows = 0
    while not at.stop.is_set():
        rows = rows % 290 + 1
        assert np.allclose(ftuner.matmul(A[:rows], B), PRODUCT[:rows], rtol=1e-4)


def running_a_model(at: At) -> None:
    model = ftuner.load(MODEL)
    at.began.set()
    while not at.stop.is_set():
        for rows in (37, 5, 12):
            model(x=X[:rows])


def compile_something() -> None:
    bundle = default_backend().kernels._runtime_bundle()
    compile_bundle(bundle, host_target(default_backend().hardware.isas[0].name))


def within_llvm(at: At) -> None:
    compile_something()
    at.began.set()
    while not at.stop.is_set():
        compile_something()


def within_an_import(at: At) -> None:
    at.began.set()
    import_module("tests.runtime.slow_cpu_binding")


def meeting_a_kind_of_step(at: At) -> None:
    register_schedule(Schedule("slow", prefix="tests.runtime.slow_"))
    at.began.set()
    assert StepKinds[bool]("cpu").named("slow")


def with_every_lock(at: At) -> None:
    everything()
    found = default_backend()
    assert isinstance(found.matmul, Matmul)
    runtime = found.kernels.runtime
    locks = [
        found._lock, found.kernels._lock, runtime.pool.lock, runtime.workspaces._lock, memory._lock,
        found._attention._lock, found.matmul._known._lock, *fork_safety._LOCKS,
    ]  # fmt: skip
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        at.began.set()
        at.stop.wait()


def with_processes(at: At) -> None:
    wanted = [processes.Request("it", ("text", "right"))] * 2
    for _ in processes.answers("tests.runtime.answering", wanted, 2):
        at.pause()


ACTIVITIES = {
    function.__name__: function
    for function in (
        tuning, probing, compiling_somewhere, loading, loading_a_model, attending_first, planning,
        running_a_model, within_llvm, within_an_import, meeting_a_kind_of_step, with_every_lock,
        with_processes,
    )
}  # fmt: skip


def main(name: str) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    at = At()

    def work() -> None:
        try:
            ACTIVITIES[name](at)
        except BaseException as error:
            at.errors.append(error)
            at.began.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert at.began.wait(SECONDS)
    for delay_s in (0.0, 0.03, 0.11) if name in ("planning", "running_a_model") else (0.05,):
        time.sleep(delay_s)
        assert not at.errors, at.errors
        child = os.fork()
        if child == 0:
            # Whatever hangs, this ends it.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            faulthandler.dump_traceback_later(SECONDS - 5)
            if name == "within_an_import":
                assert import_module("tests.runtime.slow_cpu_binding").DONE
            if name == "meeting_a_kind_of_step":
                assert StepKinds[bool]("cpu").named("slow")
            if name == "within_llvm":
                compile_something()
            everything()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    at.stop.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert not at.errors, at.errors
    everything()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
