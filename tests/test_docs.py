"""What the pages say is true where a test can tell: files exist, snippets run, names are there."""

import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import cli_reference, plan_picture, snippets

import ftuner

ROOT = Path(__file__).parent.parent
SOURCES = Path(ftuner.__file__).parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
WITH_CODE = [
    page
    for page in PAGES
    if re.search("^```(python|bash)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    # Their code is that of `tests/extending` and `tests/tasks`, which tests there run.
    and page not in ("docs/extending.md", "docs/schedules.md")
]
MAX_COLUMNS = 100
needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_files_that_are_named_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:tests|tools|benchmarks|scripts|examples)/[\w/.]+)`", text)
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
    assert set(drawn) == (rooms | modules) - {"__pycache__", "__pyinstaller"}


def test_architecture_is_narrow() -> None:
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


def rows_of_table(page: str, head: str) -> list[list[str]]:
    """The cells of the rows of the table of a page whose first line starts with `head`."""
    text = (ROOT / page).read_text()
    begin = text.index(f"\n{head}") + 1
    table = text[begin : text.index("\n\n", begin)].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@needs_onnx
@pytest.mark.parametrize("page", ["README.md", "docs/models.md"])
def test_tables_name_operators(page: str) -> None:
    """The column of what runs names supported operators, the other one unsupported ones."""
    from tests.frontends.test_onnx_definitions import BY_DEFINITION

    from ftuner.frontends.onnx.importer import SUPPORTED

    supported = {op for _, op in SUPPORTED} | BY_DEFINITION
    rows = rows_of_table(page, "| | runs | not yet |")
    runs = [name for _, there, _ in rows for name in names_in(there)]
    lacks = [name for _, _, missing in rows for name in names_in(missing)]
    assert page == "README.md" or len(runs) > 20
    assert lacks
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
    (counts,) = re.findall(r"## Those that run: (\d+) of (\d+)", runs)
    assert "{} of ONNX's {} operators".format(*counts) in (ROOT / "README.md").read_text()
    assert [op for op in operator_table.LEFT_OUT if f"`{op}`" in runs] == []


def test_operators_of_pytorch_are_those_of_the_registry() -> None:
    torch = pytest.importorskip("torch")
    from tests import pytorch_table

    page = pytorch_table.PATH.read_text(encoding="utf-8")
    if f"torch {torch.__version__.partition('+')[0]}." not in page:
        pytest.skip("the page is of another release of torch")
    assert page == pytorch_table.table()


def test_the_command_line_is_described() -> None:
    """`python -m tests.cli_reference` writes the page."""
    assert cli_reference.PATH.read_text(encoding="utf-8") == cli_reference.page()


def test_the_picture_of_a_plan_is_that_of_the_planner() -> None:
    """`python -m tests.plan_picture` draws it."""
    assert plan_picture.PATH.read_text(encoding="utf-8") == plan_picture.picture()


def test_the_containers_are_those_of_the_examples() -> None:
    text = (ROOT / "docs" / "server.md").read_text()
    shown = re.findall(r"```dockerfile\n(.*?)```", text, re.DOTALL)
    folders = (ROOT / "examples" / name for name in ("container", "small_container"))
    assert shown == [(folder / "Dockerfile").read_text() for folder in folders]


@needs_onnx
@pytest.mark.parametrize("page", WITH_CODE)
def test_snippets_run(page: str, tmp_path: Path, cache_folder: Path) -> None:
    """They run, and print what the page says: `python -m tests.snippets PAGE` writes it anew."""
    snippets.write_models(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    for block, printed in snippets.outcomes(text, tmp_path, cache_folder):
        if block.printed is not None:
            assert block.printed == printed


def test_other_snippets_are_python() -> None:
    found = 0
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in snippets.snippets(text, "python", gpu=True):
            compile(block.code, page, "exec")
            found += 1
    assert found > 10
    assert len(WITH_CODE) > 7


def test_unknown_shell_lines_are_refused() -> None:
    assert snippets.commands("ftuner cache\nftuner demo\npip install x\n") == ["ftuner cache"]
    with pytest.raises(ValueError, match="not run: rm x"):
        snippets.commands("rm x\n")


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the extra docs is not installed")
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "index.html").read_text()
    assert [name for name in ftuner.__all__ if f"{name}</" not in page.replace("()", "")] == [
        "__version__"
    ]
    for name in ("run", "__call__", "memory", "inputs"):
        assert f'id="ftuner.Model.{name}"' in page, "inherited members are shown"
    # Pages come from this machine alone.
    assert [p.name for p in tmp_path.rglob("*.html") if "fonts.googleapis" in p.read_text()] == []
