"""The example of a container: its server answers, and the steps of its image work.

There is no container engine here: a test executes what the Dockerfile says in a folder that stands
for the root of the image.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.snippets import write_encoder

import ftuner

ROOT = Path(__file__).parent.parent
CONTAINER = ROOT / "examples" / "container"
needs_onnx = pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the example's server."""
    spec = importlib.util.spec_from_file_location("serve", CONTAINER / "serve.py")
    assert spec
    assert spec.loader
    serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    path = tmp_path_factory.mktemp("model") / "encoder.onnx"
    write_encoder(path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), serve.handler(ftuner.load(path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_onnx
def test_the_server_answers(address: str) -> None:
    for length in (1, 77):
        body = json.dumps([101] * length).encode()
        with urllib.request.urlopen(address, data=body, timeout=60) as response:
            assert len(json.load(response)) == 384


@needs_onnx
@pytest.mark.parametrize("body", [b"{", b"[[1]]", b"[1.5]", b"[]", b"[99999]", b'["a"]'])
def test_the_server_refuses(address: str, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as caught:
        urllib.request.urlopen(address, data=body, timeout=60)
    assert json.load(caught.value)["error"]


def instructions() -> list[tuple[str, str]]:
    lines = (CONTAINER / "Dockerfile").read_text().splitlines()
    split = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(word, rest) for word, rest in split]


def within(image: Path, text: str) -> str:
    """Text of the Dockerfile with the image's paths below a folder."""
    for path in ("/tmp/ftuner", "/home/app"):
        text = text.replace(path, f"{image}{path}")
    return text


@needs_onnx
@pytest.mark.full
def test_the_steps_of_the_image_leave_nothing_to_compile(tmp_path: Path) -> None:
    image, folder = tmp_path / "image", tmp_path
    venv = image / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    environment = {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "HOME": str(image / "home/app")}
    write_encoder(tmp_path / "encoder.onnx")
    for word, rest in instructions():
        if word == "WORKDIR":
            folder = Path(within(image, rest))
            folder.mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            name, value = within(image, rest).split("=")
            environment[name] = value
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(source, folder / within(image, target), tmp_path)
        elif word == "RUN" and not rest.startswith("useradd"):
            subprocess.run(
                ["bash", "-ec", within(image, rest)], cwd=folder, env=environment, check=True
            )
        else:
            assert word in ("FROM", "USER", "CMD") or rest.startswith("useradd")
    kept = Path(environment["FTUNER_CACHE_DIR"])
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    assert len(before) > 5
    code = "import serve, ftuner; print(len(serve.answer(ftuner.load('encoder.onnx'), b'[1, 2]')))"
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-W", "error", "-c", code],
        cwd=folder, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "384\n"
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before


def copy(source: str, target: Path, context: Path) -> None:
    """Copy what the Dockerfile copies from its context, which is a clone with a model beside it."""
    if source == ".":
        unwanted = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "results")
        shutil.copytree(ROOT, target, ignore=unwanted)
    else:
        found = context / source if (context / source).exists() else ROOT / source
        shutil.copy(found, target)
