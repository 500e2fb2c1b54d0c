"""The part of `ftuner demo` that hears speech."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.invoking import document, run
from tests.tools.demo.demo_extra import needs_extra

from ftuner.errors import ConfigurationError
from ftuner_tools.demo import speech as demo_speech
from ftuner_tools.demo.speech import Segment, hear, needs, said, segments, windows, with_silence


def _can_hear() -> bool:
    try:
        needs()
    except ConfigurationError:
        return False
    return True


needs_speech = pytest.mark.skipif(not _can_hear(), reason="silero-vad or espeak-ng is missing")


def without(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    every = [] if what == "silero-vad" else [Path(name) for name in (
        demo_speech.WHOLE, demo_speech.WINDOWED)]  # fmt: skip

    class File(type(Path())):  # type: ignore[misc]
        def locate(self) -> Path:
            return Path(self)

    monkeypatch.setattr(demo_speech, "files", lambda _: [File(path) for path in every])
    if what == "espeak-ng":
        monkeypatch.setattr(shutil, "which", lambda _: None)


@pytest.mark.parametrize("what", ["silero-vad", "espeak-ng"])
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    without(monkeypatch, what)
    with pytest.raises(ConfigurationError, match=f"install .*{what}"):
        needs()


@needs_extra
def test_the_rest_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "silero-vad")
    found = document("demo", "--query", "delete a folder and everything in it")
    assert demo_speech.INSTALL in found["speech"]["missing"]
    assert found["page"]["lines"]


def test_segments() -> None:
    likely = [0.1, 0.6, 0.4, 0.3, 0.9, 0.9] + [0.0] * 5 + [0.5]
    step = demo_speech.WINDOW / demo_speech.RATE
    # A pause of one window belongs to the speech; speech lasts to the end of the sound.
    assert segments(likely) == (Segment(step, 6 * step), Segment(11 * step, 12 * step))
    assert segments([]) == ()


@pytest.mark.parametrize("samples", [0, 1, 511, 512, 513, 2000])
def test_windows(samples: int) -> None:
    sound = np.arange(1, samples + 1, dtype=np.float32)
    found = windows(sound)
    assert found.shape == (-(-samples // demo_speech.WINDOW), demo_speech.WINDOW + 64)
    heard = found[:, 64:].ravel()
    assert np.array_equal(heard[:samples], sound)
    assert not heard[samples:].any()
    assert np.array_equal(found[1:, :64], found[:-1, -64:])


def test_silence_is_around_each_sound() -> None:
    sound = np.ones(3, np.float32)
    silence = round(demo_speech.SILENCE_S * demo_speech.RATE)
    found = with_silence([sound, sound])
    assert len(found) == 3 * silence + 6
    assert found.sum() == 6


def test_a_speaker_that_fails() -> None:
    program = shutil.which("false")
    assert program is not None
    with pytest.raises(ConfigurationError, match="does not speak"):
        said(program, "word")


@needs_speech
def test_heard() -> None:
    found = hear(needs(), 1)
    assert len(found.segments) == len(demo_speech.SENTENCES)
    assert found.windowed == found.segments
    ends = [end for segment in found.segments for end in segment]
    assert ends == sorted(ends)
    assert ends[-1] < found.seconds
    assert {row.model for row in found.latencies} == {"whole sounds", "one window"}


@needs_extra
@needs_speech
def test_shown() -> None:
    shown = run("demo")
    assert shown.exit_code == 0
    for part in ("shutil.rmtree", "speech from", "window by window: the same"):
        assert part in shown.stdout
