"""What all tests share: back ends of the ISAs this machine has, recorded CPUs, golden files."""

import gc
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from tests import long_tests

from ftuner.core import functions
from ftuner.graph.operators import OPERATORS
from ftuner.hardware.model import CpuHardware
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.hardware.system import isas_of, read_system
from ftuner.runtime.cache import CACHE_VARIABLE, Cache
from ftuner.runtime.cpu import compilation
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.session import ISA_VARIABLE
from ftuner.runtime.saved import kept

_FOUND_ISAS = tuple(isas_of(read_system()))
_WIDEST_ISA = os.environ.get(ISA_VARIABLE) or _FOUND_ISAS[-1]
HOST_ISAS = _FOUND_ISAS[: _FOUND_ISAS.index(_WIDEST_ISA) + 1]
"""Narrowest first, up to `FTUNER_ISA`; read from the system, not probed."""
CORE_ISAS = tuple(
    pytest.param(isa, marks=[] if isa == HOST_ISAS[-1] else [pytest.mark.full]) for isa in HOST_ISAS
)
"""The same as parameters of a test. The core has the widest."""
THOROUGH = "FTUNER_TESTS_EVERY_COMBINATION"
"""Variable that child processes see where `--every-combination` is given."""
T = TypeVar("T")
GOLDEN = Path(__file__).parent / "golden"
_TOOLS = Path(__file__).parent.parent / "tools"
# Child processes find the tools of this tree as this one does (`pythonpath` of pyproject.toml).
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (os.environ.get("PYTHONPATH"), str(_TOOLS)))
)
_GIVEN_FOLDER = os.environ.get(CACHE_VARIABLE)
"""Read before any test changes it."""
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")  # Other load on a machine must not fail a test.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )
    parser.addoption(
        "--every-combination", action="store_true",
        help="also run what `each_value`, `covering` and `share` leave out: combinations without a "
        "new pair of values, and what is alike",
    )  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Tell of each failure when it happens: a run that is stopped has no summary. Where tests have
    a process for each core, they compile in these: starting others takes a second each."""
    # A test may change what a file is compiled to; models that it loads are not those of others.
    kept.MODEL_SHARE = 0.0
    if config.getoption("every_combination"):
        os.environ[THOROUGH] = "1"
    if hasattr(config, "workerinput"):
        compilation.worthwhile_processes = lambda *_: 1
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.register(_FailuresAtOnce(reporter))


class _FailuresAtOnce:
    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self.reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            reason = report.longreprtext.splitlines()[-12:]
            self.reporter.write_line(f"\n{report.nodeid} ({report.when})\n" + "\n".join(reason))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files without the tests that `-m alone` asks for."""
    asked = config.getoption("markexpr").split()
    if collection_path.suffix != ".py" or asked[-1:] != ["alone"] or asked[-2:-1] == ["not"]:
        return None
    return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files marked `long` first, and mark as `full` what takes longest, and the cases of a test
    marked `each_value` that the core does not need. Leave out those that have no pair of values
    which no other case has."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    longest = long_tests.listed()
    for item in items:
        if long_tests.name_of(item.nodeid) in longest:
            item.add_marker("full")
    groups = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("each_value"):
            groups[item.parent, item.originalname].append(item)
    left = set[pytest.Item]()
    for cases in groups.values():
        values = [_values(case) for case in cases]
        core = each_value(values)
        kept = core | pairs_of_values(values)
        for number, case in enumerate(cases):
            if number not in core:
                case.add_marker("full")
            if number not in kept:
                left.add(case)
    if not config.getoption("every_combination"):
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=[*left])


def pytest_collection_finish() -> None:
    """Spare collections of garbage the modules and tests that are there by now: with those of all
    tests, one would take half a second."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Libraries report what is left of them when the process ends."""
    gc.unfreeze()


def _values(case: pytest.Function) -> frozenset[object]:
    """What a case has of each parameter: names with the identity of their values."""
    given = [mark.args[0] for mark in case.iter_markers("parametrize")]
    names = [(x,) if isinstance(x, str) else tuple(x) for x in given]
    params = case.callspec.params
    names += [(name,) for name in params if all(name not in group for group in names)]
    return frozenset((group, *(id(params[name]) for name in group)) for group in names)


