"""`ftuner tune --ray`, with a stand-in for the cluster."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.invoking import document, run
from tests.tools.fleet.standing_in import StandIn

from ftuner.hardware.exported import read_exported
from ftuner_tools.fleet import ray_cluster
from ftuner_tools.fleet.tuning import Kind, Node, kind_here

WRONG = Kind("ff" * 16, "Another CPU", "avx512", 64)
"""A kind that this machine is not, so that its node fails."""


class Here(StandIn):
    """Nodes that are this machine, whatever they say."""

    address = ""
    closed = False
    kinds: tuple[Kind | Exception, ...] = ()

    def __init__(self, address: str) -> None:
        super().__init__(self.kinds)
        type(self).address, type(self).closed = address, False

    def start(
        self, node: Node, function: Callable[..., Any], arguments: tuple[Any, ...], alone: bool
    ) -> Hashable:
        if function is kind_here:
            return super().start(node, function, arguments, alone)
        return super().start(node, lambda _, *given: function(*given), arguments, alone)

    def close(self) -> None:
        type(self).closed = True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[Here]:
    monkeypatch.setattr(ray_cluster, "RayCluster", Here)
    Here.kinds = (kind_here(), kind_here())
    return Here


def test_a_file_for_each_kind(cluster: type[Here], tmp_path: Path) -> None:
    result = run("tune", "--no-calibration", "--ray", "head:6379", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.stderr
    assert (cluster.address, cluster.closed) == ("head:6379", True)
    (path,) = (tmp_path / "out").iterdir()
    assert result.stdout.splitlines() == [
        "tuned 1 kind, to be taken over with tune --from:", f"  {path}"
    ]  # fmt: skip
    assert f"{path.stem} on host-0" in result.stderr
    assert document("tune", "--no-calibration", "--from", str(path))["prior"]["same_machine"]


def test_failures_are_named(cluster: type[Here], tmp_path: Path) -> None:
    cluster.kinds = (WRONG, kind_here(), OSError("no disk"))
    result = run("tune", "--no-calibration", "--ray", "auto", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert (
        f"failed: {WRONG.name} on host-0: HardwareError: the node is of the kind" in result.stdout
    )
    assert "left out: host-2: OSError: no disk" in result.stdout
    found = document(
        "tune", "--no-calibration", "--ray", "auto", "--out", str(tmp_path), exit_code=1
    )
    (tuned,) = found["tuned"]
    assert (tuned["kind"], tuned["node"], tuned["samples"]) == (kind_here().name, "host-1", 0)
    exported = read_exported(tuned["file"])
    assert tuned["fingerprint"] == exported.fingerprint
    assert list(found["failed"]) == [WRONG.name]
    assert (found["silent"], tuned["learned"]) == ({"host-2": "OSError: no disk"}, False)


def test_options(tmp_path: Path) -> None:
    for given in (["--ray", "auto"], ["--out", "x"]):
        assert "--ray and --out go together" in run("tune", *given).stderr
    for more in (["--isa", "sse2"], ["--device", "cuda"], ["--dtype", "float64"]):
        result = run("tune", "--ray", "auto", "--out", str(tmp_path), *more)
        assert result.exit_code == 2
        assert "takes no other options" in result.stderr
