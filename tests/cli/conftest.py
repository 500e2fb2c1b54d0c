"""What tests of the command line share: a cache of their own, the narrowest ISA, one thread."""

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ftuner.hardware.system import read_system
from ftuner.runtime.cpu.backend import default_backend

BASE_ISA = {"x86_64": "sse2", "aarch64": "neon"}

collect_ignore_glob = [] if find_spec("onnx") else ["test_model_*.py"]


@pytest.fixture(scope="session")
def warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that the tests of this folder share, so that the machine is probed once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_session(warm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(warm_folder))
    monkeypatch.setenv("FTUNER_ISA", BASE_ISA[read_system().architecture])
    monkeypatch.setenv("FTUNER_NUM_THREADS", "1")
    default_backend.cache_clear()
    yield
    default_backend.cache_clear()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children have the default SIGINT. A shell starts a background job, such as the tests may be,
    with SIGINT ignored, which children inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
