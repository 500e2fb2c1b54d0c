"""A share of mutants with fixed seeds, and all that were found before."""

from pathlib import Path

import pytest
from tests.mutants.bench import SAVED, run
from tests.mutants.checking import Outcome, check
from tests.mutants.corpus import SPECIAL, special_model
from tests.mutants.mutating import mutant

from ftuner.frontends.onnx.importer import import_model
from ftuner.graph.passes.pipeline import optimised

COUNT, SEED, RUN_SHARE = 2500, 0, 0.02


def test_mutants(cache_folder: Path) -> None:
    summary = run(COUNT, SEED, jobs=1, run_share=RUN_SHARE, cache=cache_folder)
    assert not summary.findings, summary.text()
    assert summary.mutants == COUNT
    assert summary.loaded > COUNT / 20, summary.text()
    assert summary.refused["GraphError"] > COUNT / 20, summary.text()
    assert summary.runs > 5, summary.text()


@pytest.mark.parametrize("path", sorted(SAVED.glob("*.onnx")), ids=lambda path: path.stem)
def test_saved(path: Path) -> None:
    outcome: Outcome = check((path.read_bytes(), True))
    assert not outcome.findings


def test_seeds_make_the_same_mutants() -> None:
    assert [mutant(seed) for seed in range(50)] == [mutant(seed) for seed in range(50)]


@pytest.mark.parametrize("name", SPECIAL)
def test_what_mutants_are_made_of_is_loaded(name: str) -> None:
    assert check((special_model(name), False)).refused == ""


@pytest.mark.parametrize("name", ["layer", "halves"])
def test_the_layer_is_recognised(name: str) -> None:
    """Whatever its numbers were rounded to."""
    graph = optimised(import_model(special_model(name)).graph)
    assert {"attention", "norm", "gelu"} <= {node.op for node in graph.nodes}
