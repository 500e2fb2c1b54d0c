"""rsqrt(x) = 1 / sqrt(x), which a GPU has an instruction for."""

import numpy as np

from ftuner.core.functions import FLOATS, Instructions, ScalarFunction
from ftuner.graph.operators import register_function

RSQRT = ScalarFunction(
    arity=1,
    kinds=FLOATS,
    reference=lambda x: 1 / np.sqrt(x),
    cost=Instructions(multiply_adds=(0, 0), others=(0, 0), divisions=2),
    epilogue=True,
    llvm="rsqrt_llvm",
    triton="rsqrt_triton",
)
register_function("rsqrt", RSQRT)
