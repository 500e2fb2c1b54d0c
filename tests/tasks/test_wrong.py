"""Wrong programs: each is a named error with the user's file and line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.tasks import wrong

from ftuner import errors
from ftuner.tasks.schedule import Schedule

FUNCTIONS = [
    f for f in vars(wrong).values() if inspect.isfunction(f) and f.__module__ == wrong.__name__
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_wrong_programs(function: Callable[..., Any]) -> None:
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
    assert f"wrong.py:{line}: schedule {function.__name__!r}: " in str(raised.value)
    assert found[2] in str(raised.value)


def test_there_are_many() -> None:
    assert len(FUNCTIONS) >= 60
