"""The activation snake(x) = x + sin(x)^2 (Ziyin et al., arXiv 2006.08195)."""

import numpy as np

from ftuner.core.functions import FLOATS, ScalarFunction
from ftuner.graph.operators import register_function

SNAKE = ScalarFunction(
    arity=1,
    kinds=FLOATS,
    reference=lambda x: x + np.sin(x) ** 2,
    composition="s = sin(x); x + s * s",
    epilogue=True,
)
register_function("snake", SNAKE)
