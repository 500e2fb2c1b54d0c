"""Finds speech in a sound with Silero's detector, on ftuner and on ONNX Runtime, and compares.

Install what it needs with `pip install 'ftuner[onnx]' onnxruntime` and
`pip install --no-deps silero-vad==6.2.3`, and espeak-ng with the system's package manager, then run
`python examples/speech.py`; or give it a sound of its own, `python examples/speech.py a.wav`.

The detector hears 32 ms at a time, and its state goes from call to call.
"""

import shutil
import subprocess
import sys
import tempfile
import time
import wave
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime

import ftuner

RATE = 16_000
WINDOW, CONTEXT = 512, 64
"""Samples that each call hears, and those before them that it hears again."""
STATE = (2, 128)
BEGINS, ENDS = 0.5, 0.35
"""Probabilities from which speech begins, and below which it ends."""
PAUSE_S = 0.1
"""A shorter pause belongs to the speech."""
SPOKEN = ("Any size runs at once.", "No sound is too long for it.")
SILENCE_S = 0.7


def main() -> None:
    """Print when somebody speaks, and how long either library takes to hear it."""
    sound = read(Path(sys.argv[1])) if len(sys.argv) > 1 else spoken()
    found = {library.__name__: heard(sound, library) for library in (ftuner, onnxruntime)}
    for begin, end in found["ftuner"]:
        print(f"speech from {begin:.2f} s to {end:.2f} s")
    if found["ftuner"] != found["onnxruntime"]:
        raise SystemExit(f"onnxruntime hears {found['onnxruntime']}")
    print(f"the same {len(found['ftuner'])} segments with both")


def heard(sound: np.ndarray, library: ModuleType) -> list[tuple[float, float]]:
    """The segments of speech, in seconds, heard by a session of `library`."""
    options = library.SessionOptions()
    options.intra_op_num_threads = 1
    session = library.InferenceSession(str(detector()), options)
    probabilities(session, sound[:WINDOW])
    began = time.perf_counter()
    likely = probabilities(session, sound)
    each = (time.perf_counter() - began) / len(likely)
    print(f"{library.__name__}: {len(likely)} windows, {1e6 * each:.0f} us each")
    return segments(likely)


def detector() -> Path:
    """The model's file in its package, which is not imported: it would need torch."""
    package = find_spec("silero_vad")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("silero-vad is not installed")
    return Path(package.submodule_search_locations[0], "data", "silero_vad.onnx")


def probabilities(session: ftuner.InferenceSession, sound: np.ndarray) -> np.ndarray:
    """The probability of speech in each window."""
    count = -(-len(sound) // WINDOW)
    padded = np.zeros(CONTEXT + count * WINDOW, np.float32)
    padded[CONTEXT : CONTEXT + len(sound)] = sound
    state = np.zeros((STATE[0], 1, STATE[1]), np.float32)
    found = np.empty(count, np.float32)
    for number in range(count):
        begin = number * WINDOW
        window = padded[None, begin : begin + CONTEXT + WINDOW]
        feeds = {"input": window, "state": state, "sr": np.array(RATE, np.int64)}
        output, state = session.run(None, feeds)
        found[number] = output[0, 0]
    return found


def segments(likely: np.ndarray) -> list[tuple[float, float]]:
    """The segments of speech by the probabilities of windows."""
    found: list[tuple[float, float]] = []
    begin = None
    for number, probability in enumerate([*likely, 0.0]):
        at = number * WINDOW / RATE
        if begin is None and probability >= BEGINS:
            begin = at
        elif begin is not None and probability < ENDS:
            if found and begin - found[-1][1] < PAUSE_S:
                begin = found.pop()[0]
            found.append((begin, at))
            begin = None
    return found


def spoken() -> np.ndarray:
    """Some sentences, said by espeak-ng, with silence around them."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise SystemExit("espeak-ng is not installed")
    silence = np.zeros(round(SILENCE_S * RATE), np.float32)
    parts = [silence]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spoken.wav")
        for sentence in SPOKEN:
            subprocess.run([program, "-w", str(path), sentence], check=True)
            parts += [read(path), silence]
    return np.concatenate(parts)


def read(path: Path) -> np.ndarray:
    """A sound of 16-bit numbers, of its first channel and at the detector's rate."""
    with wave.open(str(path)) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        if file.getsampwidth() != 2:
            raise SystemExit(f"{path}: expected samples of 16 bits")
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")[::channels]
    times = np.arange(0, len(samples) / rate, 1 / RATE)
    found = np.interp(times, np.arange(len(samples)) / rate, samples / 32768)
    return found.astype(np.float32)


if __name__ == "__main__":
    main()
