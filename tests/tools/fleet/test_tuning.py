"""A fleet: one node of each kind is tuned, failures are retried and named, what is done is kept."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.hardware.test_correction import document as correction_document
from tests.learn.test_samples import HEADER, SAMPLE, machine
from tests.tools.fleet.standing_in import StandIn

from ftuner.errors import ConfigurationError, DatasetError
from ftuner.hardware.correction import LearnedCorrection, from_document
from ftuner.hardware.exported import exported_document, read_exported
from ftuner.hardware.system import isas_of, read_system
from ftuner.hardware.tuning import CpuTuning
from ftuner.learn import samples
from ftuner.learn.samples import Dataset, append
from ftuner.runtime.backend import Effort
from ftuner.runtime.cpu.backend import default_backend
from ftuner_tools.fleet import tuning as fleet
from ftuner_tools.fleet.ray_cluster import RayCluster
from ftuner_tools.fleet.tuning import Kind, Node, kind_here, learned_from, tune_fleet, tune_here

MILAN = Kind("aa" * 16, "AMD EPYC (Milan)", "avx2", 2)
ICE_LAKE = Kind("bb" * 16, "Intel(R) Xeon(R)", "avx512", 32)


def tuned(**tuning: float) -> dict[str, Any]:
    """What a node returns: the machine of the samples with a tuning, and no samples."""
    known = CpuTuning(**tuning, provenance=dict.fromkeys(tuning, "probed"))  # type: ignore[arg-type]
    return {"machine": exported_document(replace(HEADER.hardware, tuning=known)), "samples": ""}


def work(node: Node, kind: Kind) -> dict[str, Any]:
    return tuned(tile_cycles=25.0 if kind == MILAN else 35.0)


def failing_on(*names: str, then: Callable[[Node, Kind], Any] = work) -> Any:
    def some(node: Node, kind: Kind) -> Any:
        if node.name in names:
            raise RuntimeError(f"lost {node.name}")
        return then(node, kind)

    return some


def dataset_text(folder: Path) -> str:
    append(folder / "made.jsonl", HEADER, [SAMPLE, SAMPLE])
    return (folder / "made.jsonl").read_text()


def test_one_node_of_each_kind(tmp_path: Path) -> None:
    cluster = StandIn([MILAN, ICE_LAKE, MILAN, MILAN, ICE_LAKE])
    counted, said = [], []
    report = tune_fleet(
        cluster, tmp_path / "new" / "out", work,
        progress=lambda *each: counted.append(each), say=said.append,
    )  # fmt: skip
    assert cluster.started == [("host-0", True), ("host-1", True)]
    assert [(t.kind, t.node) for t in report.tuned] == [(MILAN, "host-0"), (ICE_LAKE, "host-1")]
    assert (report.failed, report.silent) == ({}, {})
    assert [read_exported(t.path).tuning.tile_cycles for t in report.tuned] == [25.0, 35.0]
    assert counted == [("kinds", 0, 2), ("kinds", 1, 2), ("kinds", 2, 2)]
    assert said[0] == "2 kinds among 5 nodes"


def test_names_of_kinds() -> None:
    kinds = [
        MILAN, MILAN._replace(isa="sse2"), MILAN._replace(threads=1),
        MILAN._replace(fingerprint="cc" * 16), MILAN._replace(model_name="../../etc"),
    ]  # fmt: skip
    names = {kind.name for kind in kinds}
    assert len(names) == len(kinds)
    assert not any(set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)
    assert MILAN.name == "amd-epyc-milan-avx2-2-aaaaaaaa"


def test_another_node_of_the_kind_takes_over(tmp_path: Path) -> None:
    cluster = StandIn([MILAN, ICE_LAKE, MILAN])
    report = tune_fleet(cluster, tmp_path, failing_on("host-0"))
    assert [name for name, _ in cluster.started] == ["host-0", "host-1", "host-2"]
    assert {(t.kind, t.node) for t in report.tuned} == {(MILAN, "host-2"), (ICE_LAKE, "host-1")}
    assert report.failed == {}


def test_what_fails_everywhere_is_named(tmp_path: Path) -> None:
    cluster = StandIn([MILAN, ICE_LAKE, MILAN, MILAN, MILAN])
    said: list[str] = []
    failing = failing_on("host-0", "host-2", "host-3", "host-4")
    report = tune_fleet(cluster, tmp_path, failing, say=said.append)
    assert [t.kind for t in report.tuned] == [ICE_LAKE]
    errors = {name: f"RuntimeError: lost {name}" for name in ("host-0", "host-2", "host-3")}
    assert report.failed == {MILAN: errors}, "a fourth node is not tried"
    assert f"{MILAN.name} failed on host-3: RuntimeError: lost host-3" in said


@pytest.mark.parametrize(
    "returned",
    [
        None,
        {},
        {"machine": {}, "samples": ""},
        {**tuned(tile_cycles=-1.0), "samples": ""},
        {**tuned(), "samples": None},
        {**tuned(), "samples": "no dataset\n"},
        {**tuned(), "samples": "{}\n"},
        {**tuned(), "more": 1},
        {"machine": exported_document(machine("epyc-milan-2")), "samples": "of another machine"},
    ],
)
def test_what_a_node_returns_is_checked(tmp_path: Path, returned: Any) -> None:
    if returned and returned.get("samples") == "of another machine":
        returned = {**returned, "samples": dataset_text(tmp_path)}
    out = tmp_path / "out"
    report = tune_fleet(StandIn([MILAN, ICE_LAKE]), out, lambda node, kind: (
        work(node, kind) if kind == ICE_LAKE else returned
    ))  # type: ignore[arg-type, misc]  # fmt: skip
    assert [t.kind for t in report.tuned] == [ICE_LAKE]
    assert list(report.failed) == [MILAN]
    assert [path.name for path in out.iterdir()] == [f"{ICE_LAKE.name}.json"]


def test_nodes_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'ftuner'")
    report = tune_fleet(StandIn([missing, MILAN]), tmp_path, work)
    assert report.silent == {"host-0": "ModuleNotFoundError: No module named 'ftuner'"}
    assert [t.kind for t in report.tuned] == [MILAN]
    cluster = StandIn([MILAN, ICE_LAKE])
    monkeypatch.setattr(fleet, "SURVEY_S", 0.0)
    report = tune_fleet(cluster, tmp_path, work)
    assert set(report.silent) == {"host-0", "host-1"}
    assert len(cluster.cancelled) == 2
    assert report.tuned == []


def test_a_cluster_without_workers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no node with CPUs"):
        tune_fleet(StandIn([]), tmp_path, work)


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    def interrupted(node: Node, kind: Kind) -> Any:
        if kind == ICE_LAKE:
            raise KeyboardInterrupt
        return work(node, kind)

    other = MILAN._replace(isa="sse2")
    cluster, said = StandIn([MILAN, ICE_LAKE, other]), []
    with pytest.raises(KeyboardInterrupt):
        tune_fleet(cluster, tmp_path, interrupted, say=said.append)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == [f"{MILAN.name}.json"]
    assert said[-1] == f"interrupted; kept: {tmp_path / MILAN.name}.json"
    assert len(cluster.cancelled) == 1, "what runs is ended"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """No node is blamed for the folder here."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot make"):
        tune_fleet(StandIn([MILAN]), tmp_path / "file", work)
    (tmp_path / f"{MILAN.name}.json").mkdir()
    with pytest.raises(ConfigurationError, match="cannot write"):
        tune_fleet(StandIn([MILAN]), tmp_path, work)
    assert list((tmp_path / f"{MILAN.name}.json").iterdir()) == []


