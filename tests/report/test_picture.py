"""The picture in the terminal and the pictures on disk."""

import importlib.util
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ftuner.errors import ConfigurationError
from ftuner.hardware.recorded import load_recorded
from ftuner.report import plots
from ftuner.report.explain import Explanation, explain
from ftuner.report.picture import MAX_LINES, plan_picture, scale_axis, workers_label

SHAPES = [(1, 1, 1, 1), (77, 770, 768, 1), (3, 50, 2000, 1), (1000, 17, 64, 4), (5000, 40, 9, 1)]


def _explain(m: int, n: int, k: int, batch: int = 1, machine: str = "epyc-milan-2") -> Explanation:
    return explain(m, n, k, batch, "float32", None, load_recorded(machine))


def _drawn(found: Explanation, width: int, colour: bool = False) -> list[str]:
    out = StringIO()
    console = Console(
        file=out, width=width, color_system="truecolor" if colour else None, force_terminal=colour
    )
    console.print(plan_picture(found.plan))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("machine", ["epyc-milan-2", "graviton2"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [40, 100])
def test_fits_and_names_every_ukernel(
    shape: tuple[int, int, int, int], machine: str, width: int
) -> None:
    found = _explain(*shape, machine=machine)
    lines = _drawn(found, width)
    names = {str(region.kernel) for region in found.regions()}
    assert max(len(line) for line in lines) <= width
    # An axis above, and below a line for each uKernel and up to three for the title.
    assert len(lines) <= MAX_LINES + 1 + len(names) + 3
    assert all(any(f" {name}, " in line for line in lines) for name in names)


def test_picture() -> None:
    """Both workers' halves, the taller rows' and the lower rows' uKernels, in letters."""
    lines = _drawn(_explain(77, 768, 768), 80)
    body = [line for line in lines if line[:2] in (" 0", "  ", "72")][1:]
    assert [line[:2] for line in (body[0], body[-1])] == [" 0", "72"]
    assert set(body[0][3:]) == {"a", "|"}
    assert set(body[-1][3:]) == {"b", "|"}
    assert any("w0" in line and "w1" in line for line in body)
    assert lines[-1].startswith("C is 77 x 768; 2 workers: n in 2")


def test_colours_replace_letters() -> None:
    text = "\n".join(_drawn(_explain(77, 768, 768), 40, colour=True))
    assert "aaa" not in text
    assert "\x1b[" in text
    assert "w0" in text


@given(
    cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=12, unique=True),
    cells=st.integers(1, 60),
)
def test_every_interval_gets_a_cell(cuts: list[int], cells: int) -> None:
    scale = scale_axis([0, *sorted(cuts)], cells)
    elements = scale.elements()
    assert len(elements) == cells
    assert elements == sorted(elements)
    assert all(0 <= element < max(cuts) for element in elements)
    if cells >= len(cuts):
        edges = [0, *sorted(cuts)]
        seen = [sum(a <= e < b for e in elements) for a, b in pairwise(edges)]
        assert min(seen) >= 1


def test_workers_label() -> None:
    assert workers_label((0,)) == "w0"
    assert workers_label((3, 0, 1, 2)) == "w0-3"
    assert workers_label((0, 2, 3)) == "w0,2-3"


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".PNG", b"\x89PNG")])
def test_saved(tmp_path: Path, suffix: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"plan{suffix}"
    plots.save_picture(_explain(77, 770, 768, batch=2, machine="core-i7-8700"), target)
    assert target.read_bytes().startswith(magic)


def test_saving_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _explain(4, 4, 4)
    with pytest.raises(ConfigurationError, match=r"\.svg or \.png"):
        plots.save_picture(found, tmp_path / "plan.gif")
    if importlib.util.find_spec("matplotlib") is not None:
        with pytest.raises(ConfigurationError, match="cannot write"):
            plots.save_picture(found, tmp_path / "no" / "plan.png")
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r'pip install "ftuner\[plot\]"'):
        plots.save_picture(found, tmp_path / "plan.svg")
