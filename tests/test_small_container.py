"""The example of a small container: the folder that it assembles runs a saved model by itself, and
has under 100 MB."""

import importlib.util
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.snippets import write_encoder

import ftuner

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_BYTES = 100e6
RUN = """
import sys
import numpy as np
import ftuner
ids = np.array([[101, 7592, 102]])
*_, found = ftuner.load(sys.argv[1]).run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
files = [getattr(module, "__file__", sys.prefix) for module in sys.modules.values()]
assert all(file.startswith(sys.prefix) for file in files)
sys.stdout.write(found.tobytes().hex())
"""


@pytest.fixture(scope="module")
def assembling() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "assemble", EXAMPLES / "small_container" / "assemble.py"
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_numpy_and_ftuner_are_small(assembling: ModuleType) -> None:
    """Their sources, which become compiled modules of the same size."""
    total = 0
    for package in (np, ftuner):
        assert package.__file__
        folder = Path(package.__file__).parent
        for path in (*folder.rglob("*"), *folder.with_name(f"{folder.name}.libs").rglob("*")):
            parts = path.relative_to(folder.parent).parts
            unused = any(fnmatch(part, name) for part in parts for name in assembling.UNUSED)
            total += path.stat().st_size if path.is_file() and not unused else 0
    assert total < 0.65 * MOST_BYTES


@pytest.mark.skipif(sys.platform != "linux", reason="copies libraries of Linux")
@pytest.mark.skipif(find_spec("onnx") is None, reason="onnx is not installed")
@pytest.mark.full
def test_the_folder_runs_a_model(tmp_path: Path) -> None:
    source, saved, image = (tmp_path / n for n in ("encoder.onnx", "encoder.ftuner", "image"))
    write_encoder(source)
    model = ftuner.load(source)
    ftuner.save(model, saved)
    script = EXAMPLES / "small_container" / "assemble.py"
    serve = EXAMPLES / "container" / "serve.py"
    done = subprocess.run(
        [sys.executable, str(script), str(image), str(saved), str(serve)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    sizes = {line[:24].strip(): float(line[24:].split()[0]) for line in done.stdout.splitlines()}
    total = sum(path.lstat().st_size for path in image.rglob("*") if path.is_file())
    assert sizes["all"] == pytest.approx(total / 1e6, abs=0.1)
    assert total - saved.stat().st_size < MOST_BYTES
    ids = np.array([[101, 7592, 102]])
    wanted = model.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})[-1]
    root, command, chroot = str(image), [], shutil.which("chroot")
    if os.geteuid() == 0 and chroot:
        # Nothing of this machine is there.
        root, command = "", [chroot, str(image)]
    command += [f"{root}/usr/bin/python3", "-I", "-S", "-c", RUN, f"{root}/{saved.name}"]
    found = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert not found.stderr
    assert found.stdout == wanted.tobytes().hex()
