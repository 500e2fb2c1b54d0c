"""The same programs with onnxruntime and with ftuner.ort."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests.ort import member_table, scripts

import ftuner.ort


def expect_same(own: object, other: object, where: str = "") -> None:
    """Both are equal: numbers of a graph to a few roundings, anything else exactly."""
    if isinstance(other, np.ndarray):
        assert isinstance(own, np.ndarray), where
        assert own.dtype == other.dtype, where
        np.testing.assert_allclose(own, other, rtol=1e-6, err_msg=where)
    elif isinstance(other, (list, tuple)):
        assert isinstance(own, (list, tuple)), where
        assert len(own) == len(other), f"{where}: {own} {other}"
        for number, (x, y) in enumerate(zip(own, other, strict=True)):
            expect_same(x, y, f"{where}[{number}]")
    elif isinstance(other, Mapping):
        assert own == other, where
    else:
        assert (type(own), own) == (type(other), other), where


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_the_same_with_both(name: str) -> None:
    program = scripts.SCRIPTS[name]
    expect_same(program(ftuner.ort), program(onnxruntime))


def test_every_member_is_in_a_script() -> None:
    """Members that both have are called or read by a program above, or refuse their work."""
    text = Path(scripts.__file__).read_text(encoding="utf-8")
    there = [m.name for m in member_table.members() if m.status == member_table.THERE]
    # It would change onnxruntime's threads in all other tests; test_module.py has it.
    there.remove("set_global_thread_pool_sizes")
    # `enumerations` compares all members of these at once.
    kinds = [name for name in there if hasattr(getattr(ftuner.ort, name, None), "__members__")]
    untried = [
        name
        for name in there
        if name.rpartition(".")[2] not in text and name.rpartition(".")[0] not in kinds
    ]
    assert untried == []
