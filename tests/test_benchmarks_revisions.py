"""Comparing two revisions: the requests to the measuring processes, and the ratios of times."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks import revisions
from benchmarks.cases import select
from benchmarks.revisions import BEFORE, PRESENT, Server, compare_case, tree_of


class Scripted:
    """A server that answers with times known ahead."""

    def __init__(self, *seconds: float) -> None:
        self.asked: list[int | None] = []
        self._seconds = seconds

    def ask(self, number: int | None) -> float:
        self.asked.append(number)
        return self._seconds[(len(self.asked) - 2) % len(self._seconds)]


def test_a_ratio_pairs_the_bursts_of_a_round() -> None:
    # The machine is ten times slower in every second round.
    before, present = Scripted(3.0, 30.0), Scripted(2.0, 20.0)
    servers: Any = {BEFORE: before, PRESENT: present}
    ratio = compare_case(7, "a case", servers, budget_s=0.0)
    assert ratio.label == "a case"
    assert ratio.by_minima == pytest.approx(1.5)
    assert ratio.paired == pytest.approx(1.5)
    assert before.asked == present.asked == [7] + [None] * ratio.rounds


def test_a_process_serves_the_sources_that_it_is_given(tmp_path: Path) -> None:
    server = Server(revisions.ROOT, tmp_path, ("bmm", "dietcode", "1"), 1)
    try:
        smallest = min(select("bmm", "dietcode"), key=lambda case: case.flops)
        number = select("bmm", "dietcode").index(smallest)
        assert 0 < server.ask(number) < 10
        assert 0 < server.ask(None) < 10
    finally:
        server.close()


def test_a_process_that_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "src" / "ftuner").mkdir(parents=True)
    (tmp_path / "src" / "ftuner" / "__init__.py").write_text("raise SystemExit(3)")
    server = Server(tmp_path, tmp_path, ("bmm", "dietcode", "1"), 1)
    with pytest.raises(RuntimeError, match="ended with 3"):
        server.ask(0)
    server.close()


def test_the_sources_of_a_revision() -> None:
    with tree_of("HEAD") as tree:
        assert (tree / "src" / "ftuner" / "__init__.py").is_file()
    assert not tree.exists()
