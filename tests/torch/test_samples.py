"""torch's samples of operators, also in place, are right by the back end."""

from __future__ import annotations

import pytest

# torch's tests import it.
pytest.importorskip("expecttest")

import torch
from tests.torch.samples import outcome, samples

FEW = (
    "add", "addcmul", "addmm", "angle", "bitwise_and", "clamp", "copysign", "cumsum", "diagonal",
    "diagonal_scatter", "fill", "histc", "index_put", "masked_fill", "nn.functional.conv2d",
    "nn.functional.layer_norm", "polar", "scatter_reduce.amax", "select", "sort", "t", "transpose",
    "exponential", "uniform", "unsqueeze", "where",
)  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("op", FEW)
def test_samples_are_right_or_left_to_pytorch(op: str) -> None:
    dtype = torch.int64 if op == "bitwise_and" else torch.float32
    found = {which: outcome(sample) for which, sample in samples(op, dtype, 1)}
    assert {k: what for k, what in found.items() if what not in ("right", "left")} == {}
    assert found
