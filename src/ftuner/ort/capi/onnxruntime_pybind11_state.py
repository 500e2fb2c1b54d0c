"""The exceptions of onnxruntime, and the classes and functions of `ftuner.ort`, which packages
import from here."""

from importlib import import_module
from typing import Any

from ftuner.ort import exceptions

__all__ = [found.__name__ for found in exceptions.ONNXRUNTIMES]


def __getattr__(name: str) -> Any:
    """Names that exist in neither are refused as those of `ftuner.ort` are."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(exceptions if name in __all__ else import_module("ftuner.ort"), name)
