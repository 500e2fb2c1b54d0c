"""Plans that are made ahead are saved with a model, and are found as they were made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import inputs_of
from tests.runtime.cpu.test_row_ranges import ROWS, WIDTHS, dense

import ftuner
from ftuner.planner.cpu.candidates import Candidate
from ftuner.planner.cpu.planner import Planner
from ftuner.runtime.backend import Options
from ftuner.runtime.cpu.backend import CpuBackend
from ftuner.runtime.cpu.plan_records import PlanWriter
from ftuner.runtime.model import Model


def refuse(*_: Any) -> Any:
    raise AssertionError("a product is planned")


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("k", "n"), WIDTHS)
@pytest.mark.parametrize("blocked", [False, True])
def test_saved_models_have_the_plans(
    backend: CpuBackend, k: int, n: int, threads: int, blocked: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The same bits, and nothing is planned where it was planned ahead."""
    if blocked:
        monkeypatch.setattr(Candidate, "block_of_rows", lambda self, m: min(m, 23))
        backend = CpuBackend(cache=backend.cache, isa=backend.kernels.isa.name)
    graph, path = dense(k, n), tmp_path / "model.ftuner"
    own = Model(graph, backend, Options(threads=threads))
    feeds = [inputs_of(graph, {"S": rows}) for rows in (*ROWS, 0)]
    wanted = [own.run(x) for x in feeds]
    ftuner.save(own, path)
    again = ftuner.load(path, threads=threads)
    monkeypatch.setattr(Planner, "lay_out", refuse)
    monkeypatch.setattr(PlanWriter, "write", refuse)
    for x, y in zip(feeds, wanted, strict=True):
        np.testing.assert_array_equal(again.run(x), y)