def test_learning_from_all(tmp_path: Path) -> None:
    """Each kind has a model of its own samples and those of the others, or none."""
    texts, out, seen = [], tmp_path / "out", []
    for number in (2, 3, 4):
        folder = tmp_path / str(number)
        folder.mkdir()
        append(folder / "made.jsonl", HEADER, [SAMPLE] * number)
        texts.append((folder / "made.jsonl").read_text())
    kinds = [MILAN, ICE_LAKE, MILAN._replace(threads=1), MILAN._replace(isa="sse2")]

    def sampled(node: Node, kind: Kind) -> Any:
        at = kinds.index(kind)
        return {**work(node, kind), "samples": texts[at] if at < len(texts) else ""}

    def train(own: Dataset, others: Sequence[Dataset]) -> LearnedCorrection:
        seen.append((len(own.samples), sorted(len(other.samples) for other in others)))
        if len(own.samples) == 3:
            raise DatasetError("too few samples")
        return from_document({**model, "bias": float(len(own.samples))})

    said: list[str] = []
    model = {**correction_document(), "fingerprint": HEADER.hardware.fingerprint}
    report = tune_fleet(StandIn(kinds), out, sampled, train, say=said.append)  # type: ignore[arg-type]
    assert seen == [(2, [3, 4]), (3, [2, 4]), (4, [2, 3])]
    for found in (
        [read_exported(each.path).correction for each in report.tuned],
        [each.hardware.correction for each in report.tuned],
    ):
        assert [each and each.bias for each in found] == [2.0, None, 4.0, None]
    for each, text in zip(report.tuned, texts, strict=False):
        assert each.path.with_suffix(".jsonl").read_text() == text
    assert len(list(out.iterdir())) == len(kinds) + len(texts)
    assert said[-2] == f"{ICE_LAKE.name} has no learned correction: too few samples"


