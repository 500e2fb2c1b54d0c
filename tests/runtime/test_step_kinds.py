"""Kinds of steps are found by name, in ftuner and outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from ftuner.errors import ConfigurationError, UnsupportedOperatorError
from ftuner.runtime import step_kinds
from ftuner.runtime.step_kinds import StepKinds, register_step_kind
from ftuner.schedules.nest import cpu_binding as nest


@pytest.fixture(autouse=True)
def outside() -> Iterator[None]:
    with patch.dict(step_kinds._OUTSIDE):
        yield


def step(kind: str) -> Any:
    return Mock(kind=kind, title="a title")


def test_kinds_are_found_by_name() -> None:
    assert StepKinds[Any]("cpu").of(step("nest")) is nest.KIND
    for device in ("cpu", "gpu"):
        with pytest.raises(UnsupportedOperatorError, match=f"{device.upper()} for a title"):
            StepKinds[Any](device).of(step("newcomer"))


def test_kinds_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "newcomer_on_cpus.py").write_text("KIND = 'newcomer'\n")
    for _ in range(2):
        register_step_kind("newcomer", cpu="newcomer_on_cpus")
    assert StepKinds[Any]("cpu").of(step("newcomer")) == "newcomer"
    with pytest.raises(UnsupportedOperatorError):
        StepKinds[Any]("gpu").of(step("newcomer"))


@pytest.mark.parametrize("name", ["nest", "newcomer"])
def test_names_are_taken_once(name: str) -> None:
    register_step_kind("newcomer", cpu="one")
    with pytest.raises(ConfigurationError, match=name):
        register_step_kind(name, cpu="another")
