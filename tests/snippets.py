"""The code blocks of the pages, which tests run, and what they print.

Python blocks of a page run one after the other in one process, in a folder with `encoder.onnx`
and `mlp.onnx`. Lines of shell blocks that call `ftuner` run there, too. A `text` block after a
block is what it prints. `python -m tests.snippets PAGE...` writes the `text` blocks anew.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ftuner

SOURCES = Path(ftuner.__file__).parent
PATHS = (str(SOURCES.parent), str(Path(__file__).parent.parent / "tools"))
"""Where commands find ftuner and its tools."""
_BLOCK = re.compile(
    r"(?P<note><!-- [^\n]* -->\n)?```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL
)
_NEEDS_GPU = "<!-- needs a GPU -->\n"
_SEPARATOR = "\x1e"
NOT_HERE = ("ftuner demo", "ftuner bench")
"""Commands that take long, and have tests of their own."""
OTHER_COMMANDS = (
    "cp ", "docker ", "mkdocs ", "pip download ", "pip install ", "python -m ", "python3 -m venv ",
    "scripts/", "source ",
)  # fmt: skip
"""How lines begin that install or measure something, and so are not run."""
COLUMNS = 90
TIMEOUT_S = 300


@dataclass(frozen=True)
class Snippet:
    """A block of code, and what the page says that it prints."""

    code: str
    printed: str | None
    """None where the page does not say."""
    begin: int
    end: int
    """Where `printed` is in the page."""


def write_encoder(path: Path) -> None:
    """A model with the inputs and outputs of the sentence encoder that docs/index.md installs:
    embeddings of the tokens that are seen, and their mean."""
    from onnx import save
    from tests.frontends.onnx_models import parsed

    tokens = "int64[batch_size, sequence_length]"
    text = f"""({tokens} input_ids, {tokens} attention_mask)
            => ({tokens} output, {tokens} "463",
                float[batch_size, sequence_length, 384] "onnx::Shape_422",
                float[batch_size, 384] "461")
            <int64[1] last = {{2}}, int64[1] second = {{1}}> {{
        found = Gather(table, input_ids)
        seen = Cast<to=1>(attention_mask)
        column = Unsqueeze(seen, last)
        "onnx::Shape_422" = Mul(found, column)
        "461" = ReduceMean<keepdims=0>("onnx::Shape_422", second)
        output = Identity(attention_mask)
        "463" = Identity(attention_mask)
    }}"""
    table = np.linspace(-1, 1, 8192 * 384, dtype=np.float32).reshape(8192, 384)
    save(parsed(text, table=table), path)


def write_models(folder: Path) -> None:
    """The files that pages name."""
    from onnx import save
    from tests.frontends.onnx_models import parsed

    write_encoder(folder / "encoder.onnx")
    rng = np.random.default_rng(0)
    text = """(float[rows, 64] x) => (float[rows, 64] y) {
        wide = MatMul(x, up)
        hidden = Relu(wide)
        y = MatMul(hidden, down)
    }"""
    up, down = (rng.standard_normal(shape, np.float32) for shape in ((64, 128), (128, 64)))
    save(parsed(text, up=up, down=down), folder / "mlp.onnx")


def snippets(page: str, language: str, gpu: bool = False) -> list[Snippet]:
    """The blocks of a language; those that need a GPU only with `gpu`."""
    blocks = list(_BLOCK.finditer(page))
    found = []
    for number, block in enumerate(blocks):
        after = blocks[number + 1] if number + 1 < len(blocks) else None
        if block["language"] != language or (block["note"] == _NEEDS_GPU and not gpu):
            continue
        if after and after["language"] == "text" and not page[block.end() : after.start()].strip():
            begin, end = after.span("text")
            found.append(Snippet(block["text"], page[begin:end], begin, end))
        else:
            found.append(Snippet(block["text"], None, 0, 0))
    return found


def commands(code: str) -> list[str]:
    """The lines of a shell block that are run: all that call `ftuner`, without those that need a
    GPU, a cluster or minutes.

    Raises:
        ValueError: a line that is neither run nor known not to be.
    """
    found = []
    for line in filter(None, code.splitlines()):
        if line.startswith("ftuner "):
            elsewhere = line.startswith(NOT_HERE) or "--device cuda" in line or "--ray" in line
            found += [] if elsewhere else [line]
        elif not line.startswith(OTHER_COMMANDS):
            raise ValueError(f"a line that is not run: {line}")
    return found


def run_python(blocks: list[Snippet], folder: Path, cache: Path) -> list[str]:
    """What each block prints. Raises AssertionError if one fails."""
    code = f"print({_SEPARATOR!r}, end='')\n".join(block.code for block in blocks)
    return _run([sys.executable, "-c", code], folder, cache).split(_SEPARATOR)


def run_shell(block: Snippet, folder: Path, cache: Path) -> str:
    """What the commands of a block print. Raises AssertionError if one fails."""
    program = [sys.executable, "-m", "ftuner"]
    lines = (shlex.split(line, comments=True)[1:] for line in commands(block.code))
    return "".join(_run([*program, *arguments], folder, cache) for arguments in lines)


def _run(arguments: list[str], folder: Path, cache: Path) -> str:
    environment = {
        **os.environ, "FTUNER_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(PATHS),
        "COLUMNS": str(COLUMNS),
    }  # fmt: skip
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def outcomes(page: str, folder: Path, cache: Path) -> Iterator[tuple[Snippet, str]]:
    """Each block that is run, with what it prints."""
    if blocks := snippets(page, "python"):
        yield from zip(blocks, run_python(blocks, folder, cache), strict=True)
    for block in snippets(page, "bash"):
        yield block, stripped(run_shell(block, folder, cache))


def stripped(text: str) -> str:
    """Without spaces at the end of lines, which tables are filled up with."""
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def main(paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        for path in map(Path, paths):
            page = path.read_text(encoding="utf-8")
            found = list(outcomes(page, Path(folder), Path(folder) / "cache"))
            for block, printed in sorted(found, key=lambda pair: -pair[0].begin):
                if block.printed is not None:
                    page = page[: block.begin] + printed + page[block.end :]
            path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
