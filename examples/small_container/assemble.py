"""Assemble a folder that runs a saved model: Python, NumPy, ftuner, and the system's libraries that
these need. There is no llvmlite, onnx or shell in it. As the root of an image it has under 100 MB.

    python assemble.py FOLDER [FILE ...]

Copies files, such as a saved model, to the folder, and prints the size of each part.
"""

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

UNUSED = (
    "__pycache__", "*.a", "*.h", "*.pxd", "*.pyi", "_codecs_*", "_curses*", "_hashlib.*",
    "_pyinstaller", "_simd.*", "_sqlite3*", "_ssl.*", "_test*", "_tkinter*", "config-*", "curses",
    "dist-packages", "distutils", "ensurepip", "f2py", "idlelib", "lib2to3", "nis.*", "pydoc_data",
    "readline.*", "site-packages", "sqlite3", "test", "tests", "tkinter", "turtledemo", "venv",
)  # fmt: skip
"""What no program needs that only runs models: OpenSSL, terminals, tests."""


def assemble(root: Path) -> None:
    """Write the folder, whose Python is `usr/bin/python3`."""
    standard = Path(sysconfig.get_path("stdlib"))
    modules = root / "usr" / "lib" / standard.name
    copy(standard, modules)
    for name in ("numpy", "ftuner"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        copy(package, modules / name)
        libraries = package.with_name(f"{name}.libs")
        if libraries.exists():
            copy(libraries, modules / libraries.name)
    python = root / "usr" / "bin" / "python3"
    python.parent.mkdir()
    shutil.copy(Path(sys.executable).resolve(), python)
    # Compiled modules alone: half of the bytes.
    compileall.compile_dir(modules, quiet=2, legacy=True, stripdir=str(root))
    for source in modules.rglob("*.py"):
        if source.with_suffix(".pyc").exists():
            source.unlink()
    own = [python, *(modules / "lib-dynload").iterdir()]
    for library in needed(root, [python, *modules.rglob("*.so*")]):
        target = root / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
        own.append(target)
    strip = shutil.which("strip")
    if strip:
        subprocess.run([strip, "--strip-unneeded", *map(str, own)], check=True)


def copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*UNUSED))


def needed(root: Path, files: list[Path]) -> set[Path]:
    """The libraries outside the folder that files in it are linked with, the loader included."""
    found: set[Path] = set()
    for file in files:
        done = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False)
        paths = map(Path, re.findall(r"(/\S+) \(0x", done.stdout))
        found.update(path for path in paths if not path.is_relative_to(root))
    return found


def size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def main(root: Path, files: list[Path]) -> None:
    assemble(root)
    for file in files:
        shutil.copy(file, root)
    (modules,) = (root / "usr" / "lib").glob("python3*")
    parts = {name: size(modules / name) for name in ("numpy", "numpy.libs", "ftuner")}
    parts |= {file.name: size(root / file.name) for file in files}
    everything = size(root)
    parts["Python and libraries"] = everything - sum(parts.values())
    for name, count in (*parts.items(), ("all", everything)):
        print(f"{name:<24}{count / 1e6:6.1f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), [Path(name) for name in sys.argv[2:]])
