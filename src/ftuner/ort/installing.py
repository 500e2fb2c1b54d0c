"""Puts this package in the place of onnxruntime, for programs that import it by that name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import ModuleType

from ftuner.errors import ConfigurationError
from ftuner.ort.process import __version__

NAME = "onnxruntime"
_OURS = __name__.rpartition(".")[0]
TRANSFORMERS = ".transformers"
SUBMODULES = (
    "", ".capi", ".capi._pybind_state", ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state", TRANSFORMERS, f"{TRANSFORMERS}.io_binding_helper",
)  # fmt: skip
"""Modules that programs import by onnxruntime's names."""


def install() -> None:
    """Make `import onnxruntime` find this package, in this process and from now on. Modules that
    ftuner does not have, such as `onnxruntime.quantization`, are those of an installed onnxruntime.

    Raises:
        ConfigurationError: onnxruntime was imported before.
    """
    there = sys.modules.get(NAME)
    ours = import_module(_OURS)
    if there is ours:
        return
    if there is not None:
        raise ConfigurationError(
            f"onnxruntime has been imported, from {getattr(there, '__file__', None)}; call "
            f"{_OURS}.install() before anything imports it"
        )
    real = PathFinder.find_spec(NAME)
    folders = [] if real is None else list(real.submodule_search_locations or ())
    for name in SUBMODULES:
        # The package of transformers is used as a whole: its modules import each other.
        if not (folders and name.startswith(TRANSFORMERS)):
            sys.modules[NAME + name] = import_module(_OURS + name)
    sys.meta_path.insert(0, _Others(folders))
    sys.meta_path.append(_Finder())


class _Others(MetaPathFinder):
    """Finds the modules of an installed onnxruntime that are not ftuner's, which are in
    `sys.modules`."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, *parents = fullname.split(".")[:-1] or [""]
        if package != NAME:
            return None
        folders = [str(Path(folder, *parents)) for folder in self._folders]
        return PathFinder.find_spec(fullname, folders, target)


class _Finder(DistributionFinder):
    """Answers packages that ask which version of onnxruntime is installed. It is asked after the
    folders of `sys.path`, so that a real one goes first."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """No module is found here."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        if context is None or context.name in (None, NAME):
            yield _Installed()


class _Installed(Distribution):
    """The distribution that packages look up."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {__version__}\n"

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(__file__).parent / path
