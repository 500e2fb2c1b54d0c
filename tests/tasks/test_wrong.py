"""Wrong programs: each is a named error with the user's file and line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tasks import wrong
from tests.tasks.random_schedules import loaded

from ftuner import errors
from ftuner.tasks.schedule import Schedule

FUNCTIONS = [
    f for f in vars(wrong).values() if inspect.isfunction(f) and f.__module__ == wrong.__name__
]
STATEMENTS = [
    (parameters, line.strip())
    for parameters, lines in wrong.STATEMENTS.items()
    for line in lines.strip().splitlines()
]
TEXT = """
import numpy as np
from ftuner.tasks import Out, f32, split, worker, workers

TEXT = "a name that is no number"


def made({}):
    for i in split(n, workers)(worker):
        {}
"""


def expect_error(function: Callable[..., Any]) -> None:
    """Hold that a schedule raises the error that a comment in it says."""
    lines, first = inspect.getsourcelines(function)
    (line, found), *more = (
        (number, match)
        for number, text in enumerate(lines, first)
        if (match := re.search(r"# (\w+Error): (.*)$", text))
    )
    assert not more
    with pytest.raises(getattr(errors, found[1])) as raised:
        Schedule(function)
    assert type(raised.value) is getattr(errors, found[1])
    file = Path(inspect.getfile(function)).name
    assert f"{file}:{line}: schedule {function.__name__!r}: " in str(raised.value)
    assert found[2] in str(raised.value)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_wrong_programs(function: Callable[..., Any]) -> None:
    expect_error(function)


@pytest.mark.parametrize(("parameters", "statement"), STATEMENTS)
def test_wrong_statements(parameters: str, statement: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(TEXT.format(parameters, statement))
    expect_error(loaded(path))


def test_there_are_many() -> None:
    assert len(FUNCTIONS) + len(STATEMENTS) >= 60
