"""What a type checker sees of the public names: no `Any` where a type is known, and no more names
than there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.child import printed

import ftuner

ARRAY = "ndarray[tuple[Any, ...], dtype[floating[_32Bit]]]"
"""float32 of any shape."""
PROGRAM = '''
"""A program of a user. Each `reveal_type` is followed by what it shows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import ftuner


class Tensor:
    """As torch's, whose own stubs take long to read."""

    @property
    def is_cuda(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return 0


x: npt.NDArray[np.float32] = np.ones((3, 4), np.float32)
t = Tensor()
reveal_type(ftuner.matmul(x, x.T))  # ARRAY
reveal_type(ftuner.matmul(x, x.T, accumulate=False))  # ARRAY
reveal_type(ftuner.matmul(t, t))  # Tensor
reveal_type(ftuner.grouped_matmul([x], [x]))  # list[ARRAY]
reveal_type(ftuner.attention(x, x, x, causal=True))  # ARRAY
layer = ftuner.Dense(x, activation="gelu")
reveal_type(layer)  # Dense
reveal_type(layer(x))  # ARRAY
reveal_type(layer(t))  # Tensor
reveal_type(layer.out_features)  # int
model = ftuner.load("encoder.onnx", threads=np.int64(2), dtype=np.float16)
reveal_type(model)  # Model
reveal_type(model(x=x)["y"])  # ndarray[tuple[Any, ...], dtype[Any]]
reveal_type(model(x=t)["y"])  # Tensor
reveal_type(model.run({"x": t}))  # list[Tensor]
reveal_type(model.inputs[0].shape)  # tuple[int | str, ...]
reveal_type(model.explain(x=(1, 77)))  # ModelExplanation
reveal_type(ftuner.tune(np.float32).funnel.enumerated)  # int
reveal_type(ftuner.hardware())  # CpuHardware | GpuHardware
reveal_type(ftuner.explain(np.int64(1), 2, 3))  # Explanation | BlockExplanation
ftuner.matmul("a", "b")  # error: No overload variant
ftuner.matmull(x, x)  # error: Module has no attribute
ftuner.tune(dtype=3)  # error: Argument dtype to tune
'''


@pytest.mark.full
def test_a_program_is_checked_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    sources = str(Path(ftuner.__file__).parents[1])
    command = [
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty",
        "--hide-error-codes", "--ignore-missing-imports", "--follow-imports=silent",
        f"--cache-dir={tmp_path}", str(path),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, cwd=tmp_path,
        env={**os.environ, "MYPYPATH": sources},
    )  # fmt: skip
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(
            r".*program\.py:(\d+): (?:note: Revealed type is \"(.*)\"|(error: .*))", line
        )
        if match:
            found.setdefault(int(match[1]), match[2] or match[3])
    wanted = {
        number: line.partition("  # ")[2]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    }
    assert found.keys() == wanted.keys(), done.stdout + done.stderr
    for number, text in wanted.items():
        # Names without their modules, which move between releases.
        plain = re.sub(r"\b(\w+\.)+(?=\w)|[?\"]", "", found[number])
        assert text.replace("ARRAY", ARRAY) in plain, f"line {number}: {found[number]}"


def test_names_are_listed_whether_they_are_imported_or_not() -> None:
    script = "import ftuner; print(*dir(ftuner))"
    done = printed("-c", script)
    assert done.split() == sorted(ftuner.__all__)
    assert {"load", "Model", "matmul"} <= set(dir(ftuner))
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        ftuner.matmull  # type: ignore[attr-defined]  # noqa: B018
