"""Schedules as Triton text, in Triton's interpreter."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import share
from tests.tasks.random_schedules import made

from ftuner.codegen.triton.source import load
from ftuner.core.evaluation import evaluate
from ftuner.errors import UnsupportedStatementError
from ftuner.tasks.interpret import interpret
from ftuner.tasks.program import WORKERS, Program
from ftuner.tasks.triton import kernel_source


def agrees(program: Program, extents: dict[str, int], workers: int, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    shapes = [[evaluate(d, extents) for d in a.shape] for a in program.inputs]
    arrays = [random.standard_normal(s).astype(program.dtype.name) for s in shapes]
    expected = interpret(program, arrays, extents, workers)
    dtype = getattr(torch, program.dtype.name)
    outputs = [torch.full(x.shape, torch.nan, dtype=dtype) for x in expected]
    values = {**extents, WORKERS: workers}
    programs = evaluate(program.tasks.workers, values)
    tensors = [torch.from_numpy(a) for a in arrays]
    load(kernel_source(program))[(programs,)](workers, *extents.values(), *tensors, *outputs)
    for found, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", [
    "matmul", "softmax", "layer_norm", "depthwise", "lattice_filter",
    pytest.param("selective_scan", marks=pytest.mark.full),
])  # fmt: skip
def test_gallery(name: str) -> None:
    schedule = getattr(import_module(f"tests.tasks.gallery.{name}"), name)
    programs = [*schedule.programs.values()]
    program = programs[len(programs) // 2]
    agrees(program, dict(zip(program.extents, (3, 7, 19), strict=False)), workers=2)


@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in share(range(3, 60), 3))],
)
def test_random_schedules(seed: int, tmp_path: Path) -> None:
    program = next(iter(made(seed, tmp_path).programs.values()))
    if program.panels:
        with pytest.raises(UnsupportedStatementError, match="panel"):
            kernel_source(program)
        return
    agrees(program, dict(zip(program.extents, (5, 3, 4), strict=False)), 2, seed)
