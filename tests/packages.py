"""`python -m tests.packages FOLDER [--core] PYTHON...`: checks the contents of the wheel and the
source distribution that `scripts/release` left in FOLDER, and uses each in a fresh virtual
environment of each Python. `--core` also runs the demo and the core of the tests of kernels, CPU
runtime and ONNX's nodes there, by the installed wheel; compiled objects are kept where
`FTUNER_CACHE_DIR` says."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.snippets import write_encoder

from ftuner.core.version import VERSION

MOST_BYTES = {".whl": 3 << 20, ".gz": 6 << 20}
UNWANTED = re.compile(r"__pycache__|\.pyc$|_cache/|\.hypothesis|\.so$|\.jsonl|\.venv")
IN_SOURCES = ("README.md", "LICENSE", "CHANGELOG.md", "docs/index.md", "tests/packages.py")
IN_BOTH = ("py.typed", "hardware/machines/h200.toml")
PRODUCT = """
import numpy as np, ftuner
a, b = np.random.rand(77, 64).astype("float32"), np.random.rand(64, 50).astype("float32")
np.testing.assert_allclose(ftuner.matmul(a, b), a @ b, rtol=1e-4)
"""
MODEL = """
import numpy as np, ftuner
model = ftuner.load("encoder.onnx")
for length in (1, 77):
    ids = np.ones((2, length), np.int64)
    assert model.run({"input_ids": ids, "attention_mask": ids})[-1].shape == (2, 384)
"""

ROOT = Path(__file__).parent.parent
CORE = ("core", "codegen/llvm", "runtime/cpu", "frontends/test_onnx_nodes.py")
CORE_PACKAGES = (
    "pytest", "pytest-timeout", "hypothesis", "expecttest", "mpmath",
    "onnxruntime==1.31.1; python_version >= '3.11'",
)  # fmt: skip
"""What these tests import; those that compare with PyTorch are skipped."""


def check(package: Path) -> None:
    """Raises AssertionError if a file is missing, does not belong, or is too large."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
            check_metadata(archive.read(metadata).decode())
        assert {name.split("/")[0].split("-")[0] for name in names} == {"ftuner"}
    else:
        with tarfile.open(package) as archive:
            names = archive.getnames()
        for wanted in IN_SOURCES:
            assert any(name.endswith(f"/{wanted}") for name in names), wanted
    for wanted in IN_BOTH:
        assert any(name.endswith(f"ftuner/{wanted}") for name in names), wanted
    assert [name for name in names if UNWANTED.search(name)] == []
    assert package.stat().st_size <= MOST_BYTES[package.suffix]


def check_metadata(text: str) -> None:
    """The description that a package index shows has no link or picture that leads nowhere."""
    metadata = email.message_from_string(text)
    description = str(metadata.get_payload())
    assert description.startswith("# ftuner")
    assert re.findall(r"\]\((?!https:)|!\[|<!--", description) == []
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]


def write_index(folder: Path, packages: list[Path]) -> str:
    """Write a package index of files; returns its address."""
    for package in packages:
        project = re.split(r"-\d", package.name)[0].replace("_", "-")
        page = folder / project / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as file:
            file.write(f'<a href="{package.as_uri()}">{package.name}</a>\n')
    return folder.as_uri()


def use(package: Path, index: str, python: str, folder: Path, core: bool) -> None:
    """Install a package from an index in a virtual environment and multiply; with its extra, run a
    model; with its tools, find their commands; without it, find nothing. `core`: run the demo and
    the core of the tests by the wheel as well."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    inside = folder / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FTUNER_CACHE_DIR")}
    clean["FTUNER_CACHE_DIR"] = str(folder / "cache")
    write_encoder(folder / "encoder.onnx")
    kind = "--only-binary" if package.suffix == ".whl" else "--no-binary"
    pip = [str(inside), "-m", "pip", "-qq", "--disable-pip-version-check"]
    install = [*pip, "install", "--extra-index-url", index, f"{kind}=ftuner"]
    for wanted, code in (("ftuner", PRODUCT), ("ftuner[onnx]", MODEL)):
        subprocess.run([*install, f"{wanted}=={VERSION}"], check=True, env=clean)
        subprocess.run([str(inside), "-c", code], check=True, env=clean, cwd=folder)
    program = str(folder / "bin" / "ftuner")
    subprocess.run([program, "--version"], check=True, env=clean, stdout=subprocess.DEVNULL)
    bench = [program, "bench", "gemm", "7", "8", "9", "--peers", "numpy"]
    without = subprocess.run(bench, check=False, env=clean, capture_output=True, text=True)
    assert "pip install ftuner-tools" in without.stderr
    subprocess.run([*install, "ftuner-tools"], check=True, env=clean)
    subprocess.run(bench, check=True, env=clean, stdout=subprocess.DEVNULL)
    if core and package.suffix == ".whl":
        subprocess.run([*install, "ftuner-tools[demo]", *CORE_PACKAGES], check=True, env=clean)
        subprocess.run([program, "demo"], check=True, env=clean, stdout=subprocess.DEVNULL)
        run_core(inside, folder)
    clear = [program, "cache", "--clear", "--yes"]
    subprocess.run(clear, check=True, env=clean, stdout=subprocess.DEVNULL)
    assert [path for path in (folder / "cache").rglob("*") if path.is_file()] == []
    subprocess.run([*pip, "uninstall", "--yes", "ftuner", "ftuner-tools"], check=True, env=clean)
    left = {path.name for path in folder.rglob("*ftuner*") if path.suffix != ".pyc"}
    assert left == set(), "files beside the cache"
    if package.suffix == ".whl":
        # As docs/recipes.md says of machines without a network.
        files = str(folder / "wheels")
        wanted = f"ftuner[onnx]=={VERSION}"
        brought = [*pip, "download", "--extra-index-url", index, "--dest", files, wanted]
        subprocess.run(brought, check=True, env=clean)
        other = folder / "offline"
        subprocess.run([python, "-m", "venv", str(other)], check=True)
        pip[0] = str(other / "bin" / "python")
        offline = [*pip, "install", "--no-index", "--find-links", files, wanted]
        subprocess.run(offline, check=True, env=clean)
        subprocess.run([pip[0], "-c", MODEL], check=True, env=clean, cwd=folder)


def run_core(python: Path, folder: Path) -> None:
    """Run the core of the tests with the installed package. Raises CalledProcessError if one
    fails."""
    environment = {**os.environ, "PYTHONPATH": "", "OPENBLAS_NUM_THREADS": "1"}
    where = [str(python), "-c", "import ftuner; print(ftuner.__file__)"]
    found = subprocess.run(
        where, check=True, env=environment, cwd=folder, capture_output=True, text=True
    )
    assert Path(found.stdout).is_relative_to(folder), "the sources, not the wheel"
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["-m", "not full and not alone", *(f"tests/{name}" for name in CORE)]
    subprocess.run(command, check=True, env=environment, cwd=ROOT)


def main(folder: str, *arguments: str) -> None:
    core = "--core" in arguments
    pythons = [name for name in arguments if name != "--core"]
    files = sorted((Path(folder) / "dist").iterdir())
    packages = [file for file in files if file.name.startswith("ftuner-")]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        fresh = Path(name)
        index = write_index(fresh / "index", files)
        for package in packages:
            check(package)
        uses = {
            f"{package.name} with {python}": pool.submit(
                use, package, index, python, fresh / f"{number}{package.suffix}", core
            )
            for package in packages
            for number, python in enumerate(pythons)
        }
        for what, used in uses.items():
            used.result()
            print(f"{what}: installed and used", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
