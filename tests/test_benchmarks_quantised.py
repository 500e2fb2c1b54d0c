"""Models that ONNX Runtime has quantised, timed beside it."""

import pytest
from benchmarks.quantised import CASES, FLOAT32, PEERS, measured

from ftuner_tools.onnx_engines import ONNX_ENGINES
from ftuner_tools.timing import SUBJECT, Settings

pytestmark = pytest.mark.full


def test_all_engines_are_timed_on_a_quantised_layer() -> None:
    few = Settings(budget_s_per_engine=0.0, min_rounds=1)
    found = measured(CASES["lstm"], "dynamic", 1, few)
    peers = {name for name in PEERS if ONNX_ENGINES[name].available()}
    assert found["refused"].keys() == {*PEERS} - peers
    assert [case["label"] for case in found["cases"]] == ["8x1", "77x1", "77x4"]
    for case in found["cases"]:
        engines = case["engines"]
        assert set(engines) == {SUBJECT, *peers, FLOAT32}
        assert all(times["min_s"] > 0 for times in engines.values())
        assert case["best_peer"] in peers
