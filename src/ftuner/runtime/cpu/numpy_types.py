"""NumPy's dtypes of element types."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ftuner.core.dtype import BFLOAT16, DType
from ftuner.errors import ConfigurationError
from ftuner.graph.arrays import held_in


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of an element type. That of bfloat16 is of the package ml_dtypes, which comes
    with onnx.

    Raises:
        ConfigurationError: ml_dtypes is not installed.
    """
    if dtype != BFLOAT16:
        return held_in(dtype)
    if find_spec("ml_dtypes") is None:
        raise ConfigurationError(
            "NumPy has no bfloat16 of its own; install ml_dtypes, or: pip install 'ftuner[onnx]'"
        )
    found: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
    return found
