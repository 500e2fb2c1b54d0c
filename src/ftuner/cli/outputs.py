"""Outputs of a model: described in a line each, and saved to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ftuner.cli.inputs import Array
from ftuner.errors import ConfigurationError


def description(name: str, x: Array) -> dict[str, Any]:
    """An output's name, dtype, shape, least, mean and greatest value; None if not finite."""
    values = x.astype(np.float64)
    found: dict[str, float | None] = dict.fromkeys(("min", "mean", "max"))
    if x.size:
        for what, value in (("min", values.min()), ("mean", values.mean()), ("max", values.max())):
            found[what] = float(value) if np.isfinite(value) else None
    return {"name": name, "dtype": x.dtype.name, "shape": list(x.shape), **found}


def save(names: Sequence[str], arrays: Sequence[Array], folder: Path) -> dict[str, Path]:
    """Write each output to a file of its name. Characters that a file name should not have are
    quoted as in URLs: `/` is `%2F`.

    Raises:
        ConfigurationError: the folder or a file cannot be written.
    """
    files = {name: folder / f"{quote(name, safe='')}.npy" for name in names}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, x in zip(names, arrays, strict=True):
            np.save(files[name], x)
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from error
    return files
