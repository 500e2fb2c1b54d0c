"""Models of one operator each."""

import onnx
from benchmarks.operators import operators


def test_models_are_valid_and_have_labels_of_their_own() -> None:
    found = operators()
    assert len({operator.label for operator in found}) == len(found)
    for operator in found:
        onnx.checker.check_model(operator.model(), full_check=True)
