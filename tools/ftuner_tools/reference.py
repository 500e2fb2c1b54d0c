"""The float64 reference that every engine's output is held to before it is timed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

FLOAT32_ROUNDOFF = 2.0**-24

CONFIDENCE = 8.0
"""lambda of Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis" (2019): the
error of a length-k dot product stays below `lambda * sqrt(k) * u * |x|.|y|` but with probability
about `k * exp(-lambda**2 / 2)`, whatever the order of summation."""

REFERENCE_FLOPS = 2e9
"""Work spent on one reference; larger products are checked on a sample of rows."""


class WrongOutputError(ArithmeticError):
    """An engine's output is not the product, within the rounding of float32."""


def sampled_rows(m: int, flops_per_row: float, budget_flops: float = REFERENCE_FLOPS) -> slice:
    """Rows to check: all of them if the budget allows, else an even sample of them.

    The stride is odd, so that the sample meets every place in a tile of a power-of-two height.
    """
    affordable = max(8, int(budget_flops / flops_per_row))
    stride = math.ceil(m / affordable)
    return slice(None, None, -(stride | 1))  # backwards, so that the last row is always in


def check(out: Array, x: Array, w: Array, bias: Array | None = None) -> None:
    """Hold `out[..., m, n]` to `x[..., m, k] @ w[..., k, n] + bias[n]`, all float32.

    Each element may err by `(CONFIDENCE * sqrt(k) + 2) * u * (|x| |w| + |bias|)`, the norms being
    of its row and column. Raises WrongOutputError if one errs more, or for a wrong shape or dtype.
    """
    expected_shape = (*x.shape[:-1], w.shape[-1])
    if out.shape != expected_shape or out.dtype != np.float32:
        raise WrongOutputError(
            f"output is {out.dtype} {out.shape}, expected float32 {expected_shape}"
        )
    k = x.shape[-1]
    wide_x, wide_w = x.astype(np.float64), w.astype(np.float64)
    reference = wide_x @ wide_w
    scale = (
        np.linalg.norm(wide_x, axis=-1)[..., :, None]
        * np.linalg.norm(wide_w, axis=-2)[..., None, :]
    )
    if bias is not None:
        reference = reference + bias.astype(np.float64)
        scale = scale + np.abs(bias)
    tolerance = (CONFIDENCE * math.sqrt(k) + 2.0) * FLOAT32_ROUNDOFF * scale
    error = np.abs(out - reference)
    within = error <= tolerance  # false for NaN, too
    if not within.all():
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error - tolerance)))
        index = tuple(int(i) for i in np.unravel_index(worst, error.shape))
        raise WrongOutputError(
            f"{int((~within).sum())} of {within.size} elements are wrong; at {index} got "
            f"{out[index]!r}, expected {reference[index]:.9g} within {tolerance[index]:.3g}"
        )
