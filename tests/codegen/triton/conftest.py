"""Kernels run in Triton's interpreter, which must be chosen before triton is imported."""

import os
from importlib import import_module
from importlib.util import find_spec

import pytest

os.environ["TRITON_INTERPRET"] = "1"
collect_ignore_glob = [] if find_spec("torch") and find_spec("triton") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def complete_interpreter() -> None:
    import_module("tests.codegen.triton.interpreting").complete()