def test_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a kind learns from its samples after those of the other kinds."""
    own, other = Dataset(HEADER, (SAMPLE,)), Dataset(replace(HEADER, date="before"), ())
    asked = []
    monkeypatch.setattr(fleet, "table_of", lambda dataset: f"table of {len(dataset.samples)}")
    monkeypatch.setattr(fleet, "transferred", lambda *given, **named: asked.append((given, named)))
    learned_from(own, [other])
    (given,) = asked
    assert given == ((["table of 0"], "table of 1", HEADER.fingerprint), {"source": "a fleet"})


def test_here(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read_system()
    monkeypatch.delenv("FTUNER_ISA", raising=False)
    monkeypatch.setenv("FTUNER_NUM_THREADS", "1")
    found = kind_here()
    assert found == Kind(facts.fingerprint, facts.model_name, isas_of(facts)[-1], 1)
    monkeypatch.setenv("FTUNER_ISA", "sse2")
    assert kind_here().isa == "sse2"
    with pytest.raises(Exception, match=f"of the kind .*sse2.*; expected {found.name}"):
        tune_here(found)


@pytest.mark.parametrize(
    "address", ["", "host", "host:", "host:x", "ray://:1", "host:99999", "a\0:1"]
)
def test_addresses(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigurationError, match="Ray cluster"):
        RayCluster(address)


def test_a_cluster_that_is_not_there() -> None:
    pytest.importorskip("ray")
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        RayCluster("127.0.0.1:1")
    assert time.monotonic() - began < 10


@pytest.mark.skipif(find_spec("ray") is not None, reason="the extra is installed")
def test_without_the_extra() -> None:
    with pytest.raises(ConfigurationError, match=r"the extra: pip install 'ftuner-tools\[ray\]'"):
        RayCluster("local")


HOST_KINDS = [(isa, threads) for isa in isas_of(read_system()) for threads in (1, 2)]


@pytest.fixture
def ray_cluster(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayCluster]:
    """Several nodes on this machine: two of the first of `HOST_KINDS`, one of each other."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Nodes find the tests as this process does.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (Path.cwd(), *_sources()))))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for isa, threads in [HOST_KINDS[0], *HOST_KINDS]:
        environment = {
            "FTUNER_ISA": isa, "FTUNER_NUM_THREADS": str(threads),
            "FTUNER_CACHE_DIR": str(cache_folder),
        }  # fmt: skip
        cluster.add_node(num_cpus=1, env_vars=environment)
    found = RayCluster(cluster.address)
    yield found
    found.close()
    cluster.shutdown()


def _sources() -> list[Path]:
    import ftuner
    import ftuner_tools

    return [Path(str(package.__file__)).parent.parent for package in (ftuner, ftuner_tools)]


def fail_where_it_was_not_tried(kind: Kind, effort: Effort) -> dict[str, Any]:
    """The first node of the first kind loses its process, the second is well."""
    mark = Path(os.environ["FTUNER_CACHE_DIR"]) / "tried-before"
    if (kind.isa, kind.threads) == HOST_KINDS[0] and not mark.exists():
        mark.touch()
        os._exit(1)
    if (kind.isa, kind.threads) == HOST_KINDS[1]:
        raise RuntimeError("never well")
    return tune_here(kind, effort)


@pytest.mark.full
@pytest.mark.alone
def test_a_ray_cluster(ray_cluster: RayCluster, tmp_path: Path, cache_folder: Path) -> None:
    (cache_folder / "tried-before").unlink(missing_ok=True)
    said: list[str] = []
    work = partial(fail_where_it_was_not_tried, effort="none")
    report = tune_fleet(ray_cluster, tmp_path, work, say=said.append)
    (cache_folder / "tried-before").unlink()
    wanted = {kind for kind in HOST_KINDS if kind != HOST_KINDS[1]}
    assert {(t.kind.isa, t.kind.threads) for t in report.tuned} == wanted
    assert [(k.isa, k.threads) for k in report.failed] == [HOST_KINDS[1]]
    (errors,) = report.failed.values()
    assert list(errors.values()) == ["RuntimeError: never well"]
    assert any("WorkerCrashedError" in line for line in said)
    names = {node.name for node in ray_cluster.nodes()}
    assert len(names) == len(HOST_KINDS) + 2, "nodes of one host have names of their own"
    for each in report.tuned:
        assert read_exported(each.path).model_name == read_system().model_name


@pytest.mark.alone
def test_a_thorough_node_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FTUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("ftuner.learn.sampling.SECONDS", 0.3)
    monkeypatch.setattr("ftuner.runtime.cpu.backend.CALIBRATION_S", {"thorough": 0.1})
    default_backend.cache_clear()
    try:
        found = fleet.tune_here(fleet.kind_here(), "thorough")
    finally:
        default_backend.cache_clear()
    path = tmp_path / "samples.jsonl"
    path.write_text(found["samples"])
    dataset = samples.read(path)
    assert dataset.samples
    assert dataset.header.fingerprint == found["machine"]["fingerprint"]