def each_value(cases: Sequence[frozenset[object]]) -> set[int]:
    """Returns the indexes of few cases that together have every value of `cases`.

    Chooses the case with the most values that no earlier choice has; of several, the one whose
    values were chosen least often.
    """
    chosen: set[int] = set()
    uses: Counter[object] = Counter()
    while not all(uses[value] for values in cases for value in values):
        best = max(
            range(len(cases)),
            key=lambda i: (sum(not uses[v] for v in cases[i]), -sum(uses[v] for v in cases[i])),
        )
        chosen.add(best)
        uses.update(cases[best])
    return chosen


def pairs_of_values(cases: Sequence[frozenset[object]]) -> set[int]:
    """Returns the indexes of few cases that together have every pair of values of `cases`; of all
    that are left, each has the most pairs that no earlier one has."""
    left = [{frozenset(pair) for pair in combinations(values, 2)} for values in cases]
    queue = [(-len(pairs), number) for number, pairs in enumerate(left)]
    heapify(queue)
    found, chosen = set[object](), set[int]()
    while queue:
        _, number = heappop(queue)
        left[number] -= found
        entry = (-len(left[number]), number)
        if queue and entry > queue[0]:
            heappush(queue, entry)
        elif left[number]:
            chosen.add(number)
            found |= left[number]
    return chosen


def covering(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns few combinations of a value of each axis that together have every pair of values; all
    of them where `--every-combination` is given."""
    cases = [*product(*axes)]
    places = product(*(range(len(axis)) for axis in axes))
    assert len(axes) > 1, "a single axis has no pairs"
    kept = pairs_of_values([frozenset(enumerate(place)) for place in places])
    return [case for number, case in enumerate(cases) if THOROUGH in os.environ or number in kept]


def share(items: Sequence[T], one_of: int, first: int = 0) -> Sequence[T]:
    """Returns every `one_of`th item, from `first` on; all of them where `--every-combination` is
    given. Tests of equal items that take different shares have all of them together."""
    return items if THOROUGH in os.environ else items[first % one_of :: one_of]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("isa"):
        missing = [name for name in marker.args if name not in HOST_ISAS]
        if missing:
            pytest.skip(f"this machine lacks {', '.join(missing)}")
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)  # Chance must not fail a test.


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled objects go: the folder given to this run, else one of its own."""
    return Path(_GIVEN_FOLDER) if _GIVEN_FOLDER else tmp_path_factory.mktemp("ftuner-cache")


@pytest.fixture(scope="session")
def backend_of(cache_folder: Path) -> Callable[[str], CpuBackend]:
    """The back end of an ISA, one for all tests."""
    return cache(lambda isa: CpuBackend(cache=Cache(cache_folder), isa=isa))


@pytest.fixture(scope="module", params=HOST_ISAS)
def backend(
    request: pytest.FixtureRequest, backend_of: Callable[[str], CpuBackend]
) -> Iterator[CpuBackend]:
    """A back end for each ISA that this machine has. Its thread count is put back afterwards."""
    found = backend_of(request.param)
    threads = found.threads
    yield found
    found.threads = threads


@pytest.fixture(scope="module")
def widest(backend_of: Callable[[str], CpuBackend]) -> Iterator[CpuBackend]:
    """The back end of the widest ISA."""
    found = backend_of(HOST_ISAS[-1])
    threads = found.threads
    yield found
    found.threads = threads


@pytest.fixture
def as_default(widest: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> CpuBackend:
    """The tests' own back end in the place of the process's."""
    monkeypatch.setattr("ftuner.runtime.request.backend_of", lambda device: widest)
    return widest


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
def tables_put_back() -> Iterator[None]:
    """Functions and operators that a test registers are gone after it."""
    tables: tuple[Any, ...] = (functions._TABLE, functions._REGISTERED, OPERATORS.rows)
    before = [dict(table) for table in tables]
    yield
    for table, rows in zip(tables, before, strict=True):
        table.clear()
        table.update(rows)


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
