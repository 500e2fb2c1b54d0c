"""Machine code in this process: what it computes, how its memory is protected, when it goes."""

import ctypes
import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.at_once import at_once
from tests.codegen.llvm.objects import TARGETS, object_of

from ftuner.codegen.llvm.objects.jit import Engine
from ftuner.codegen.llvm.objects.loading import LoadedObject
from ftuner.errors import ObjectFileError
from ftuner.hardware.system import ARCHITECTURES

HERE = ARCHITECTURES[platform.machine().lower()]
ELF = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other objects than ELF")
ROOT = Path(__file__).parents[3]


def objects() -> list[bytes]:
    return [object_of("scaled", HERE), object_of("triple", HERE)]


def check(address: int) -> None:
    """Call `scaled`."""
    x = np.arange(1, 9, dtype=np.float32)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(address)
    assert [function(x.ctypes.data, n) for n in range(4)] == [21, 35, 49, 63]
    scale = np.array([1.5, 2.5, 3.5, 4.25], np.float32)
    assert np.array_equal(x[:4], np.arange(1, 5, dtype=np.float32) * scale**4)
    assert not x[4:].any()


def protection(address: int) -> str | None:
    """How the system protects an address: `r-xp`; None if nothing is there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, kind, *_ = line.split()
        begin, end = (int(n, 16) for n in bounds.split("-"))
        if begin <= address < end:
            return kind
    return None


@ELF
@pytest.mark.parametrize("reverse", [False, True])
def test_objects_find_each_other(reverse: bool) -> None:
    loaded = LoadedObject(objects()[:: -1 if reverse else 1], ["scaled", "triple"])
    check(loaded.addresses["scaled"])


@ELF
def test_llvm_loads_the_same() -> None:
    """The way of formats other than ELF."""
    engine = Engine(objects())
    check(engine.address("scaled"))
    assert engine.address("nothing") == 0


@ELF
def test_llvm_loads_where_caches_cannot_be_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftuner.codegen.llvm.objects.loading.instruction_flush", lambda: None)
    loaded = LoadedObject(objects(), ["scaled", "triple"])
    check(loaded.addresses["scaled"])
    with pytest.raises(ObjectFileError, match="no object defines fourfold"):
        LoadedObject(objects(), ["fourfold"])


@ELF
def test_memory_is_never_writable_and_executable() -> None:
    loaded = LoadedObject(objects(), [])
    code = loaded.addresses["scaled"]
    assert protection(code) == "r-xp"
    page = os.sysconf("SC_PAGE_SIZE")
    assert protection(code // page * page + page) == "r--p"


@ELF
def test_memory_goes_with_the_object() -> None:
    loaded = LoadedObject(objects(), [])
    code = loaded.addresses["scaled"]
    check(code)
    del loaded
    gc.collect()
    # Something else may lie there by now, but no code of ours.
    assert protection(code) != "r-xp"


def test_nothing_to_load() -> None:
    assert LoadedObject([], []).addresses == {}
    with pytest.raises(ObjectFileError, match="no object defines a, b"):
        LoadedObject([], ["a", "b"])


@ELF
def test_what_cannot_be_loaded() -> None:
    with pytest.raises(ObjectFileError, match="no object defines fourfold"):
        LoadedObject(objects(), ["triple", "fourfold"])
    with pytest.raises(ObjectFileError, match="has the function 'no_library_has_this'"):
        LoadedObject([object_of("unknown", HERE)], ["f"])
    with pytest.raises(ObjectFileError, match="has the function 'triple'"):
        LoadedObject([object_of("scaled", HERE)], ["scaled"])
    (other,) = TARGETS.keys() - {HERE}
    with pytest.raises(ObjectFileError, match=f"an object for {other}"):
        LoadedObject([object_of("unknown", other)], ["f"])


@ELF
def test_several_threads_load() -> None:
    def work() -> None:
        for _ in range(20):
            loaded = LoadedObject(objects(), ["scaled"])
            check(loaded.addresses["scaled"])

    at_once(*[work] * 4)


@ELF
def test_forked_child_has_the_code_and_loads_more() -> None:
    """In a process of its own, which has no threads to fork away from."""
    script = """
import os
from tests.codegen.llvm.test_loading import LoadedObject, check, objects
loaded = LoadedObject(objects(), ["scaled"])
child = os.fork()
check(loaded.addresses["scaled"])
more = LoadedObject(objects(), ["scaled"])
check(more.addresses["scaled"])
if child:
    del loaded
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=True)


@ELF
def test_code_outlives_daemon_threads() -> None:
    """A thread that is still within native code when the process ends does no harm."""
    script = """
import ctypes, threading, numpy as np
from tests.codegen.llvm.test_loading import LoadedObject, objects
loaded = LoadedObject(objects(), ["wait_for"])
word = np.zeros(1, np.int64)
wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.addresses["wait_for"])
threading.Thread(target=wait, args=(word.ctypes.data,), daemon=True).start()
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=True)
