"""Whether outputs of two engines agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ftuner_tools.timing import ATOL, RTOL

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Agreement:
    """How far an output is from the expected one."""

    within: bool
    """Whether `|x - y| <= atol + rtol |y|` for each element, and both have one shape and dtype."""
    absolute: float | None
    """The greatest |x - y|; None if the arrays cannot be compared, or if at some element only one
    of them is finite."""
    relative: float | None
    """The greatest |x - y| / |y| of the elements with |y| > atol."""
    why: str
    """What differs besides finite values: shape, dtype, infinities or NaN. Often empty."""


def agreement(x: Array, y: Array, rtol: float = RTOL, atol: float = ATOL) -> Agreement:
    """Compare an output to the expected one. Equal infinities agree, and so do NaN."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return Agreement(
            False, None, None,
            f"{x.dtype}{list(x.shape)} instead of {y.dtype}{list(y.shape)}",
        )  # fmt: skip
    a, b = x.astype(np.float64), y.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.isfinite(a[~same]).all() or not np.isfinite(b[~same]).all():
        return Agreement(False, None, None, "infinite or NaN in one of them only")
    # Infinities that agree.
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
        within = same | (error <= atol + rtol * np.abs(b))
    large = np.isfinite(b) & (np.abs(b) > atol)
    return Agreement(
        within=bool(within.all()),
        absolute=float(error.max(initial=0.0)),
        relative=float((error[large] / np.abs(b[large])).max(initial=0.0)),
        why="",
    )
