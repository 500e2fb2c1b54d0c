"""The softmax of attention, and its operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ftuner.core.dim import Dim
from ftuner.core.frozen import dataclass
from ftuner.errors import GraphError


@dataclass(frozen=True)
class AttentionSoftmax:
    """`softmax(mask(cap(scores * scale)))` over the keys that a row may see."""

    scale: float = 1.0
    causal: Dim | None = None
    """Row i sees keys j <= i + causal, if it is given; a row that sees none gives zeros. Keys that
    no row sees are not read."""
    hidden: float = -math.inf
    """The score of a key that a boolean mask hides."""
    safe: bool = False
    """Whether a row whose scores are all minus infinity gives zeros, and not NaN as a softmax."""
    hides_nan: bool = False
    """Whether each row whose softmax is NaN gives zeros: all scores are minus infinity, or one is
    NaN or infinity."""
    softcap: float = 0.0
    """If it is not zero, `cap(x)` is `softcap * tanh(x / softcap)` (Gemma 2)."""
    sinks: bool = False
    """Whether there is one more operand: a score of each row that has no key and no value, and
    takes its part of the weights (GPT-OSS). Scale, cap and masks do not apply to it."""

    @property
    def inner_scale(self) -> float:
        """The factor of scores before the hyperbolic tangent, or of them alone."""
        return self.scale / self.softcap if self.softcap else self.scale

    @property
    def title(self) -> str:
        return "attention" if self.causal is None else "causal attention"


def optional_operands(given: Sequence[Any], has_sinks: bool) -> tuple[list[Any], list[Any]]:
    """The mask and the sinks of attention, if there are any. Raises GraphError if there are more
    operands."""
    rest = list(given[3:])
    sinks = [rest.pop()] if has_sinks and rest else []
    if len(rest) > 1 or len(sinks) != has_sinks:
        raise GraphError(f"attention of {len(given)} operands")
    return rest, sinks
