"""Bars of long work: on a terminal, after half a second, and nowhere else."""

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from ftuner.errors import ConfigurationError
from ftuner.runtime import shown_progress
from ftuner.runtime.shown_progress import VARIABLE, shown

FIRST_CALL = """
import sys, time, numpy, ftuner
from ftuner.runtime import shown_progress
shown_progress.PATIENCE_S = 0.01
layer = ftuner.Dense(numpy.ones((8, 8), "float32"), activation=lambda x: x * 3.25)
print(float(layer(numpy.ones((1, 8), "float32"))[0, 0]))
print("rich" in sys.modules)
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def waited(out: io.StringIO, text: str) -> bool:
    """Whether a text is written within some seconds."""
    end = time.monotonic() + 20
    while text not in out.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return text in out.getvalue()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    out = Terminal()
    monkeypatch.setattr(shown_progress, "PATIENCE_S", 0.0)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return out


def test_a_terminal_shows_a_bar(terminal: Terminal) -> None:
    with redirect_stderr(terminal), shown(None) as show:
        show("compile", 1, 3)
        assert waited(terminal, "compile")
        with shown(None) as within:
            # One bar at a time.
            within("other", 1, 2)
        show("load", 2, 3)
    assert "other" not in terminal.getvalue()
    assert "load" in terminal.getvalue() or "compile" in terminal.getvalue()


def test_short_work_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_progress, "PATIENCE_S", 60.0)
    with redirect_stderr(terminal), shown(None) as show:
        show("compile", 1, 3)
    assert terminal.getvalue() == ""


def test_a_function_that_is_given_takes_the_place_of_the_bar(terminal: Terminal) -> None:
    calls: list[tuple[str, int, int]] = []
    with redirect_stderr(terminal), shown(lambda *call: calls.append(call)) as show:
        show("compile", 1, 3)
        time.sleep(0.05)
    assert calls == [("compile", 1, 3)]
    assert terminal.getvalue() == ""


def test_an_interrupt_leaves_one_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_progress, "PATIENCE_S", 60.0)

    def work(error: BaseException) -> None:
        with redirect_stderr(terminal), shown(None) as show:
            show("compile", 4, 9)
            raise error

    with pytest.raises(KeyboardInterrupt):
        work(KeyboardInterrupt())
    said = terminal.getvalue().splitlines()
    assert said == ["ftuner: interrupted at compile, 4 of 9; what was compiled is kept"]
    with pytest.raises(ValueError, match="other"):
        work(ValueError("other"))
    assert terminal.getvalue().splitlines() == said


@pytest.mark.parametrize("setting", ["0", ""])
def test_it_is_turned_off(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(VARIABLE, setting)
    out = terminal if setting else io.StringIO()
    with redirect_stderr(out), shown(None) as show:
        show("compile", 1, 2)
        time.sleep(0.05)
    assert out.getvalue() == ""


def test_it_is_forced(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = io.StringIO()
    monkeypatch.setenv(VARIABLE, "1")
    with redirect_stderr(plain), shown(None) as show:
        show("compile", 1, 2)
        assert waited(plain, "compile")


@pytest.mark.parametrize("stream", [None, io.TextIOWrapper(io.BytesIO())])
def test_without_an_open_stderr_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, stream: io.TextIOWrapper | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with shown(None) as show:
        show("compile", 1, 2)


def test_other_settings_are_named_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    says = "FTUNER_PROGRESS is 'yes'; expected 0 or 1"
    with pytest.raises(ConfigurationError, match=says), shown(None):
        pass


@pytest.mark.full
@pytest.mark.parametrize("setting", [None, "1"])
def test_the_first_call_with_an_epilogue(tmp_path: Path, setting: str | None) -> None:
    """In a pipe nothing is shown, unless it is forced; the second process compiles nothing."""
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    environment["FTUNER_CACHE_DIR"] = str(tmp_path)
    if setting is not None:
        environment[VARIABLE] = setting
    for first in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, timeout=300,
            check=True, env=environment,
        )  # fmt: skip
        shows = first and setting is not None
        assert done.stdout.split() == ["26.0", str(shows)]
        assert ("compile" in done.stderr) == shows
