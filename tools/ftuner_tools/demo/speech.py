"""The part of `ftuner demo` that hears speech: sounds of several lengths, each heard at once, and
the longest heard again window by window, as it would arrive from a microphone.

The detectors are silero-vad's, which is not part of the extra `demo`, because it would bring torch;
the sounds are made by the program espeak-ng. Without either, nothing is heard.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ftuner.cli.output import shown_progress
from ftuner.errors import ConfigurationError
from ftuner_tools.demo.latencies import Latency, Timed, latencies, timed_call

if TYPE_CHECKING:
    from rich.console import Console

INSTALL = "pip install --no-deps silero-vad==6.2.3"
WHOLE, WINDOWED = "silero_vad_16k_sequence.onnx", "silero_vad.onnx"
"""One file hears all windows of a sound in a call; the other one window, and its state goes from
call to call."""
RATE = 16_000
WINDOW, CONTEXT = 512, 64
"""Samples that each step hears, and those before them that it hears again."""
UNITS = 128
BEGINS, ENDS = 0.5, 0.35
"""Probabilities from which speech begins, and below which it ends."""
PAUSE_S = 0.1
"""A shorter pause belongs to the speech."""
SENTENCES = ("Any size runs at once.", "No sound is too long for it.", "Nothing is padded.")
SILENCE_S = 0.7
ROUNDS = 3
"""Times that each sound is heard."""

Sound = npt.NDArray[np.float32]


class Segment(NamedTuple):
    """Speech, in seconds from the beginning of a sound."""

    begin: float
    end: float


@dataclass(frozen=True)
class Hearing:
    """What was heard in a sound of all sentences."""

    seconds: float
    """The length of the sound."""
    segments: tuple[Segment, ...]
    """Heard at once."""
    windowed: tuple[Segment, ...]
    """Heard window by window."""
    latencies: tuple[Latency, ...]


class Needs(NamedTuple):
    """What the part needs."""

    models: Mapping[str, Path]
    speaker: str
    """The program that speaks."""


def detectors() -> Mapping[str, Path]:
    """The files inside silero-vad's distribution, by name.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        found = {f.name: Path(f.locate()) for f in files("silero-vad") or ()}
    except PackageNotFoundError:
        found = {}
    if not {WHOLE, WINDOWED} <= found.keys():
        raise ConfigurationError(f"to hear speech, install silero-vad with: {INSTALL}")
    return found


def needs() -> Needs:
    """The detectors, and the program that speaks.

    Raises:
        ConfigurationError: one is missing.
    """
    found = detectors()
    speaker = shutil.which("espeak-ng")
    if speaker is None:
        raise ConfigurationError("to hear speech, install the program espeak-ng, which speaks it")
    return Needs(found, speaker)


def hear(given: Needs, threads: int | None) -> Hearing:
    """The segments of speech in a sound, and the latencies of models by the shape of the input."""
    from ftuner.ort import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads or 0
    sessions = {}
    with shown_progress("compile") as show:
        for number, name in enumerate((WHOLE, WINDOWED)):
            show(f"compile {name}", number, 2)
            sessions[name] = InferenceSession(given.models[name], options)
    spoken = [said(given.speaker, sentence) for sentence in SENTENCES]
    sounds = [with_silence(spoken[:count]) for count in range(1, len(spoken) + 1)]
    whole: Timed = {}
    for sound in sounds * ROUNDS:
        x = windows(sound)
        state = np.zeros((1, 1, UNITS), np.float32)
        feeds = {"input": x, "h": state, "c": state}
        likely, *_ = timed_call(whole, x.shape, partial(sessions[WHOLE].run, None, feeds))
    windowed: Timed = {}
    one_by_one = []
    rate, state = np.array(RATE), np.zeros((2, 1, UNITS), np.float32)
    for window in windows(sounds[-1]):
        feeds = {"input": window[None], "state": state, "sr": rate}
        shape = window[None].shape
        one, state = timed_call(windowed, shape, partial(sessions[WINDOWED].run, None, feeds))
        one_by_one.append(one.item())
    rows = [*latencies("whole sounds", whole), *latencies("one window", windowed)]
    return Hearing(len(sounds[-1]) / RATE, segments(likely.ravel()), segments(one_by_one),
                   tuple(rows))  # fmt: skip


def show_hearing(out: Console, found: Hearing) -> None:
    """Print the segments of speech."""
    out.print(f"\na sound of {found.seconds:.1f} s", style="bold")
    for begin, end in found.segments:
        out.print(f"  speech from {begin:.2f} s to {end:.2f} s", highlight=False)
    same = "the same" if found.windowed == found.segments else "not the same"
    out.print(f"  window by window: {same}", highlight=False)


def said(speaker: str, sentence: str) -> Sound:
    """A sentence at the detector's rate, from -1 to 1.

    Raises:
        ConfigurationError: the program fails.
    """
    done = subprocess.run([speaker, "--stdout", sentence], capture_output=True, check=False)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise ConfigurationError(f"{speaker} does not speak: {why or done.returncode}")
    with wave.open(io.BytesIO(done.stdout)) as file:
        rate = file.getframerate()
        # It cannot know the length when it writes the header; what is there counts.
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    times = np.arange(0, len(samples) / rate, 1 / RATE)
    sound = np.interp(times, np.arange(len(samples)) / rate, samples / 32768)
    return sound.astype(np.float32)


def with_silence(sounds: Sequence[Sound]) -> Sound:
    """Sounds one after another, with silence around each."""
    silence = np.zeros(round(SILENCE_S * RATE), np.float32)
    return np.concatenate([silence, *(part for sound in sounds for part in (sound, silence))])


def windows(sound: Sound) -> Sound:
    """The windows of a sound as rows, each with the samples before it."""
    count = -(-len(sound) // WINDOW)
    padded = np.zeros(CONTEXT + count * WINDOW, np.float32)
    padded[CONTEXT : CONTEXT + len(sound)] = sound
    begins = WINDOW * np.arange(count)
    found: Sound = padded[begins[:, None] + np.arange(CONTEXT + WINDOW)]
    return found


def segments(likely: npt.ArrayLike) -> tuple[Segment, ...]:
    """The segments of speech by the probabilities of windows."""
    found: list[Segment] = []
    begin = None
    for number, probability in enumerate([*np.asarray(likely), 0.0]):
        at = number * WINDOW / RATE
        if begin is None and probability >= BEGINS:
            begin = at
        elif begin is not None and probability < ENDS:
            if found and begin - found[-1].end < PAUSE_S:
                begin = found.pop().begin
            found.append(Segment(begin, at))
            begin = None
    return tuple(found)
