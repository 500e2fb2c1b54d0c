"""The way to what needs torch and triton, which importing ftuner must not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ftuner.errors import ConfigurationError


def gpu_module(name: str) -> Any:
    """A module of `ftuner.runtime.gpu`, by its whole name.

    Raises:
        ConfigurationError: what it imports is not installed, or too old.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{error}; install the extra: pip install 'ftuner[gpu]'") from None
