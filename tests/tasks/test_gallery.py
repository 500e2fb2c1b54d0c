"""The gallery of docs/schedules.md: the page shows the files, which agree with definitions."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import HOST_ISAS

import ftuner
from ftuner.tasks.coverage import Check

HERE = Path(__file__).parent / "gallery"
PATH = Path(__file__).parents[2] / "docs" / "schedules.md"
NAMES = sorted(p.stem for p in HERE.glob("*.py"))
SHOWN = re.compile(r"^`tests/tasks/gallery/([\w/.]+)`:\n\n```python\n(.*?)^```$", re.M | re.S)
MOST_LINES = 40


def gallery(name: str) -> ftuner.tasks.schedule.Schedule:
    found: ftuner.tasks.schedule.Schedule = getattr(
        import_module(f"tests.tasks.gallery.{name}"), name
    )
    return found


@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_with_its_definition(name: str) -> None:
    assert ftuner.check(gallery(name), cases=3).cases == 3


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_it_agrees_on_every_isa(name: str) -> None:
    assert ftuner.check(gallery(name), cases=8, seed=1, isas=HOST_ISAS).isas == HOST_ISAS


@pytest.mark.parametrize("name", NAMES)
def test_it_is_proved_for_all_extents(name: str) -> None:
    """No condition is left to calls."""
    checks: set[tuple[Check, ...]] = {*gallery(name).checks.values()}
    assert checks == {()}


def test_page_shows_every_file(request: pytest.FixtureRequest) -> None:
    def with_text(shown: re.Match[str]) -> str:
        begin, end = (at - shown.start() for at in shown.span(2))
        return shown[0][:begin] + (HERE / shown[1]).read_text() + shown[0][end:]

    if request.config.getoption("--update-golden"):
        PATH.write_text(SHOWN.sub(with_text, PATH.read_text()))
    shown = dict(SHOWN.findall(PATH.read_text()))
    assert sorted(shown) == [f"{name}.py" for name in NAMES]
    for name, text in shown.items():
        assert text == (HERE / name).read_text(), f"{name}: run pytest with --update-golden"
        assert text.count("\n") < MOST_LINES


def test_new_shapes_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = gallery("softmax")
    softmax(np.ones((3, 5), np.float32))
    code = softmax.code()
    monkeypatch.setattr(
        "ftuner.codegen.llvm.objects.jit.compile_object", lambda *_: pytest.fail("compiled")
    )
    for rows in range(1, 40):
        y = softmax(np.ones((rows, 2 * rows), np.float32))
        np.testing.assert_allclose(y, 1 / (2 * rows), rtol=1e-6)
    assert softmax.code() is code
