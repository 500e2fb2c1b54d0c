"""Kinds of steps are found by name, in ftuner and outside."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from ftuner.errors import ConfigurationError, UnsupportedOperatorError
from ftuner.graph import schedules
from ftuner.graph.schedules import Schedule, register_schedule, rewritten
from ftuner.runtime.step_kinds import StepKinds
from ftuner.schedules.nest import cpu_binding as nest


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    with patch.object(schedules, "_OUTSIDE", []):
        yield


def step(kind: str) -> Any:
    return Mock(kind=kind, title="a title")


def test_kinds_are_found_by_name() -> None:
    assert StepKinds[Any]("cpu").of(step("nest")) is nest.KIND
    for device in ("cpu", "gpu"):
        with pytest.raises(UnsupportedOperatorError, match=f"{device.upper()} for a title"):
            StepKinds[Any](device).of(step("newcomer"))


def test_schedules_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "new_cpu_binding.py").write_text("KIND = 'newcomer'\n")
    (tmp_path / "new_cpu_binding_more.py").write_text("KIND = 'more'\n")
    (tmp_path / "new_step.py").write_text("def rewritten(steps, *_): return [*steps, 'another']\n")
    for _ in range(2):
        register_schedule(Schedule("newcomer", (), True, ("more",), prefix="new_"))
    assert StepKinds[Any]("cpu").of(step("newcomer")) == "newcomer"
    assert StepKinds[Any]("cpu").of(step("more")) == "more"
    with pytest.raises(UnsupportedOperatorError):
        StepKinds[Any]("gpu").of(step("newcomer"))
    assert rewritten((), (), lambda *_: False) == ("another",)


@pytest.mark.parametrize("name", ["nest", "whole", "newcomer"])
def test_names_are_taken_once(name: str) -> None:
    register_schedule(Schedule("newcomer", prefix="one_"))
    with pytest.raises(ConfigurationError, match=name):
        register_schedule(Schedule("another", more_kinds=(name,), prefix="another_"))
