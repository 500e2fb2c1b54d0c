"""Profiles of sessions: an event for each step of a run, whose results keep their bits."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.at_once import at_once
from tests.ort.models import model_of

import ftuner.ort
from ftuner.ort import profiling

ROWS = np.linspace(-1, 2, 24, dtype=np.float32).reshape(6, 4)


def made(nodes: str, x: str = "float[rows, 4] x", other: str = "") -> bytes:
    """A model of nodes from x to y, and perhaps of another input."""
    return model_of(f"({x}{other}) => (y) {{ {nodes} }}")


FUSED = made("e = Exp(x) x_t = Transpose(x) p = MatMul(e, x_t) y = Relu(p)")
TILED = made("times = Mul(n, n) e = Exp(x) y = Tile(e, times)", other=", int64[2] n")
NOISE = "r = RandomNormalLike(x) y = Add(x, r)"
CASES: dict[str, tuple[bytes, Mapping[str, Any], list[str]]] = {
    "fused": (FUSED, {"x": ROWS}, ["exp", "matmul + maximum"]),
    "parts": (
        made("i = NonZero(x) f = Cast<to=1>(i) y = Exp(f)"),
        {"x": ROWS}, ["non_zero", "cast + exp"],
    ),
    "late": (TILED, {"x": ROWS, "n": np.array([2, 1])}, ["multiply", "exp", "tile"]),
    "unranked": (made("y = Exp(x)", "float[] x"), {"x": ROWS}, ["exp"]),
    "random": (made(NOISE), {"x": ROWS}, ["random_stream", "random_normal + add"]),
}  # fmt: skip


def session_of(data: bytes, prefix: Path | None = None) -> Any:
    ftuner.ort.set_seed(3)
    options = ftuner.ort.SessionOptions()
    if prefix is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    return ftuner.ort.InferenceSession(data, options)


def events_of(session: Any, category: str) -> list[dict[str, Any]]:
    events = json.loads(Path(session.end_profiling()).read_text())
    return [event for event in events if event["cat"] == category]


@pytest.mark.parametrize("case", CASES)
def test_each_step_has_an_event(case: str, tmp_path: Path) -> None:
    data, feeds, wanted = CASES[case]
    plain, profiled = session_of(data), session_of(data, tmp_path / "p")
    for _ in range(2):
        for x, y in zip(plain.run(None, feeds), profiled.run(None, feeds), strict=True):
            assert x.tobytes() == y.tobytes()
    nodes = events_of(profiled, "Node")
    titles = [event["args"]["op_name"] for event in nodes]
    assert titles[: len(wanted)] == wanted
    # The second run finds the numbers known that decide the graph.
    assert titles[len(wanted) :] == (wanted[1:] if case == "late" else wanted)
    assert {event["name"] for event in nodes} == {f"{title} 1_kernel_time" for title in wanted}
    assert all(event["args"]["provider"] == "CPUExecutionProvider" for event in nodes)
    assert all(isinstance(event[key], int) for event in nodes for key in ("ts", "dur"))


def test_steps_are_within_their_run(tmp_path: Path) -> None:
    session = session_of(FUSED, tmp_path / "p")
    for rows in (6, 300, 6):
        session.run(None, {"x": np.ones((rows, 4), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ended = 0
    for first, second, run in zip(*[iter(events[1:])] * 3, strict=True):
        assert (first["cat"], second["cat"], run["name"]) == ("Node", "Node", "model_run")
        assert ended <= run["ts"] <= first["ts"]
        assert first["ts"] + first["dur"] == second["ts"]
        ended = run["ts"] + run["dur"]
        assert second["ts"] + second["dur"] <= ended
    session.run(None, {"x": ROWS})
    assert session.end_profiling() == ""


def test_threads_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs beside the end of a profile, runs that fail, and events beyond those that are kept."""
    table = made("y = Gather(x, i)", other=", int64[3] i")
    session = session_of(table, tmp_path / "p")
    good, bad = ({"x": ROWS, "i": np.array([0, n, 1])} for n in (2, 9))

    def runs() -> None:
        for _ in range(50):
            assert np.array_equal(session.run(None, good)[0], ROWS[[0, 2, 1]])
            with pytest.raises(ftuner.ort.exceptions.ArgumentError, match="out of range"):
                session.run(None, bad)

    ended: list[str] = []
    at_once(runs, runs, lambda: ended.append(session.end_profiling()), runs)
    assert isinstance(json.loads(Path(ended[0]).read_text()), list)
    monkeypatch.setattr(profiling, "MAX_EVENTS", 3)
    session = session_of(table, tmp_path / "q")
    for _ in range(3):
        session.run(None, good)
    assert len(events_of(session, "Node")) == 1
