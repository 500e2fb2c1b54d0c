"""What the pages say is true where a test can tell: files exist, snippets run, names are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ftuner

ROOT = Path(__file__).parent.parent
SOURCES = Path(ftuner.__file__).parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md"))]
MAX_COLUMNS = 100
needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:tests|benchmarks|scripts|examples)/[\w/.]+)`", text)
    linked = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    missing = [n for n in named if not (ROOT / n).exists()]
    missing += [n for n in linked if not ((ROOT / page).parent / n).exists()]
    assert not missing


def test_promises_name_their_tests_by_path() -> None:
    """A promise names whole paths, which the test above looks up, and each section has one."""
    text = (ROOT / "docs" / "promises.md").read_text()
    assert not re.findall(r"`test_\w+", text)
    sections = text.split("\n## ")[1:-1]
    assert [s.splitlines()[0] for s in sections if "`tests/" not in s] == []


def test_architecture_names_sources_that_exist() -> None:
    """Paths below `src/ftuner`, and the rooms of the figure with the names of their files."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = {path.name for path in SOURCES.iterdir() if path.is_dir()}
    named = re.findall(r"`(\w+/[\w/.]*)`", text)
    named = [name for name in named if name.split("/")[0] in rooms]
    assert len(named) > 50
    assert [name for name in named if not (SOURCES / name).exists()] == []
    figure = re.findall(r"^│ (\w*) +│(.*)│(.*)│(.*)│$", text, re.MULTILINE)
    drawn = [room for room, *_ in figure if room and room != "room"]
    modules = {path.stem for path in SOURCES.glob("*.py")} - {"__init__", "__main__"}
    assert set(drawn) == (rooms | modules) - {"__pycache__"}


def test_architecture_is_narrow() -> None:
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


def rows_of_readme(head: str) -> list[list[str]]:
    """The cells of the rows of the README's table whose first line starts with `head`."""
    text = (ROOT / "README.md").read_text()
    begin = text.index(f"\n{head}") + 1
    table = text[begin : text.index("\n\n", begin)].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@needs_onnx
def test_readme_names_operators() -> None:
    """The column of what runs names supported operators, the other one unsupported ones."""
    from tests.frontends.test_onnx_definitions import BY_DEFINITION

    from ftuner.frontends.onnx.importer import SUPPORTED

    supported = {op for _, op in SUPPORTED} | BY_DEFINITION
    runs, lacks = [], []
    for _, there, missing in rows_of_readme("| | runs | not yet |"):
        runs += names_in(there)
        lacks += names_in(missing)
    assert len(runs) > 20
    assert len(lacks) > 5
    assert [op for op in runs if op not in supported] == []
    assert [op for op in lacks if op in supported] == []


def test_operators_are_those_of_the_registry() -> None:
    from tests import operator_table

    found = operator_table.table()
    if f"schemas of onnx {version('onnx')}." not in operator_table.PATH.read_text(encoding="utf-8"):
        pytest.skip("the page is of another release of onnx")
    assert operator_table.PATH.read_text(encoding="utf-8") == found
    # What runs has no reason not to.
    runs, _, _ = found.partition("## Those that do not")
    assert [op for op in operator_table.LEFT_OUT if f"`{op}`" in runs] == []


def test_readme_describes_the_session() -> None:
    (_, there), (_, missing) = rows_of_readme("| | |\n| --- | --- |\n| there |")
    backend, options = ftuner.InferenceSession, ftuner.SessionOptions()
    parameters = {"sess_options", "providers", "SessionOptions", "intra_op_num_threads"}
    methods = [name for name in names_in(there) if name not in parameters]
    assert methods == [name for name in vars(backend) if not name.startswith("_")]
    for name in names_in(missing):
        assert not any(hasattr(x, name) for x in (backend, options, ftuner)), name


def write_encoder(path: Path) -> None:
    """A model with the inputs of a sentence encoder: embeddings of the tokens that are seen."""
    from onnx import TensorProto, helper, numpy_helper, save

    table = np.linspace(-1, 1, 8192 * 4, dtype=np.float32).reshape(8192, 4)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["found"]),
        helper.make_node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["seen", "last"], ["column"]),
        helper.make_node("Mul", ["found", "column"], ["embeddings"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", "length", 4])
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([2]), "last"),
    ]
    graph = helper.make_graph(nodes, "encoder", inputs, [output], constants)
    opsets = [helper.make_opsetid("", 18)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@needs_onnx
def test_snippets_of_the_readme_run(tmp_path: Path, cache_folder: Path) -> None:
    write_encoder(tmp_path / "encoder.onnx")
    text = (ROOT / "README.md").read_text()
    model, operators = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    model += "assert outputs['embeddings'].shape == (1, 4, 4)\n"
    operators += (
        "assert y.shape == c.shape == (77, 256) and o.shape == (8, 77, 32)\n"
        "assert [y.shape for y in ys] == [(77, 256), (5, 256)]\n"
    )
    environment = {
        **os.environ, "FTUNER_CACHE_DIR": str(cache_folder), "PYTHONPATH": str(SOURCES.parent)
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", model + operators],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
