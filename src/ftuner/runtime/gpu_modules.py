"""The way to what needs torch and triton, which importing ftuner must not."""

from __future__ import annotations

from typing import Any

from ftuner.core.forks import import_undivided
from ftuner.errors import ConfigurationError


def gpu_module(name: str) -> Any:
    """A module of `ftuner.runtime.gpu`, by its whole name.

    Raises:
        ConfigurationError: what it imports is not installed, or too old.
    """
    try:
        return import_undivided(name)
    except ImportError as error:
        raise ConfigurationError(f"{error}; install the extra: pip install 'ftuner[gpu]'") from None
