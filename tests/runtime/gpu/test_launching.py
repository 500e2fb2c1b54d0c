"""The host's work for launches, by counts: a time would be that of a shared machine.

A process of its own compiles kernels and calls Triton's launchers, with a driver that counts."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

VIEWS = {"aten.as_strided.default", "aten.reshape.default", "aten.view.default"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("cc") is None or find_spec("triton.backends.nvidia") is None:
        pytest.skip("Triton's launchers are compiled for CUDA by a C compiler")
    folder: Path = tmp_path_factory.mktemp("driver")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.runtime.gpu.launching", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("name", "frames"),
    [("split", 19), ("matmul", 12), ("Dense", 13), ("attention", 18)],
)
def test_a_call_like_one_before_is_a_key_and_a_launch(
    found: dict[str, Any], name: str, frames: int
) -> None:
    counts = found[name]
    assert (counts["launches"], counts["encodes"]) == (1, 0)
    assert counts["frames"] <= frames


def test_a_step_of_a_model_is_a_launch(found: dict[str, Any]) -> None:
    counts = found["model"]
    assert (counts["launches"], counts["encodes"]) == (counts["steps"], 0)
    assert counts["frames"] <= 10 * counts["steps"]


def test_a_capture_contains_kernels_alone(found: dict[str, Any]) -> None:
    """Nothing is allocated or cleared, though kernels of split sums need both."""
    assert found["model"]["split"] > 0
    assert set(found["model"]["captured"]) <= VIEWS


def test_launches_refer_to_the_tensors_of_each_call(found: dict[str, Any]) -> None:
    counts = found["others"]
    assert counts["pointers_right"]
    # Descriptors are encoded once for each place; unaligned operands have none.
    assert counts["encodes"] == [0, 3, 0, 3, 3, 0, 0, 0]


def test_threads_share_what_is_kept(found: dict[str, Any]) -> None:
    assert found["others"]["lost_by_threads"] == 0


def test_hooks_see_launches(found: dict[str, Any]) -> None:
    assert found["others"]["hooked"] == 1
