"""Public values in a terminal and in a notebook: short, readable, well-formed, saved."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.test_page import Parsed

import ftuner
from ftuner.core.dim import symbol
from ftuner.core.dtype import BFLOAT16, FLOAT32
from ftuner.core.shown import MAX_LINES, MAX_REPR
from ftuner.errors import ConfigurationError
from ftuner.graph.builder import Builder
from ftuner.hardware.constants import Calibration, Fitted
from ftuner.hardware.recorded import load_recorded, recorded_names
from ftuner.report.tuned import Prior, TuneReport
from ftuner.ukernels.gpu.library import build_gpu_library

NAMES = [
    "this machine", "its tuning", "an ISA", "a level", "h200", "a GPU's tuning", "an instruction",
    "tuned", "tuned from a file", "funnel", "GPU funnel", "explanation", "batched explanation",
    "GPU explanation", "plan", "GPU plan", "roofline", "layer", "layer with all", "model",
    "wide model", "steps", "estimated steps", "measured steps", "tensor",
]  # fmt: skip
WITH_PICTURE = {
    "explanation", "batched explanation", "GPU explanation", "plan", "GPU plan", "layer",
    "layer with all", "estimated steps", "measured steps",
}  # fmt: skip


def model(inputs: int = 1, name: str = "x") -> ftuner.Model:
    builder, total = Builder(), None
    weight = builder.constant(np.ones((64, 32), np.float32))
    given = [builder.input(f"{name}{i}", FLOAT32, (symbol("batch"), 64)) for i in range(inputs)]
    for x in given:
        y = builder.add("matmul", x, weight)
        total = y if total is None else builder.add("add", total, y)
    assert total is not None
    total = builder.add("softmax", total, axis=1, log=False)
    return ftuner.compile(builder.graph(given, [("y", total)]))


@cache
def values() -> dict[str, Any]:
    here, gpu = ftuner.hardware(), load_recorded("h200")
    report = ftuner.tune(calibrate="none")
    weight, bias = np.ones((64, 32), np.float32), np.zeros(64, np.float32)
    explained = ftuner.explain(77, 770, 768)
    on_gpu = ftuner.explain(1000, 4096, 1024, dtype="bfloat16", hardware="h200")
    library = build_gpu_library(gpu, BFLOAT16)
    small = model()
    calibration = Calibration(here.tuning, {"tile_cycles": Fitted(3.0, 0.1)}, here.tuning, 2.0, 0.1)
    told = TuneReport(
        "float32", "avx2", report.funnel, 3, 4, 2.5, Prior("other", False, ("a",)), calibration
    )
    found = [
        here, here.tuning, here.isas[0], here.levels[-1], gpu, gpu.tuning,
        gpu.matrix_instructions[0], report, told, report.funnel, library.funnel, explained,
        ftuner.explain(5, 64, 64, batch=3, hardware="epyc-milan-2"), on_gpu, explained.plan,
        on_gpu.plan, explained.roofline, ftuner.Dense(weight),
        ftuner.Dense(weight, bias, "gelu", True), small, model(60, "input" * 20), small.explain(),
        small.explain(x0=(77, 64)), small.explain(x0=np.ones((3, 64), np.float32)),
        small.inputs[0],
    ]  # fmt: skip
    return dict(zip(NAMES, found, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_repr_is_short(name: str) -> None:
    value = values()[name]
    text = repr(value)
    assert len(text) <= MAX_REPR
    assert text.startswith(type(value).__name__)
    assert "\n" not in text
    assert " object at " not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_readable(name: str) -> None:
    text = str(values()[name])
    assert 1 <= len(text.splitlines()) <= MAX_LINES
    assert "\x1b" not in text


@pytest.mark.parametrize("name", [n for n in NAMES if n != "tensor"])
def test_html_is_well_formed_and_has_pictures(name: str) -> None:
    found = values()[name]._repr_html_()
    parsed = Parsed(found)
    tags = [tag for tag, _ in parsed.found]
    assert tags[0] == "div"
    assert ("svg" in tags) == (name in WITH_PICTURE)
    assert not {"script", "link", "img", "html", "body"} & set(tags)
    assert all(link.startswith("#") for link in parsed.values("href"))


@pytest.mark.parametrize("machine", recorded_names())
def test_every_recorded_machine_shows_itself(machine: str) -> None:
    found = load_recorded(machine)
    for value in (found, found.tuning):
        assert len(repr(value)) <= MAX_REPR
        assert len(str(value).splitlines()) <= MAX_LINES
        assert found.name in str(found)


def test_texts_say_what_matters() -> None:
    shown = {name: str(value) for name, value in values().items()}
    assert "77 x 770 x 768" in shown["explanation"]
    assert "of C" in shown["plan"]
    assert "wave" in shown["GPU plan"]
    assert "gelu" in shown["layer with all"]
    assert "residual" in shown["layer with all"]
    assert "[batch, 64]" in shown["model"]
    assert "other" in shown["tuned from a file"]
    assert "48 more" in shown["wide model"] or "49 more" in shown["wide model"]
    assert "measured" in shown["measured steps"]


@pytest.mark.parametrize("name", ["explanation", "GPU explanation", "measured steps", "steps"])
def test_explanations_are_saved_as_pages(name: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    values()[name].save(str(path))
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    Parsed(page)


def test_the_plan_of_a_product_is_saved_as_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    values()["explanation"].save(tmp_path / "plan.svg")
    assert "<svg" in (tmp_path / "plan.svg").read_text()


@pytest.mark.parametrize("name", ["explanation", "steps"])
def test_other_suffixes_are_named_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a name that ends in"):
        values()[name].save(tmp_path / "plan.pdf")
