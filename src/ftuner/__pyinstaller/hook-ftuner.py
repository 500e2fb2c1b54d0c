"""What PyInstaller adds to a program that imports ftuner."""

from pathlib import Path

from PyInstaller.utils.hooks import can_import_module, collect_data_files, collect_dynamic_libs

PACKAGE = Path(__file__).resolve().parents[1]
OPTIONAL = (
    "torch", "functorch", "sympy", "transformers", "triton", "scipy", "matplotlib", "onnxruntime",
)  # fmt: skip
"""Packages that a program has only if it imports them itself."""
BY_NAME = (
    "llvmlite.binding", "llvmlite.ir", "ml_dtypes", "onnx.defs", "onnx.helper", "onnx.inliner",
    "onnx.numpy_helper", "onnx.version_converter", "platformdirs", "rich.console",
    "rich.progress",
)  # fmt: skip
"""Modules of other packages that ftuner imports by name."""

# ftuner imports its own modules by name, too: kinds of steps, emitters, back ends. A program that
# has the command line imports it.
hiddenimports = [
    ".".join(("ftuner", *path.with_suffix("").parts))
    for path in sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
    and path.parts[0] not in ("__pyinstaller", "cli")
]
hiddenimports += [name for name in BY_NAME if can_import_module(name)]
excludedimports = list(OPTIONAL)
# Recorded machines.
datas = collect_data_files("ftuner")
binaries = collect_dynamic_libs("llvmlite")
# Keys of compiled code are hashes of the sources that generate it.
module_collection_mode = {"ftuner": "pyz+py"}
