"""Puts this package in the place of onnxruntime, for programs that import it by that name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path

from ftuner.errors import ConfigurationError
from ftuner.ort.process import __version__

NAME = "onnxruntime"
_OURS = __name__.rpartition(".")[0]
SUBMODULES = (
    "", ".capi", ".capi._pybind_state", ".capi.onnxruntime_inference_collection",
    ".capi.onnxruntime_pybind11_state", ".transformers", ".transformers.io_binding_helper",
)  # fmt: skip
"""Modules that programs import by onnxruntime's names."""


def install() -> None:
    """Make `import onnxruntime` find this package, in this process and from now on.

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
    for name in SUBMODULES:
        sys.modules[NAME + name] = import_module(_OURS + name)
    sys.meta_path.append(_Finder())


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
