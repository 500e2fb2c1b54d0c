"""What all tests share: sessions of the ISAs this machine has, recorded CPUs, golden files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.hardware.system import isas_of, read_system
from ftuner.runtime.cache import CACHE_VARIABLE, Cache
from ftuner.runtime.session import Session

HOST_ISAS = tuple(isas_of(read_system()))
"""Narrowest first; told by the system, not probed."""
GOLDEN = Path(__file__).parent / "golden"
_GIVEN_FOLDER = os.environ.get(CACHE_VARIABLE)
"""Read before any test changes it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("isa"):
        missing = [name for name in marker.args if name not in HOST_ISAS]
        if missing:
            pytest.skip(f"this machine lacks {', '.join(missing)}")


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled objects go: the folder given to this run, else one of its own."""
    return Path(_GIVEN_FOLDER) if _GIVEN_FOLDER else tmp_path_factory.mktemp("ftuner-cache")


@pytest.fixture(scope="session")
def session_of(cache_folder: Path) -> Callable[[str], Session]:
    """The session of an ISA, one for all tests."""
    return cache(lambda isa: Session(cache=Cache(cache_folder), isa=isa))


@pytest.fixture(scope="module", params=HOST_ISAS)
def session(
    request: pytest.FixtureRequest, session_of: Callable[[str], Session]
) -> Iterator[Session]:
    """A session for each ISA that this machine has. Its thread count is put back afterwards."""
    found = session_of(request.param)
    threads = found.threads
    yield found
    found.threads = threads


@pytest.fixture(scope="module")
def widest(session_of: Callable[[str], Session]) -> Iterator[Session]:
    """The session of the widest ISA."""
    found = session_of(HOST_ISAS[-1])
    threads = found.threads
    yield found
    found.threads = threads


def recorded_cpus() -> tuple[CpuHardware, ...]:
    """All recorded machines with a CPU."""
    machines = (load_recorded(name) for name in recorded_names())
    return tuple(machine for machine in machines if isinstance(machine, CpuHardware))


@pytest.fixture(params=recorded_cpus(), ids=lambda machine: machine.name)
def recorded(request: pytest.FixtureRequest) -> CpuHardware:
    """Each recorded CPU."""
    found = request.param
    assert isinstance(found, CpuHardware)
    return found


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text to a file in `golden/`, or write the file (`--update-golden`)."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {name}: run pytest with --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"{name}: review, then --update-golden"

    return check
